/* cortex-m0, size: generic (direct)
 *
 * data: int8[1, 16, 2]
 * acc[n < 1, c < 2]: int32 = sum(int32(data[n, k, c]) for k < 16)
 * pool[n < 1, c < 2]: int8 =
 *     int8(truncdiv(select(acc[n, c] > 0, acc[n, c] + truncdiv(16, 2), acc[n, c] - truncdiv(16, 2)), 16))
 *
 * decompose_reduction(acc, k) reverse_compute_at(pool, c) set_scope(acc, register)
 */
NET_KERNEL avg_pool2d_v0(const int8_t *data, int8_t *pool)
{
    for (int32_t c = 0; c < 2; ++c) {
        /* accumulate: acc[n, c] = sum(data[n, k, c] for k < 16) */
        int32_t acc;
        acc = 0;
        for (int32_t k = 0; k < 16; ++k) {
            acc += (int32_t)data[k * 2 + c];
        }
        /* pool[n, c] = truncdiv(select(acc[n, c] > 0, acc[n, c] + truncdiv(16, 2), acc[n, c] -
         *     truncdiv(16, 2)), 16) */
        pool[c] = (int8_t)((acc > 0 ? acc + 8 : acc - 8) / 16);
    }
}
