/* cortex-m0, speed: matrix (direct)
 *
 * data: int8[2, 3]
 * weight: int8[2, 3] constant
 * bias: int32[2] constant
 * acc[p < 2, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 3)
 *     # sum_bound = 22529
 *     # smallest_weight = -91
 * out[p < 2, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 22529
 *     # magnitude = 0
 *
 * split(p, (None, 2)) split(o, (None, 2)) split(k, (None, 3, 1)) reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2))
 * decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register) set_kind(p_1_init, unrolled)
 * set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(o_1, unrolled) set_kind(k_2,
 * unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled) apply_identities((high_mac_round_by_thirds))
 * select_intrinsics((clamp8))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out)
{
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 3) */
    int32_t acc_0_0, acc_0_1, acc_1_0, acc_1_1;
    const int32_t bias_0 = bias[0];
    acc_0_0 = bias_0;
    const int32_t bias_1 = bias[1];
    acc_0_1 = bias_1;
    acc_1_0 = bias_0;
    acc_1_1 = bias_1;
    const int8_t data_0 = data[0];
    const int8_t weight_0 = weight[0];
    acc_0_0 += (int32_t)data_0 * (int32_t)weight_0;
    const int8_t weight_1 = weight[3];
    acc_0_1 += (int32_t)data_0 * (int32_t)weight_1;
    const int8_t data_1 = data[3];
    acc_1_0 += (int32_t)data_1 * (int32_t)weight_0;
    acc_1_1 += (int32_t)data_1 * (int32_t)weight_1;
    const int8_t data_2 = data[1];
    const int8_t weight_2 = weight[1];
    acc_0_0 += (int32_t)data_2 * (int32_t)weight_2;
    const int8_t weight_3 = weight[3 + 1];
    acc_0_1 += (int32_t)data_2 * (int32_t)weight_3;
    const int8_t data_3 = data[3 + 1];
    acc_1_0 += (int32_t)data_3 * (int32_t)weight_2;
    acc_1_1 += (int32_t)data_3 * (int32_t)weight_3;
    const int8_t data_4 = data[2];
    const int8_t weight_4 = weight[2];
    acc_0_0 += (int32_t)data_4 * (int32_t)weight_4;
    const int8_t weight_5 = weight[3 + 2];
    acc_0_1 += (int32_t)data_4 * (int32_t)weight_5;
    const int8_t data_5 = data[3 + 2];
    acc_1_0 += (int32_t)data_5 * (int32_t)weight_4;
    acc_1_1 += (int32_t)data_5 * (int32_t)weight_5;
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)clamp8((((product_2_30(acc_0_0, 1518500250) + 1) >> 1) + ((acc_0_0 >> 31) + 448)) >> 7);
    out[1] = (int8_t)clamp8((((product_2_30(acc_0_1, 1518500250) + 1) >> 1) + ((acc_0_1 >> 31) + 448)) >> 7);
    out[2] = (int8_t)clamp8((((product_2_30(acc_1_0, 1518500250) + 1) >> 1) + ((acc_1_0 >> 31) + 448)) >> 7);
    out[2 + 1] = (int8_t)clamp8((((product_2_30(acc_1_1, 1518500250) + 1) >> 1) + ((acc_1_1 >> 31) + 448)) >> 7);
}
