/* cortex-m0, size: depthwise (direct)
 *
 * data: int8[1, 2, 4, 2]
 * weight: int8[2, 2, 2] constant
 * acc[n < 1, y < 1, x < 3, c < 2]: int32 =
 *     sum(int32(data[n, y + ky, x + kx, c]) * int32(weight[ky, kx, c]) for ky < 2, kx < 2)
 * addend: int32[2] constant
 * step: int32[2] constant
 * out[n < 1, y < 1, x < 3, c < 2]: int8 =
 *     int8(min(max((acc[n, y, x, c] * (189794790 >> 16) + (acc[n, y, x, c] * int32(int16(189794790)) >> 13) + addend[c] - (acc[n, y, x, c] * (189794790 >> 16) + (acc[n, y, x, c] * int32(int16(189794790)) >> 13) + addend[c] >> 31 & step[c]) >> 18) + 7 >> 1, -128), 127))
 *     # magnitude = 0
 *
 * split(x, (None, 2)) reorder((x_0, c, ky, kx, x_1)) decompose_reduction(acc, ky) reverse_compute_at(out, c)
 * set_scope(acc, register) set_kind(kx, unrolled) set_kind(ky, unrolled) set_kind(x_1, unrolled) set_kind(x_1_init,
 * unrolled) set_kind(x_out_1, unrolled) select_intrinsics((clamp8))
 */
NET_KERNEL depthwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict addend,
    const int32_t *restrict step, int8_t *out)
{
    for (int32_t c = 0; c < 2; ++c) {
        /* accumulate: acc[n, y, x, c] = sum(data[n, y + ky, x + kx, c] * weight[ky, kx, c] for ky <
         *     2, kx < 2) */
        int32_t acc_0, acc_1;
        acc_0 = 0;
        acc_1 = 0;
        const int8_t weight_0 = weight[c];
        acc_0 += (int32_t)data[c] * (int32_t)weight_0;
        const int8_t data_0 = data[c + 2];
        acc_1 += (int32_t)data_0 * (int32_t)weight_0;
        const int8_t weight_1 = weight[c + 2];
        acc_0 += (int32_t)data_0 * (int32_t)weight_1;
        acc_1 += (int32_t)data[c + 2 * 2] * (int32_t)weight_1;
        const int8_t weight_2 = weight[c + 4];
        acc_0 += (int32_t)data[c + 8] * (int32_t)weight_2;
        const int8_t data_1 = data[c + (8 + 2)];
        acc_1 += (int32_t)data_1 * (int32_t)weight_2;
        const int8_t weight_3 = weight[c + (4 + 2)];
        acc_0 += (int32_t)data_1 * (int32_t)weight_3;
        acc_1 += (int32_t)data[c + (8 + 2 * 2)] * (int32_t)weight_3;
        /* requantize_split_away: clamp(floor((u - (u < 0) * step) / 2**19 + 1 / 2) + 3, -128, 127),
         *     u = acc * high(multiplier) + floor(floor(acc) * low(multiplier) / 2**13) + addend */
        const int32_t addend_0 = addend[c];
        const int32_t step_0 = step[c];
        const int32_t addend_1 = acc_0 * 2896 + ((acc_0 * 2534) >> 13) + addend_0;
        out[c] = (int8_t)clamp8((((addend_1 - ((addend_1 >> 31) & step_0)) >> 18) + 7) >> 1);
        const int32_t addend_2 = acc_1 * 2896 + ((acc_1 * 2534) >> 13) + addend_0;
        out[c + 2] = (int8_t)clamp8((((addend_2 - ((addend_2 >> 31) & step_0)) >> 18) + 7) >> 1);
    }
    for (int32_t c = 0; c < 2; ++c) {
        /* accumulate */
        int32_t acc_0;
        acc_0 = 0;
        acc_0 += (int32_t)data[c + 2 * 2] * (int32_t)weight[c];
        acc_0 += (int32_t)data[c + 3 * 2] * (int32_t)weight[c + 2];
        acc_0 += (int32_t)data[c + (8 + 2 * 2)] * (int32_t)weight[c + 4];
        acc_0 += (int32_t)data[c + (8 + 3 * 2)] * (int32_t)weight[c + (4 + 2)];
        /* requantize_split_away */
        const int32_t addend_0 = acc_0 * 2896 + ((acc_0 * 2534) >> 13) + addend[c];
        out[c + 2 * 2] = (int8_t)clamp8((((addend_0 - ((addend_0 >> 31) & step[c])) >> 18) + 7) >> 1);
    }
}
