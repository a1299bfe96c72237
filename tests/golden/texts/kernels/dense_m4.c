/* cortex-m4, speed: matrix dsp (direct)
 *
 * data: int8[1, 8]
 * weight: int8[2, 8] constant
 * bias: int32[2] constant
 * acc[p < 1, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 8)
 *     # sum_bound = 58142
 *     # smallest_weight = -96
 * out[p < 1, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 58142
 *     # magnitude = 0
 *
 * split(p, (None, 1)) split(o, (None, 2)) split(k, (None, 2, 4)) reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2))
 * decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register) tensorize(k_2, dot4_int8_int8)
 * set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(o_1,
 * unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL dense_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *out)
{
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 8) */
    int32_t acc_0, acc_1;
    acc_0 = bias[0];
    acc_1 = bias[1];
    const int32_t data_0 = load_i8x4(&data[0]);
    const int32_t weight_0 = load_i8x4(&weight[0]);
    const int32_t data_1 = odds_i8(data_0);
    const int32_t data_2 = evens_i8(data_0);
    acc_0 = dot2(data_1, odds_i8(weight_0), dot2(data_2, evens_i8(weight_0), acc_0));
    const int32_t weight_1 = load_i8x4(&weight[8]);
    acc_1 = dot2(data_1, odds_i8(weight_1), dot2(data_2, evens_i8(weight_1), acc_1));
    const int32_t data_3 = load_i8x4(&data[4]);
    const int32_t weight_2 = load_i8x4(&weight[4]);
    const int32_t data_4 = odds_i8(data_3);
    const int32_t data_5 = evens_i8(data_3);
    acc_0 = dot2(data_4, odds_i8(weight_2), dot2(data_5, evens_i8(weight_2), acc_0));
    const int32_t weight_3 = load_i8x4(&weight[8 + 4]);
    acc_1 = dot2(data_4, odds_i8(weight_3), dot2(data_5, evens_i8(weight_3), acc_1));
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0 * 2, 1518500250, (acc_0 >> 31) + 448));
    out[1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1 * 2, 1518500250, (acc_1 >> 31) + 448));
}
