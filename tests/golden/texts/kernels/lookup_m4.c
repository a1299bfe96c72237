/* cortex-m4, size: generic (direct)
 *
 * table: int8[256] constant
 * x: int8[9]
 * out[i0 < 9]: int8 = table[int32(x[i0]) - -128]
 *     # magnitude = 0
 *
 */
NET_KERNEL lookup_v0(const int8_t *x, const int8_t *restrict table, int8_t *out)
{
    /* lookup */
    for (int32_t i0 = 0; i0 < 9; ++i0) {
        out[i0] = table[(int32_t)x[i0] - -128];
    }
}
