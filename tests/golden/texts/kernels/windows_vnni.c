/* x86-64-v4-vnni, speed: window vectors (unsigned_windows)
 *
 * data: int8[1, 3, 32]
 * padded[n < 1, y < 5, i < 40]: uint8 =
 *     select(y - 1 >= 0 and y - 1 < 3 and i - 4 >= 0 and i - 4 < 32, uint8(int32(data[n, y - 1, i - 4]) + 128), uint8(127))
 * weight: int8[16, 36] constant
 * bias: int32[16] constant
 * acc[n < 1, y < 3, x < 8, o < 16]: int32 =
 *     bias[o] + sum(int32(padded[n, y * 1 + ky * 1, x * 4 + k]) * int32(weight[o, ky * 12 + k]) for ky < 3, k < 12)
 *     # sum_bound = 272380
 *     # smallest_weight = -99
 *     # windows = 1
 * out[n < 1, y < 3, x < 8, o < 16]: int8 =
 *     int8(min(max(high_mac_round(acc[n, y, x, o] << 1, 1518500250, (acc[n, y, x, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 272380
 *     # magnitude = 0
 *
 * set_dtype(weight, int8) transform_layout(weight, ((None, 16), (None, 4)), (0, 2, 1, 3)) split(x, (None, 8)) split(o,
 * (None, 1, 16)) split(k, (None, 1, 4)) reorder((x_0, o_0, ky, k_0, k_1, x_1, o_1, o_2, k_2)) decompose_reduction(acc, ky)
 * reverse_compute_at(out, o_0) set_scope(acc, register) compute_at(padded, y_acc) decompose_padding(padded) set_kind(i_1,
 * vectorized) annotate_loop(i_1, lanes, 16) annotate_loop(i_1, floats, 1) tensorize(k_2, dot4_uint8_int8_word)
 * set_kind(x_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(o_2_init, vectorized) annotate_loop(o_2_init, lanes,
 * 16) annotate_loop(o_2_init, floats, 1) set_kind(k_1, unrolled) set_kind(x_1, unrolled) set_kind(o_1, unrolled)
 * set_kind(o_2, vectorized) annotate_loop(o_2, lanes, 16) annotate_loop(o_2, floats, 1) set_kind(n_out_1, unrolled)
 * set_kind(y_out_1, unrolled) set_kind(x_out_1, unrolled) set_kind(o_out_1, vectorized) annotate_loop(o_out_1, lanes, 16)
 * annotate_loop(o_out_1, floats, 1)
 */
NET_KERNEL conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *out,
    uint8_t *padded)
{
    for (int32_t y = 0; y < 3; ++y) {
        /* pad: padded[n, y, i] = select(y - 1 >= 0 and y - 1 < 3 and i - 4 >= 0 and i - 4 < 32,
         *     data[n, y - 1, i - 4] + 128, 127) */
        int32x16 acc_0, acc_1, acc_2, acc_3, acc_4, acc_5, acc_6, acc_7;
        for (int32_t y_2 = 0; y_2 < 3; ++y_2) {
            for (int32_t i = 0; i < 40; ++i) {
                padded[y_2 * 40 + i] = (uint8_t)127;
            }
        }
        for (int32_t y_3 = 0; y_3 < 3; ++y_3) {
            if (y_3 + y >= 1 && y_3 + y < 4) {
                for (int32_t i = 0; i < 2; ++i) {
                    store_u8_i32x16(&padded[y_3 * 40 + i * 16 + 4],
                        add_n_i32x16(load_i8_i32x16(&data[y * 32 + y_3 * 32 + i * 16 - 32]), 128));
                }
            } else {
                fill_u8(&padded[y_3 * 40 + 4], 127, 32);
            }
        }
        /* accumulate: acc[n, y, x, o] = bias[o] + sum(padded[n, y * 1 + ky * 1, x * 4 + k] *
         *     weight[o, ky * 12 + k] for ky < 3, k < 12) */
        const int32x16 bias_0 = load_i32_i32x16(&bias[0]);
        acc_0 = bias_0;
        acc_1 = bias_0;
        acc_2 = bias_0;
        acc_3 = bias_0;
        acc_4 = bias_0;
        acc_5 = bias_0;
        acc_6 = bias_0;
        acc_7 = bias_0;
        for (int32_t ky = 0; ky < 3; ++ky) {
            for (int32_t k_tile = 0; k_tile < 3; ++k_tile) {
                const int32x16 weight_0 = load_i8x4_i32x16(&weight[ky * (3 * 64) + k_tile * 64]);
                acc_0 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4]), weight_0, acc_0);
                acc_1 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 4]), weight_0, acc_1);
                acc_2 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 8]), weight_0, acc_2);
                acc_3 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 12]), weight_0, acc_3);
                acc_4 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 16]), weight_0, acc_4);
                acc_5 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 20]), weight_0, acc_5);
                acc_6 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 24]), weight_0, acc_6);
                acc_7 = dot4_u8_i32x16(dup_u8x4_i32x16(&padded[ky * 40 + k_tile * 4 + 28]), weight_0, acc_7);
            }
        }
        /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
        const int32x16 all3 = dup_i32x16(3);
        const int32x16 minus128 = dup_i32x16(-128);
        const int32x16 all127 = dup_i32x16(127);
        store_i8_i32x16(&out[y * 128],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_0,
            1518500250), shl_n_i32x16(acc_0, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_1,
            1518500250), shl_n_i32x16(acc_1, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 2 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_2,
            1518500250), shl_n_i32x16(acc_2, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 3 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_3,
            1518500250), shl_n_i32x16(acc_3, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 4 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_4,
            1518500250), shl_n_i32x16(acc_4, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 5 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_5,
            1518500250), shl_n_i32x16(acc_5, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 6 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_6,
            1518500250), shl_n_i32x16(acc_6, -31)), -7), all3), minus128), all127));
        store_i8_i32x16(&out[y * 128 + 7 * 16],
            min_i32x16(max_i32x16(add_i32x16(shift_round_n_i32x16(add_i32x16(doubling_high_mul_n_i32x16(acc_7,
            1518500250), shl_n_i32x16(acc_7, -31)), -7), all3), minus128), all127));
    }
}
