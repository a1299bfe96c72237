/* cortex-m0, size: generic (direct)
 *
 * x: int32[5]
 * out[i0 < 5]: int8 = int8(min(max(high_mac_round(x[i0] << 1, 1518500250, (x[i0] >> 31) + 448) >> 7, -128), 127))
 *     # magnitude = 0
 *
 * apply_identities((high_mac_round_by_halves)) select_intrinsics((clamp8))
 */
NET_KERNEL requantize_v0(const int32_t *x, int8_t *out)
{
    /* requantize: clamp(round(x * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    for (int32_t i0 = 0; i0 < 5; ++i0) {
        const int32_t x_0 = x[i0];
        out[i0] = (int8_t)clamp8((high_mul(x_0, 1518500250) + ((x_0 >> 31) + 448)) >> 7);
    }
}
