/* x86-64-v4-vnni, speed: depthwise vectors, pairs (direct)
 *
 * data: int8[1, 3, 4, 8]
 * weight: int8[3, 3, 8] constant
 * bias: int32[8] constant
 * acc[n < 1, y < 1, x < 2, c < 8]: int32 =
 *     bias[c] + sum(int32(data[n, y + ky, x + kx, c]) * int32(weight[ky, kx, c]) for ky < 3, kx < 3)
 * out[n < 1, y < 1, x < 2, c < 8]: int8 =
 *     int8(min(max(high_mac_round(acc[n, y, x, c] << 1, 1518500250, (acc[n, y, x, c] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 73871
 *     # magnitude = 0
 *
 * tensorize_taps(acc, weight, 0) split(x, (None, 2)) split(c, (None, 8)) reorder((x_0, c_0, kx, x_1, c_1))
 * decompose_reduction(acc, kx) reverse_compute_at(out, c_0) set_scope(acc, register) set_kind(kx, unrolled)
 * set_kind(x_1_init, unrolled) set_kind(c_1_init, vectorized) annotate_loop(c_1_init, lanes, 8) annotate_loop(c_1_init,
 * floats, 1) set_kind(x_1, unrolled) set_kind(c_1, vectorized) annotate_loop(c_1, lanes, 8) annotate_loop(c_1, floats, 1)
 * set_kind(x_out_1, unrolled) set_kind(c_out_1, vectorized) annotate_loop(c_out_1, lanes, 8) annotate_loop(c_out_1,
 * floats, 1)
 */
NET_KERNEL depthwise_conv2d_v1(const int8_t *data, const int32_t *restrict weight, const int32_t *restrict bias,
    int8_t *out)
{
    /* accumulate: acc[n, y, x, c] = bias[c] + sum(data[n, y + ky, x + kx, c] * weight[ky, kx,
     *     c] for ky < 3, kx < 3) */
    int32x8 acc_0, acc_1;
    const int32x8 bias_0 = load_i32_i32x8(&bias[0]);
    acc_0 = bias_0;
    acc_1 = bias_0;
    const int32x8 all65535 = dup_i32x8(65535);
    const int32x8 weight_0 = load_i32_i32x8(&weight[0]);
    const int32x8 weight_1 = load_i32_i32x8(&weight[24]);
    acc_0 = dot2_i32x8(load_i8_i32x8(&data[2 * 32]), weight_1,
        dot2_i32x8(or_i32x8(and_i32x8(load_i8_i32x8(&data[0]), all65535), shl_n_i32x8(load_i8_i32x8(&data[32]), 16)),
        weight_0, acc_0));
    const int32x8 data_0 = load_i8_i32x8(&data[2 * 32 + 8]);
    const int32x8 data_1 = or_i32x8(and_i32x8(load_i8_i32x8(&data[8]), all65535),
        shl_n_i32x8(load_i8_i32x8(&data[32 + 8]), 16));
    acc_1 = dot2_i32x8(data_0, weight_1, dot2_i32x8(data_1, weight_0, acc_1));
    const int32x8 weight_2 = load_i32_i32x8(&weight[8]);
    const int32x8 weight_3 = load_i32_i32x8(&weight[24 + 8]);
    acc_0 = dot2_i32x8(data_0, weight_3, dot2_i32x8(data_1, weight_2, acc_0));
    const int32x8 data_2 = load_i8_i32x8(&data[2 * 32 + 2 * 8]);
    const int32x8 data_3 = or_i32x8(and_i32x8(load_i8_i32x8(&data[2 * 8]), all65535),
        shl_n_i32x8(load_i8_i32x8(&data[32 + 2 * 8]), 16));
    acc_1 = dot2_i32x8(data_2, weight_3, dot2_i32x8(data_3, weight_2, acc_1));
    const int32x8 weight_4 = load_i32_i32x8(&weight[2 * 8]);
    const int32x8 weight_5 = load_i32_i32x8(&weight[24 + 2 * 8]);
    acc_0 = dot2_i32x8(data_2, weight_5, dot2_i32x8(data_3, weight_4, acc_0));
    acc_1 = dot2_i32x8(load_i8_i32x8(&data[2 * 32 + 3 * 8]), weight_5,
        dot2_i32x8(or_i32x8(and_i32x8(load_i8_i32x8(&data[3 * 8]), all65535),
        shl_n_i32x8(load_i8_i32x8(&data[32 + 3 * 8]), 16)), weight_4, acc_1));
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    const int32x8 all3 = dup_i32x8(3);
    const int32x8 minus128 = dup_i32x8(-128);
    const int32x8 all127 = dup_i32x8(127);
    store_i8_i32x8(&out[0], min_i32x8(max_i32x8(add_i32x8(shift_round_n_i32x8(add_i32x8(doubling_high_mul_n_i32x8(acc_0, 1518500250), shl_n_i32x8(acc_0, -31)), -7), all3), minus128), all127));
    store_i8_i32x8(&out[8], min_i32x8(max_i32x8(add_i32x8(shift_round_n_i32x8(add_i32x8(doubling_high_mul_n_i32x8(acc_1, 1518500250), shl_n_i32x8(acc_1, -31)), -7), all3), minus128), all127));
}
