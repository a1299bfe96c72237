/* cortex-m4, speed: matrix bit pairs (packed_halves)
 *
 * data: int8[2, 8]
 * weight: int8[1, 8] constant
 * bias: int32[1] constant
 * acc[p < 2, o < 1]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 8)
 *     # sum_bound = 4091
 *     # smallest_weight = -7
 *     # weight_bits = 4
 * out[p < 2, o < 1]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 4091
 *     # magnitude = 0
 *
 * cache_read(acc, data, workspace) split(p, (None, 2)) split(o, (None, 1)) split(k, (None, 4, 2)) reorder((p_0, o_0, k_0,
 * k_1, p_1, o_1, k_2)) decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register)
 * compute_at(data_workspace, p_0) set_dtype(data_workspace, int16) set_kind(data_workspace_i1_1, vectorized)
 * tensorize_bits(weight, k_2, k_0, 4) set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1, unrolled)
 * set_kind(p_1, unrolled) set_kind(o_1, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled)
 * select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int32_t *restrict weight, const int32_t *restrict bias,
    int8_t *out, int16_t *data_workspace)
{
    /* copy of data */
    int32_t acc_0, acc_1;
    for (int32_t i0 = 0; i0 < 2; ++i0) {
        widen_i8x4(&data_workspace[i0 * 8], load_i8x4(&data[i0 * 8]));
        widen_i8x4(&data_workspace[i0 * 8 + 4], load_i8x4(&data[i0 * 8 + 4]));
    }
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 8) */
    const int32_t bias_0 = bias[0];
    acc_0 = bias_0;
    acc_1 = bias_0;
    acc_0 = (int32_t)((uint32_t)acc_0 << 12U);
    acc_1 = (int32_t)((uint32_t)acc_1 << 12U);
    const int32_t weight_0 = weight[0];
    const int32_t hold_0 = hold(-268374016);
    const int32_t weight_1 = (int32_t)((uint32_t)weight_0 << 12U) & hold_0;
    acc_0 = dot2_wrapping(load_i16x2_aligned(&data_workspace[0]), weight_1, acc_0);
    acc_1 = dot2_wrapping(load_i16x2_aligned(&data_workspace[8]), weight_1, acc_1);
    const int32_t weight_2 = (int32_t)((uint32_t)weight_0 << 8U) & hold_0;
    acc_0 = dot2_wrapping(load_i16x2_aligned(&data_workspace[2]), weight_2, acc_0);
    acc_1 = dot2_wrapping(load_i16x2_aligned(&data_workspace[8 + 2]), weight_2, acc_1);
    const int32_t weight_3 = (int32_t)((uint32_t)weight_0 << 4U) & hold_0;
    acc_0 = dot2_wrapping(load_i16x2_aligned(&data_workspace[4]), weight_3, acc_0);
    acc_1 = dot2_wrapping(load_i16x2_aligned(&data_workspace[8 + 4]), weight_3, acc_1);
    const int32_t weight_4 = (int32_t)(uint32_t)weight_0 & hold_0;
    acc_0 = dot2_wrapping(load_i16x2_aligned(&data_workspace[6]), weight_4, acc_0);
    acc_1 = dot2_wrapping(load_i16x2_aligned(&data_workspace[8 + 6]), weight_4, acc_1);
    acc_0 = acc_0 >> 12;
    acc_1 = acc_1 >> 12;
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0 * 2, 1518500250, (acc_0 >> 31) + 448));
    out[1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1 * 2, 1518500250, (acc_1 >> 31) + 448));
}
