/* cortex-m4, speed: matrix dsp (direct)
 *
 * data: int8[3, 4]
 * weight: int8[2, 4] constant
 * bias: int32[2] constant
 * acc[p < 3, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 4)
 *     # sum_bound = 39809
 *     # smallest_weight = -96
 * out[p < 3, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 39809
 *     # magnitude = 0
 *
 * cache_read(acc, data, workspace) split(p, (None, 3)) split(o, (None, 2)) split(k, (None, 1, 4)) reorder((p_0, o_0, k_0,
 * k_1, p_1, o_1, k_2)) decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register)
 * compute_at(data_workspace, p_0) set_dtype(data_workspace, int16) set_kind(data_workspace_i1_1, vectorized)
 * set_dtype(weight, int16) tensorize(k_2, dot4_int16_int16) double_reduction(acc, weight) set_kind(p_1_init, unrolled)
 * set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(o_1, unrolled) set_kind(p_out_1,
 * unrolled) set_kind(o_out_1, unrolled) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int16_t *restrict weight, const int32_t *restrict bias,
    int8_t *out, int16_t *data_workspace)
{
    /* copy of data */
    int32_t acc_0_0, acc_0_1, acc_1_0, acc_1_1, acc_2_0, acc_2_1;
    for (int32_t i0 = 0; i0 < 3; ++i0) {
        widen_i8x4(&data_workspace[i0 * 4], load_i8x4(&data[i0 * 4]));
    }
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 4) */
    const int32_t bias_0 = bias[0] * 2;
    acc_0_0 = bias_0;
    const int32_t bias_1 = bias[1] * 2;
    acc_0_1 = bias_1;
    acc_1_0 = bias_0;
    acc_1_1 = bias_1;
    acc_2_0 = bias_0;
    acc_2_1 = bias_1;
    const int32_t data_workspace_0 = load_i16x2_aligned(&data_workspace[0]);
    const int32_t data_workspace_1 = load_i16x2_aligned(&data_workspace[2]);
    const int32_t weight_0 = load_i16x2_aligned(&weight[0]);
    const int32_t weight_1 = load_i16x2_aligned(&weight[2]);
    acc_0_0 = dot2(data_workspace_1, weight_1, dot2(data_workspace_0, weight_0, acc_0_0));
    const int32_t weight_2 = load_i16x2_aligned(&weight[4]);
    const int32_t weight_3 = load_i16x2_aligned(&weight[4 + 2]);
    acc_0_1 = dot2(data_workspace_1, weight_3, dot2(data_workspace_0, weight_2, acc_0_1));
    const int32_t data_workspace_2 = load_i16x2_aligned(&data_workspace[4]);
    const int32_t data_workspace_3 = load_i16x2_aligned(&data_workspace[4 + 2]);
    acc_1_0 = dot2(data_workspace_3, weight_1, dot2(data_workspace_2, weight_0, acc_1_0));
    acc_1_1 = dot2(data_workspace_3, weight_3, dot2(data_workspace_2, weight_2, acc_1_1));
    const int32_t data_workspace_4 = load_i16x2_aligned(&data_workspace[2 * 4]);
    const int32_t data_workspace_5 = load_i16x2_aligned(&data_workspace[2 * 4 + 2]);
    acc_2_0 = dot2(data_workspace_5, weight_1, dot2(data_workspace_4, weight_0, acc_2_0));
    acc_2_1 = dot2(data_workspace_5, weight_3, dot2(data_workspace_4, weight_2, acc_2_1));
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0_0, 1518500250, (acc_0_0 >> 31) + 448));
    out[1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0_1, 1518500250, (acc_0_1 >> 31) + 448));
    out[2] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1_0, 1518500250, (acc_1_0 >> 31) + 448));
    out[2 + 1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1_1, 1518500250, (acc_1_1 >> 31) + 448));
    out[2 * 2] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_2_0, 1518500250, (acc_2_0 >> 31) + 448));
    out[2 * 2 + 1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_2_1, 1518500250, (acc_2_1 >> 31) + 448));
}
