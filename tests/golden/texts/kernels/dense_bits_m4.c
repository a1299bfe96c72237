/* cortex-m4, speed: matrix bit pairs (packed_halves)
 *
 * data: int8[1, 16]
 * weight: int8[4, 16] constant
 * bias: int32[4] constant
 * acc[p < 1, o < 4]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 16)
 *     # sum_bound = 8057
 *     # smallest_weight = -7
 *     # weight_bits = 4
 * out[p < 1, o < 4]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 8057
 *     # magnitude = 0
 *
 * cache_read(acc, data, workspace) split(p, (None, 1)) split(o, (None, 4)) split(k, (None, 8, 2)) reorder((p_0, o_0, k_0,
 * k_1, p_1, o_1, k_2)) decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register)
 * compute_at(data_workspace, p_0) set_dtype(data_workspace, int16) set_kind(data_workspace_i1_1, vectorized)
 * tensorize_bit_columns(weight, o_1, k_0) set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1,
 * unrolled) set_kind(p_1, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled)
 * select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL dense_v1(const int8_t *data, const int32_t *restrict weight, const int32_t *restrict bias, int8_t *out,
    int16_t *data_workspace)
{
    /* copy of data */
    int32_t acc_0, acc_1, acc_2, acc_3;
    widen_i8x4(&data_workspace[0], load_i8x4(&data[0]));
    widen_i8x4(&data_workspace[4], load_i8x4(&data[4]));
    widen_i8x4(&data_workspace[8], load_i8x4(&data[8]));
    widen_i8x4(&data_workspace[12], load_i8x4(&data[12]));
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 16) */
    acc_0 = bias[0];
    acc_1 = bias[1];
    acc_2 = bias[2];
    acc_3 = bias[3];
    acc_3 = (int32_t)((uint32_t)acc_0 + ((uint32_t)acc_1 << 4U) + ((uint32_t)acc_2 << 8U) + ((uint32_t)acc_3 << 12U));
    acc_2 = (int32_t)(((uint32_t)acc_0 + ((uint32_t)acc_1 << 4U) + ((uint32_t)acc_2 << 8U)) << 4U);
    acc_1 = (int32_t)((uint32_t)acc_0 + ((uint32_t)acc_1 << 4U));
    acc_0 = (int32_t)((uint32_t)acc_0 << 12U);
    const int32_t data_workspace_0 = load_i16x2_aligned(&data_workspace[0]);
    const int32_t weight_0 = weight[0];
    const int32_t hold_0 = hold(-268374016);
    acc_0 = dot2_wrapping(data_workspace_0, (int32_t)((uint32_t)weight_0 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_0, evens_i8(weight_0), acc_1);
    const int32_t hold_1 = hold(-983056);
    acc_2 = dot2_wrapping(data_workspace_0, (int32_t)((uint32_t)weight_0 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_0, weight_0, acc_3);
    const int32_t data_workspace_1 = load_i16x2_aligned(&data_workspace[2]);
    const int32_t weight_1 = weight[1];
    acc_0 = dot2_wrapping(data_workspace_1, (int32_t)((uint32_t)weight_1 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_1, evens_i8(weight_1), acc_1);
    acc_2 = dot2_wrapping(data_workspace_1, (int32_t)((uint32_t)weight_1 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_1, weight_1, acc_3);
    const int32_t data_workspace_2 = load_i16x2_aligned(&data_workspace[4]);
    const int32_t weight_2 = weight[2];
    acc_0 = dot2_wrapping(data_workspace_2, (int32_t)((uint32_t)weight_2 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_2, evens_i8(weight_2), acc_1);
    acc_2 = dot2_wrapping(data_workspace_2, (int32_t)((uint32_t)weight_2 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_2, weight_2, acc_3);
    const int32_t data_workspace_3 = load_i16x2_aligned(&data_workspace[6]);
    const int32_t weight_3 = weight[3];
    acc_0 = dot2_wrapping(data_workspace_3, (int32_t)((uint32_t)weight_3 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_3, evens_i8(weight_3), acc_1);
    acc_2 = dot2_wrapping(data_workspace_3, (int32_t)((uint32_t)weight_3 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_3, weight_3, acc_3);
    const int32_t data_workspace_4 = load_i16x2_aligned(&data_workspace[8]);
    const int32_t weight_4 = weight[4];
    acc_0 = dot2_wrapping(data_workspace_4, (int32_t)((uint32_t)weight_4 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_4, evens_i8(weight_4), acc_1);
    acc_2 = dot2_wrapping(data_workspace_4, (int32_t)((uint32_t)weight_4 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_4, weight_4, acc_3);
    const int32_t data_workspace_5 = load_i16x2_aligned(&data_workspace[10]);
    const int32_t weight_5 = weight[5];
    acc_0 = dot2_wrapping(data_workspace_5, (int32_t)((uint32_t)weight_5 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_5, evens_i8(weight_5), acc_1);
    acc_2 = dot2_wrapping(data_workspace_5, (int32_t)((uint32_t)weight_5 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_5, weight_5, acc_3);
    const int32_t data_workspace_6 = load_i16x2_aligned(&data_workspace[12]);
    const int32_t weight_6 = weight[6];
    acc_0 = dot2_wrapping(data_workspace_6, (int32_t)((uint32_t)weight_6 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_6, evens_i8(weight_6), acc_1);
    acc_2 = dot2_wrapping(data_workspace_6, (int32_t)((uint32_t)weight_6 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_6, weight_6, acc_3);
    const int32_t data_workspace_7 = load_i16x2_aligned(&data_workspace[14]);
    const int32_t weight_7 = weight[7];
    acc_0 = dot2_wrapping(data_workspace_7, (int32_t)((uint32_t)weight_7 << 12U) & hold_0, acc_0);
    acc_1 = dot2_wrapping(data_workspace_7, evens_i8(weight_7), acc_1);
    acc_2 = dot2_wrapping(data_workspace_7, (int32_t)((uint32_t)weight_7 << 4U) & hold_1, acc_2);
    acc_3 = dot2_wrapping(data_workspace_7, weight_7, acc_3);
    acc_3 = (int32_t)((uint32_t)acc_3 - (uint32_t)acc_1 - ((uint32_t)((int32_t)((uint32_t)acc_2 - ((uint32_t)acc_1 << 4U)) >> 12) << 8U)) >> 12;
    acc_2 = (int32_t)((uint32_t)acc_2 - ((uint32_t)acc_1 << 4U)) >> 12;
    acc_1 = (int32_t)((uint32_t)acc_1 - (uint32_t)((int32_t)(uint32_t)acc_0 >> 12)) >> 4;
    acc_0 = (int32_t)(uint32_t)acc_0 >> 12;
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0 * 2, 1518500250, (acc_0 >> 31) + 448));
    out[1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1 * 2, 1518500250, (acc_1 >> 31) + 448));
    out[2] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_2 * 2, 1518500250, (acc_2 >> 31) + 448));
    out[3] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_3 * 2, 1518500250, (acc_3 >> 31) + 448));
}
