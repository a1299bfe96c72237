/* cortex-m4, speed: copies, words (direct)
 *
 * x: int8[2, 8]
 * y: int8[2, 8]
 * joined[n < 2, i < 16]: int8 = select(i < 8, x[n, i - 0], y[n, i - 8])
 *
 * set_kind(i, vectorized)
 */
NET_KERNEL concat_v0(const int8_t *x, const int8_t *y, int8_t *joined)
{
    /* joined[n, i] = select(i < 8, x[n, i - 0], y[n, i - 8]) */
    for (int32_t n = 0; n < 2; ++n) {
        store_i8x4(&joined[n * 16], load_i8x4(&x[n * 8]));
        store_i8x4(&joined[n * 16 + 4], load_i8x4(&x[n * 8 + 4]));
        store_i8x4(&joined[n * 16 + 8], load_i8x4(&y[n * 8]));
        store_i8x4(&joined[n * 16 + 12], load_i8x4(&y[n * 8 + 4]));
    }
}
