/* cortex-m4, size: generic (direct)
 *
 * x: int32[3, 5]
 * multiplier: int8[5] constant
 * out[i0 < 3, i1 < 5]: int8 =
 *     int8(min(max(high_mac_round(x[i0, i1] << 1, 1518500250, (x[i0, i1] >> 31) + (1 << 0 - int32(multiplier[i1]) - 1) * 7) >> 0 - int32(multiplier[i1]), -128), 127))
 *     # magnitude = 0
 *
 * apply_identities((split_rounding_high_mac_round_plus)) select_intrinsics((saturate_i8_shr_1))
 */
NET_KERNEL requantize_v0(const int32_t *x, const int8_t *restrict multiplier, int8_t *out)
{
    /* requantize: clamp(round(x * 1518500250 * 2**(shift - 31)) + 3, -128, 127) */
    for (int32_t i0 = 0; i0 < 3; ++i0) {
        for (int32_t i1 = 0; i1 < 5; ++i1) {
            const int32_t x_0 = x[i0 * 5 + i1];
            out[i0 * 5 + i1] = (int8_t)saturate_i8_shr_1(((high_mul_round(x_0 * 2, 1518500250) +
                (x_0 >> 31)) >> (-(int32_t)multiplier[i1] - 1)) + 7);
        }
    }
}
