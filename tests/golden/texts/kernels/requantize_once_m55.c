/* cortex-m55, speed: lanes (direct)
 *
 * x: int32[3, 5]
 * multiplier: int8[5] constant
 * out[i0 < 3, i1 < 5]: int8 =
 *     int8(min(max(high_mac(x[i0, i1] << 1, 1518500250, (1 << 0 - int32(multiplier[i1]) - 1) * 7) >> 0 - int32(multiplier[i1]), -128), 127))
 *     # magnitude = 0
 *
 * set_kind(i1, vectorized) annotate_loop(i1, lanes, 4) annotate_loop(i1, floats, 2) select_intrinsics((saturate_i8))
 */
NET_KERNEL requantize_v0(const int32_t *x, const int8_t *restrict multiplier, int8_t *out)
{
    /* requantize: clamp(round(x * 1518500250 * 2**(shift - 31)) + 3, -128, 127) */
    for (int32_t i0 = 0; i0 < 3; ++i0) {
        const int32x4 all3 = dup_i32x4(3);
        store_saturated_i8_i32x4(&out[i0 * 5],
            add_i32x4(shift_round_i32x4(doubling_high_floor_n_i32x4(load_i32_i32x4(&x[i0 * 5]), 1518500250),
            load_i8_i32x4(&multiplier[0])), all3));
        const int32x4 all3_end = dup_i32x4(3);
        store_saturated_i8_i32x4_first(&out[i0 * 5 + 4],
            add_i32x4(shift_round_i32x4(doubling_high_floor_n_i32x4(load_i32_i32x4_first(&x[i0 * 5 + 4], 1),
            1518500250), load_i8_i32x4_first(&multiplier[4], 1)), all3_end), 1);
    }
}
