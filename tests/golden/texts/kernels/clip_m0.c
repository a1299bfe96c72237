/* cortex-m0, size: generic (direct)
 *
 * x: int8[5]
 * out[i0 < 5]: int8 = int8(min(max(int32(x[i0]), -128), 100))
 *     # magnitude = 0
 *
 */
NET_KERNEL clip_v0(const int8_t *x, int8_t *out)
{
    /* clip */
    for (int32_t i0 = 0; i0 < 5; ++i0) {
        out[i0] = (int8_t)min_i32((int32_t)x[i0], 100);
    }
}
