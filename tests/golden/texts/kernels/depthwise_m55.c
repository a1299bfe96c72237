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
 *     int8(min(max(smmlar(acc[n, y, x, c] << 1, 1518500250, (acc[n, y, x, c] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 53918
 *     # magnitude = 0
 *
 * reorder((n_acc, c_acc, y_acc, x_acc, ky, kx)) decompose_reduction(acc, ky) reverse_compute_at(out, x_acc) set_scope(acc,
 * register) transform_layout(padded, ((None), (None), (None), (None)), (0, 3, 1, 2)) transform_layout(weight, ((None),
 * (None), (None)), (2, 0, 1)) compute_at(padded, c_acc) reorder((y_1, x_1)) decompose_padding(padded) set_kind(x_1_fill,
 * vectorized) annotate_loop(x_1_fill, lanes, 4) set_kind(x_1, vectorized) annotate_loop(x_1, lanes, 4) set_kind(kx,
 * unrolled) set_kind(ky, unrolled) set_kind(x_acc, vectorized) annotate_loop(x_acc, lanes, 4) select_fma()
 * select_conversion() select_saturation()
 */
NET_KERNEL conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *out,
    int8_t *padded)
{
    fill_i8(&padded[0], -1, 24);
    for (int32_t c_acc = 0; c_acc < 2; ++c_acc) {
        const int32x4 x_1_by2 = ramp_i32x4(2);
        for (int32_t y_1 = 0; y_1 < 2; ++y_1) {
            store_i8_i32x4(&padded[y_1 * 6 + 7], gather_i8_i32x4(&data[y_1 * 8 + c_acc], x_1_by2));
        }
        const int32_t x_acc_bias0 = bias[c_acc];
        const int32x4 x_acc_all1 = dup_i32x4(x_acc_bias0);
        const int32_t x_acc_weight2 = (int32_t)weight[c_acc * 9];
        const int32_t x_acc_weight3 = (int32_t)weight[c_acc * 9 + 1];
        const int32_t x_acc_weight4 = (int32_t)weight[c_acc * 9 + 2];
        const int32_t x_acc_weight5 = (int32_t)weight[c_acc * 9 + 3];
        const int32_t x_acc_weight6 = (int32_t)weight[c_acc * 9 + 4];
        const int32_t x_acc_weight7 = (int32_t)weight[c_acc * 9 + 5];
        const int32_t x_acc_weight8 = (int32_t)weight[c_acc * 9 + 6];
        const int32_t x_acc_weight9 = (int32_t)weight[c_acc * 9 + 7];
        const int32_t x_acc_weight10 = (int32_t)weight[c_acc * 9 + 8];
        const int32x4 x_acc_by2 = ramp_i32x4(2);
        const int32x4 x_acc_3 = dup_i32x4(3);
        const int32x4 x_acc_m128 = dup_i32x4(-128);
        const int32x4 x_acc_127 = dup_i32x4(127);
        for (int32_t y_acc = 0; y_acc < 2; ++y_acc) {
            int32x4 acc;
            acc = x_acc_all1;
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6]), x_acc_weight2);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 1]), x_acc_weight3);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 2]), x_acc_weight4);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 6]), x_acc_weight5);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 7]), x_acc_weight6);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 8]), x_acc_weight7);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 12]), x_acc_weight8);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 13]), x_acc_weight9);
            acc = mla_n_i32x4(acc, load_i8_i32x4(&padded[y_acc * 6 + 14]), x_acc_weight10);
            scatter_i8_i32x4(&out[y_acc * 8 + c_acc], x_acc_by2,
                min_i32x4(max_i32x4(add_i32x4(rshl_n_i32x4(add_i32x4(qrdmulh_n_i32x4(acc, 1518500250),
                shl_n_i32x4(acc, -31)), -7), x_acc_3), x_acc_m128), x_acc_127));
        }
    }
}
