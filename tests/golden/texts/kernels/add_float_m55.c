/* cortex-m55, speed: several (direct)
 *
 * a: float32[8]
 * b: float32[8]
 * out[i0 < 8]: float32 = a[i0] + b[i0]
 *     # magnitude = 0
 *
 * split(i0, (None, 4)) set_kind(i0_1, unrolled) select_fma() select_conversion() select_saturation()
 */
NET_KERNEL add_v0(const float *a, const float *b, float *out)
{
    /* add */
    for (int32_t i0_tile = 0; i0_tile < 2; ++i0_tile) {
        out[i0_tile * 4] = a[i0_tile * 4] + b[i0_tile * 4];
        out[i0_tile * 4 + 1] = a[i0_tile * 4 + 1] + b[i0_tile * 4 + 1];
        out[i0_tile * 4 + 2] = a[i0_tile * 4 + 2] + b[i0_tile * 4 + 2];
        out[i0_tile * 4 + 3] = a[i0_tile * 4 + 3] + b[i0_tile * 4 + 3];
    }
}
