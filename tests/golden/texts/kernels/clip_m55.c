/* cortex-m55, speed: lanes (direct)
 *
 * x: int8[8]
 * out[i0 < 8]: int8 = int8(min(max(int32(x[i0]), -128), 100))
 *     # magnitude = 0
 *
 * set_kind(i0, vectorized) annotate_loop(i0, lanes, 4) annotate_loop(i0, floats, 2)
 */
NET_KERNEL clip_v0(const int8_t *x, int8_t *out)
{
    /* clip */
    const int32x4 all100 = dup_i32x4(100);
    for (int32_t i0 = 0; i0 < 2; ++i0) {
        store_i8_i32x4(&out[i0 * 4], min_i32x4(load_i8_i32x4(&x[i0 * 4]), all100));
    }
}
