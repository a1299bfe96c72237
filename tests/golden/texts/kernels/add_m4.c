/* cortex-m4, size: generic (direct)
 *
 * a: int8[9]
 * b: int8[9]
 * out[i0 < 9]: int8 =
 *     int8(min(max(high_mac_round((int32(a[i0]) - 1 << 19) + (high_mac_round(int32(b[i0]) - -5 << 20 << 1, 1500000000, (int32(b[i0]) - -5 << 20 >> 31) + 1) >> 1) << 1, 1300000000, ((int32(a[i0]) - 1 << 19) + (high_mac_round(int32(b[i0]) - -5 << 20 << 1, 1500000000, (int32(b[i0]) - -5 << 20 >> 31) + 1) >> 1) >> 31) + 917504) >> 18, -128), 127))
 *     # magnitude = 0
 *
 * select_intrinsics((saturate_i8))
 */
NET_KERNEL qadd_v0(const int8_t *a, const int8_t *b, int8_t *out)
{
    /* qadd: clamp(scaled(scaled(a - 1) + scaled(b + 5)) + 3, -128, 127) */
    for (int32_t i0 = 0; i0 < 9; ++i0) {
        const int32_t b_0 = ((int32_t)b[i0] - -5) * 1048576;
        const int32_t a_0 = ((int32_t)a[i0] - 1) * 524288 +
            (high_mac_round(b_0 * 2, 1500000000, (b_0 >> 31) + 1) >> 1);
        out[i0] = (int8_t)saturate_i8(high_mac_round(a_0 * 2, 1300000000, (a_0 >> 31) + 917504) >> 18);
    }
}
