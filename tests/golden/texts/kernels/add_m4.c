/* cortex-m4, size: generic (direct)
 *
 * a: int8[9]
 * b: int8[9]
 * out[i0 < 9]: int8 = int8(min(max(int32(a[i0]) * 2539062 + (int32(b[i0]) * 1773516 + 13668549) >> 21, -128), 127))
 *     # magnitude = 0
 *
 * select_intrinsics((saturate_i8_shr_21))
 */
NET_KERNEL sum_floor_v0(const int8_t *a, const int8_t *b, int8_t *out)
{
    /* sum_floor: clamp(floor((a * 2539062 + b * 1773516 + 13668549) / 2**21), -128, 127) */
    for (int32_t i0 = 0; i0 < 9; ++i0) {
        out[i0] = (int8_t)saturate_i8_shr_21((int32_t)a[i0] * 2539062 + ((int32_t)b[i0] * 1773516 + 13668549));
    }
}
