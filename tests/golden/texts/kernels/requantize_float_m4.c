/* cortex-m4, size: generic (direct)
 *
 * x: int32[5]
 * out[i0 < 5]: int8 =
 *     int8(int32(min(max(float32(x[i0]) * float32(0.125), float32(-131)), float32(124)) + float32(12582912) - float32(12582912)) + 3)
 *     # magnitude = 0
 *
 * apply_identities((clamp_after_rounding, zero_point_saturate_i8)) select_intrinsics((saturate_i16, saturate_i8))
 */
NET_KERNEL requantize_float_v0(const int32_t *x, int8_t *out)
{
    /* requantize_float: clamp(rint(x * 0.125) + 3, -128, 127) */
    for (int32_t i0 = 0; i0 < 5; ++i0) {
        out[i0] = (int8_t)saturate_i8(saturate_i16(nearest_i32((float)x[i0] * 0.125f)) + 3);
    }
}
