/* cortex-m55, speed: depthwise mve (direct)
 *
 * data: int8[1, 2, 4, 2]
 * padded[n < 1, y < 4, x < 6, c < 2]: int8 =
 *     select(y - 1 >= 0 and y - 1 < 2 and x - 1 >= 0 and x - 1 < 4, data[n, y - 1, x - 1, c], int8(-1))
 * weight: int8[3, 3, 2] constant
 * bias: int32[2] constant
 * acc[n < 1, y < 2, x < 4, c < 2]: int32 =
 *     bias[c] + sum(int32(padded[n, y + ky, x + kx, c]) * int32(weight[ky, kx, c]) for ky < 3, kx < 3)
 * out[n < 1, y < 2, x < 4, c < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[n, y, x, c] << 1, 1518500250, (acc[n, y, x, c] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 53918
 *     # magnitude = 0
 *
 * split(y_acc, (None, 2)) reorder((n_acc, c_acc, y_acc_0, x_acc, kx, ky, y_acc_1)) decompose_reduction(acc, kx)
 * reverse_compute_at(out, x_acc) set_scope(acc, register) transform_layout(padded, ((None), (None), (None), (None)), (0,
 * 3, 1, 2)) transform_layout(weight, ((None), (None), (None)), (2, 0, 1)) compute_at(padded, c_acc) reorder((y_1, x_1))
 * decompose_padding(padded) set_kind(x_1_fill, vectorized) annotate_loop(x_1_fill, lanes, 4) set_kind(x_1, vectorized)
 * annotate_loop(x_1, lanes, 4) annotate_loop(x_1, strided, 9362) set_kind(y_acc_1_init, unrolled) set_kind(y_out_1,
 * unrolled) set_kind(y_acc_1, unrolled) set_kind(ky, unrolled) set_kind(kx, unrolled) set_kind(x_acc, vectorized)
 * annotate_loop(x_acc, lanes, 4) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL depthwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out, int8_t *padded)
{
    /* pad: padded[n, y, x, c] = select(y - 1 >= 0 and y - 1 < 2 and x - 1 >= 0 and x - 1 < 4,
     *     data[n, y - 1, x - 1, c], -1) */
    fill_i8(&padded[0], -1, 24);
    for (int32_t c = 0; c < 2; ++c) {
        const int32x4 by2 = ramp_i32x4(2);
        for (int32_t y = 0; y < 2; ++y) {
            store_i8_i32x4(&padded[y * 6 + (6 + 1)], gather_i8_i32x4(&data[y * 8 + c], by2));
        }
        /* accumulate: acc[n, y, x, c] = bias[c] + sum(padded[n, y + ky, x + kx, c] * weight[ky, kx,
         *     c] for ky < 3, kx < 3) */
        const int32_t bias_0 = bias[c];
        const int32x4 lanes_0 = dup_i32x4(bias_0);
        const int32_t weight_0 = (int32_t)weight[c * 9];
        const int32_t weight_1 = (int32_t)weight[c * 9 + 3];
        const int32_t weight_2 = (int32_t)weight[c * 9 + 2 * 3];
        const int32_t weight_3 = (int32_t)weight[c * 9 + 1];
        const int32_t weight_4 = (int32_t)weight[c * 9 + (3 + 1)];
        const int32_t weight_5 = (int32_t)weight[c * 9 + (2 * 3 + 1)];
        const int32_t weight_6 = (int32_t)weight[c * 9 + 2];
        const int32_t weight_7 = (int32_t)weight[c * 9 + (3 + 2)];
        const int32_t weight_8 = (int32_t)weight[c * 9 + (2 * 3 + 2)];
        const int32x4 by2_2 = ramp_i32x4(2);
        const int32x4 all3 = dup_i32x4(3);
        const int32x4 minus128 = dup_i32x4(-128);
        const int32x4 all127 = dup_i32x4(127);
        int32x4 acc_0, acc_1;
        acc_0 = lanes_0;
        acc_1 = lanes_0;
        acc_0 = mac_n_i32x4(acc_0, load_i8_i32x4(&padded[0]), weight_0);
        const int32x4 padded_0 = load_i8_i32x4(&padded[6]);
        acc_1 = mac_n_i32x4(acc_1, padded_0, weight_0);
        acc_0 = mac_n_i32x4(acc_0, padded_0, weight_1);
        const int32x4 padded_1 = load_i8_i32x4(&padded[2 * 6]);
        acc_1 = mac_n_i32x4(acc_1, padded_1, weight_1);
        acc_0 = mac_n_i32x4(acc_0, padded_1, weight_2);
        acc_1 = mac_n_i32x4(acc_1, load_i8_i32x4(&padded[3 * 6]), weight_2);
        acc_0 = mac_n_i32x4(acc_0, load_i8_i32x4(&padded[1]), weight_3);
        const int32x4 padded_2 = load_i8_i32x4(&padded[6 + 1]);
        acc_1 = mac_n_i32x4(acc_1, padded_2, weight_3);
        acc_0 = mac_n_i32x4(acc_0, padded_2, weight_4);
        const int32x4 padded_3 = load_i8_i32x4(&padded[2 * 6 + 1]);
        acc_1 = mac_n_i32x4(acc_1, padded_3, weight_4);
        acc_0 = mac_n_i32x4(acc_0, padded_3, weight_5);
        acc_1 = mac_n_i32x4(acc_1, load_i8_i32x4(&padded[3 * 6 + 1]), weight_5);
        acc_0 = mac_n_i32x4(acc_0, load_i8_i32x4(&padded[2]), weight_6);
        const int32x4 padded_4 = load_i8_i32x4(&padded[6 + 2]);
        acc_1 = mac_n_i32x4(acc_1, padded_4, weight_6);
        acc_0 = mac_n_i32x4(acc_0, padded_4, weight_7);
        const int32x4 padded_5 = load_i8_i32x4(&padded[2 * 6 + 2]);
        acc_1 = mac_n_i32x4(acc_1, padded_5, weight_7);
        acc_0 = mac_n_i32x4(acc_0, padded_5, weight_8);
        acc_1 = mac_n_i32x4(acc_1, load_i8_i32x4(&padded[3 * 6 + 2]), weight_8);
        /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
        scatter_i8_i32x4(&out[c], by2_2,
            min_i32x4(max_i32x4(add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_0, 1518500250),
            shl_n_i32x4(acc_0, -31)), -7), all3), minus128), all127));
        scatter_i8_i32x4(&out[c + 8], by2_2,
            min_i32x4(max_i32x4(add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_1, 1518500250),
            shl_n_i32x4(acc_1, -31)), -7), all3), minus128), all127));
    }
}
