/* cortex-m4, size: generic (direct)
 *
 * data: int8[3, 5]
 * moved[i0 < 5, i1 < 3]: int8 = data[i1, i0]
 *
 */
NET_KERNEL transpose_v0(const int8_t *data, int8_t *moved)
{
    /* moved[i0, i1] = data[i1, i0] */
    for (int32_t i0 = 0; i0 < 5; ++i0) {
        for (int32_t i1 = 0; i1 < 3; ++i1) {
            moved[i0 * 3 + i1] = data[i1 * 5 + i0];
        }
    }
}
