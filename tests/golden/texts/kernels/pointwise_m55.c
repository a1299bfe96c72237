/* cortex-m55, speed: matrix mve (direct)
 *
 * data: int8[4, 16]
 * weight: int8[2, 16] constant
 * bias: int32[2] constant
 * acc[p < 4, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 16)
 *     # sum_bound = 108506
 *     # smallest_weight = -99
 * out[p < 4, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 108506
 *     # magnitude = 0
 *
 * cache_read(acc, data, workspace) split(p, (None, 3)) split(o, (None, 2)) reorder((p_0, o_0, p_1, o_1, k))
 * defer_init(acc) reverse_compute_at(out, o_0) set_scope(acc, local) split(o_1, (None, 2)) reorder((o_1_0, p_1, o_1_1))
 * decompose_reduction(acc, p_1) annotate_loop(p_1, product, 1) annotate_loop(o_1_1, product, 1) annotate_loop(k, product,
 * 1) annotate_loop(p_1_init, product, 1) annotate_loop(o_1_1_init, product, 1) compute_at(data_workspace, p_0)
 * set_kind(data_workspace_i1_1, vectorized) annotate_loop(data_workspace_i1_1, lanes, 4) reorder((o_out_1, p_out_1))
 * set_kind(p_out_1, unrolled) set_kind(o_out_1, vectorized) annotate_loop(o_out_1, lanes, 4)
 * select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out, int8_t *data_workspace)
{
    /* copy of data */
    int32_t acc[6];
    copy_i8(&data_workspace[0], &data[0], 48);
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 16) */
    dot_i8_i8_3x2(&data_workspace[0], &weight[0], &acc[0], 16, 16, 16, 2);
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    const int32x4 all3_end = dup_i32x4(3);
    const int32x4 bias_0 = load_i32_i32x4_first(&bias[0], 2);
    const int32x4 acc_0 = add_i32x4(load_i32_i32x4_first(&acc[0], 2), bias_0);
    store_saturated_i8_i32x4_first(&out[0],
        add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_0, 1518500250),
        shl_n_i32x4(acc_0, -31)), -7), all3_end), 2);
    const int32x4 acc_1 = add_i32x4(load_i32_i32x4_first(&acc[2], 2), bias_0);
    store_saturated_i8_i32x4_first(&out[2],
        add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_1, 1518500250),
        shl_n_i32x4(acc_1, -31)), -7), all3_end), 2);
    const int32x4 acc_2 = add_i32x4(load_i32_i32x4_first(&acc[2 * 2], 2), bias_0);
    store_saturated_i8_i32x4_first(&out[2 * 2],
        add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_2, 1518500250),
        shl_n_i32x4(acc_2, -31)), -7), all3_end), 2);
    /* copy of data */
    int32_t acc_3[6];
    copy_i8(&data_workspace[0], &data[3 * 16], 16);
    for (int32_t o = 0; o < 2; ++o) {
        acc_3[o] = 0;
    }
    dot_i8_i8_1x2(&data_workspace[0], &weight[0], &acc_3[0], &acc_3[0], 16, 16);
    /* requantize */
    const int32x4 all3_end_2 = dup_i32x4(3);
    const int32x4 acc_p1_0 = add_i32x4(load_i32_i32x4_first(&acc_3[0], 2), load_i32_i32x4_first(&bias[0], 2));
    store_saturated_i8_i32x4_first(&out[3 * 2],
        add_i32x4(shift_round_n_i32x4(add_i32x4(doubling_high_mul_n_i32x4(acc_p1_0, 1518500250),
        shl_n_i32x4(acc_p1_0, -31)), -7), all3_end_2), 2);
}
