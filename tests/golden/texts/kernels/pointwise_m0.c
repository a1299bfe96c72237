/* cortex-m0, speed: matrix (direct)
 *
 * data: int8[2, 3]
 * weight: int8[2, 3] constant
 * acc[p < 2, o < 2]: int32 = sum(int32(data[p, k]) * int32(weight[o, k]) for k < 3)
 *     # sum_bound = 22528
 *     # smallest_weight = -91
 * addend: int32[2] constant
 * step: int32[2] constant
 * out[p < 2, o < 2]: int8 =
 *     int8(min(max((acc[p, o] * (189794790 >> 16) + (acc[p, o] * int32(int16(189794790)) >> 13) + addend[o] - (acc[p, o] * (189794790 >> 16) + (acc[p, o] * int32(int16(189794790)) >> 13) + addend[o] >> 31 & step[o]) >> 18) + 7 >> 1, -128), 127))
 *     # magnitude = 0
 *
 * split(p, (None, 2)) split(o, (None, 2)) split(k, (None, 3, 1)) reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2))
 * decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register) set_kind(p_1_init, unrolled)
 * set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(o_1, unrolled) set_kind(k_2,
 * unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled) select_intrinsics((clamp8))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict addend,
    const int32_t *restrict step, int8_t *out)
{
    /* accumulate: acc[p, o] = sum(data[p, k] * weight[o, k] for k < 3) */
    int32_t acc_0_0, acc_0_1, acc_1_0, acc_1_1;
    acc_0_0 = 0;
    acc_0_1 = 0;
    acc_1_0 = 0;
    acc_1_1 = 0;
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
    /* requantize_split_away: clamp(floor((u - (u < 0) * step) / 2**19 + 1 / 2) + 3, -128, 127),
     *     u = acc * high(multiplier) + floor(floor(acc) * low(multiplier) / 2**13) + addend */
    const int32_t addend_0 = addend[0];
    const int32_t step_0 = step[0];
    const int32_t addend_1 = acc_0_0 * 2896 + ((acc_0_0 * 2534) >> 13) + addend_0;
    out[0] = (int8_t)clamp8((((addend_1 - ((addend_1 >> 31) & step_0)) >> 18) + 7) >> 1);
    const int32_t addend_2 = addend[1];
    const int32_t step_1 = step[1];
    const int32_t addend_3 = acc_0_1 * 2896 + ((acc_0_1 * 2534) >> 13) + addend_2;
    out[1] = (int8_t)clamp8((((addend_3 - ((addend_3 >> 31) & step_1)) >> 18) + 7) >> 1);
    const int32_t addend_4 = acc_1_0 * 2896 + ((acc_1_0 * 2534) >> 13) + addend_0;
    out[2] = (int8_t)clamp8((((addend_4 - ((addend_4 >> 31) & step_0)) >> 18) + 7) >> 1);
    const int32_t addend_5 = acc_1_1 * 2896 + ((acc_1_1 * 2534) >> 13) + addend_2;
    out[2 + 1] = (int8_t)clamp8((((addend_5 - ((addend_5 >> 31) & step_1)) >> 18) + 7) >> 1);
}
