/* cortex-m4, size: matrix dsp (direct)
 *
 * data: int8[1, 20]
 * weight: int8[2, 20] constant
 * bias: int32[2] constant
 * acc[p < 1, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 20)
 *     # sum_bound = 135646
 *     # smallest_weight = -99
 * out[p < 1, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 135646
 *     # magnitude = 0
 *
 * split(p, (None, 1)) split(o, (None, 2)) split(k, (None, 5, 4)) reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2))
 * decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register) tensorize_pairs(weight, o_1, k_0,
 * int8) set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled)
 * set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL dense_v1(const int8_t *data, const int16_t *restrict weight, const int32_t *restrict bias, int8_t *out)
{
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 20) */
    int32_t acc_0, acc_1;
    acc_0 = bias[0];
    acc_1 = bias[1];
    acc_1 = (int32_t)((int64_t)acc_0 + (int64_t)acc_1 * INT64_C(256));
    const int32_t data_0 = load_i8x4(&data[0]);
    const int32_t weight_0 = load_i16x2_aligned(&weight[0]);
    const int32_t weight_1 = load_i16x2_aligned(&weight[2]);
    const int32_t data_1 = odds_i8(data_0);
    const int32_t data_2 = evens_i8(data_0);
    acc_0 = dot2(data_1, evens_i8(weight_1), dot2(data_2, evens_i8(weight_0), acc_0));
    acc_1 = dot2_wrapping(data_1, weight_1, dot2_wrapping(data_2, weight_0, acc_1));
    const int32_t data_3 = load_i8x4(&data[4]);
    const int32_t weight_2 = load_i16x2_aligned(&weight[4]);
    const int32_t weight_3 = load_i16x2_aligned(&weight[6]);
    const int32_t data_4 = odds_i8(data_3);
    const int32_t data_5 = evens_i8(data_3);
    acc_0 = dot2(data_4, evens_i8(weight_3), dot2(data_5, evens_i8(weight_2), acc_0));
    acc_1 = dot2_wrapping(data_4, weight_3, dot2_wrapping(data_5, weight_2, acc_1));
    const int32_t data_6 = load_i8x4(&data[8]);
    const int32_t weight_4 = load_i16x2_aligned(&weight[8]);
    const int32_t weight_5 = load_i16x2_aligned(&weight[10]);
    const int32_t data_7 = odds_i8(data_6);
    const int32_t data_8 = evens_i8(data_6);
    acc_0 = dot2(data_7, evens_i8(weight_5), dot2(data_8, evens_i8(weight_4), acc_0));
    acc_1 = dot2_wrapping(data_7, weight_5, dot2_wrapping(data_8, weight_4, acc_1));
    const int32_t data_9 = load_i8x4(&data[12]);
    const int32_t weight_6 = load_i16x2_aligned(&weight[12]);
    const int32_t weight_7 = load_i16x2_aligned(&weight[14]);
    const int32_t data_10 = odds_i8(data_9);
    const int32_t data_11 = evens_i8(data_9);
    acc_0 = dot2(data_10, evens_i8(weight_7), dot2(data_11, evens_i8(weight_6), acc_0));
    acc_1 = dot2_wrapping(data_10, weight_7, dot2_wrapping(data_11, weight_6, acc_1));
    const int32_t data_12 = load_i8x4(&data[16]);
    const int32_t weight_8 = load_i16x2_aligned(&weight[16]);
    const int32_t weight_9 = load_i16x2_aligned(&weight[18]);
    const int32_t data_13 = odds_i8(data_12);
    const int32_t data_14 = evens_i8(data_12);
    acc_0 = dot2(data_13, evens_i8(weight_9), dot2(data_14, evens_i8(weight_8), acc_0));
    acc_1 = dot2_wrapping(data_13, weight_9, dot2_wrapping(data_14, weight_8, acc_1));
    acc_1 = (int32_t)((int64_t)acc_1 - (int64_t)acc_0) >> 8;
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0 * 2, 1518500250, (acc_0 >> 31) + 448));
    out[1] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1 * 2, 1518500250, (acc_1 >> 31) + 448));
}
