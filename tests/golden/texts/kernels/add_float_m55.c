/* cortex-m55, speed: lanes (direct)
 *
 * a: float32[8]
 * b: float32[8]
 * out[i0 < 8]: float32 = a[i0] + b[i0]
 *     # magnitude = 0
 *
 * set_kind(i0, vectorized) annotate_loop(i0, lanes, 4) annotate_loop(i0, floats, 2)
 */
NET_KERNEL add_v0(const float *a, const float *b, float *out)
{
    /* add */
    for (int32_t i0 = 0; i0 < 2; ++i0) {
        store_f32_f32x4(&out[i0 * 4], add_f32x4(load_f32_f32x4(&a[i0 * 4]), load_f32_f32x4(&b[i0 * 4])));
    }
}
