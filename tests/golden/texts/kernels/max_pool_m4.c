/* cortex-m4, size: picks (direct)
 *
 * data: int8[1, 4, 4, 4]
 * acc[n < 1, y < 2, x < 2, c < 4]: int32 =
 *     maximum(-128, maximum(int32(data[n, y * 2 + ky, x * 2 + kx, c]) for ky < 2, kx < 2))
 * pool[n < 1, y < 2, x < 2, c < 4]: int8 = int8(acc[n, y, x, c])
 *
 * decompose_reduction(acc, ky) reverse_compute_at(pool, c) set_scope(acc, register) set_kind(kx, unrolled) set_kind(ky,
 * unrolled) set_kind(c, vectorized)
 */
NET_KERNEL max_pool2d_v0(const int8_t *data, int8_t *pool)
{
    for (int32_t y = 0; y < 2; ++y) {
        for (int32_t x = 0; x < 2; ++x) {
            /* accumulate: acc[n, y, x, c] = maximum(-128, maximum(data[n, y * 2 + ky, x * 2 + kx, c]
             *     for ky < 2, kx < 2)) */
            int32_t acc;
            acc = load_i8x4(&data[y * (2 * 16) + x * (2 * 4)]);
            acc = max_i8x4(acc, load_i8x4(&data[y * (2 * 16) + x * (2 * 4) + 4]));
            acc = max_i8x4(acc, load_i8x4(&data[y * (2 * 16) + x * (2 * 4) + 16]));
            acc = max_i8x4(acc, load_i8x4(&data[y * (2 * 16) + x * (2 * 4) + (16 + 4)]));
            /* pool[n, y, x, c] = acc[n, y, x, c] */
            store_i8x4(&pool[y * 8 + x * 4], acc);
        }
    }
}
