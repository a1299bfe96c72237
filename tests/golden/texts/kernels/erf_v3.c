/* x86-64-v3, speed: vectors (direct)
 *
 * x: float32[11]
 * out[i0 < 11]: float32 = erf(x[i0])
 *     # magnitude = 0
 *
 * select_functions(True) set_kind(i0, vectorized) annotate_loop(i0, lanes, 8) annotate_loop(i0, floats, 1)
 */
NET_KERNEL erf_v0(const float *x, float *out)
{
    /* erf */
    const float32x8 number_0 = dup_f32x8(3.75f);
    const float32x8 number_1 = dup_f32x8(-3.75f);
    const float32x8 number_2 = dup_f32x8(2.2119307e-08f);
    const float32x8 number_3 = dup_f32x8(-2.0225673e-06f);
    const float32x8 number_4 = dup_f32x8(0.0001323993f);
    const float32x8 number_5 = dup_f32x8(0.0031412495f);
    const float32x8 number_6 = dup_f32x8(0.048727777f);
    const float32x8 number_7 = dup_f32x8(0.18566012f);
    const float32x8 number_8 = dup_f32x8(1.1283791f);
    const float32x8 number_9 = dup_f32x8(0.00083297875f);
    const float32x8 number_10 = dup_f32x8(0.01317633f);
    const float32x8 number_11 = dup_f32x8(0.10914592f);
    const float32x8 number_12 = dup_f32x8(0.4978693f);
    const float32x8 number_13 = dup_f32x8(1.0f);
    const float32x8 x_0 = min_f32x8(number_0, max_f32x8(number_1, load_f32_f32x8(&x[0])));
    const float32x8 x_1 = mul_f32x8(x_0, x_0);
    store_f32_f32x8(&out[0], div_f32x8(mul_f32x8(x_0,
        fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(number_2, x_1, number_3), x_1, number_4), x_1,
        number_5), x_1, number_6), x_1, number_7), x_1, number_8)),
        fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(number_9, x_1, number_10), x_1, number_11), x_1, number_12), x_1,
        number_13)));
    const float32x8 number_0_end = dup_f32x8(3.75f);
    const float32x8 number_1_end = dup_f32x8(-3.75f);
    const float32x8 number_2_end = dup_f32x8(2.2119307e-08f);
    const float32x8 number_3_end = dup_f32x8(-2.0225673e-06f);
    const float32x8 number_4_end = dup_f32x8(0.0001323993f);
    const float32x8 number_5_end = dup_f32x8(0.0031412495f);
    const float32x8 number_6_end = dup_f32x8(0.048727777f);
    const float32x8 number_7_end = dup_f32x8(0.18566012f);
    const float32x8 number_8_end = dup_f32x8(1.1283791f);
    const float32x8 number_9_end = dup_f32x8(0.00083297875f);
    const float32x8 number_10_end = dup_f32x8(0.01317633f);
    const float32x8 number_11_end = dup_f32x8(0.10914592f);
    const float32x8 number_12_end = dup_f32x8(0.4978693f);
    const float32x8 number_13_end = dup_f32x8(1.0f);
    const float32x8 x_2 = min_f32x8(number_0_end, max_f32x8(number_1_end, load_f32_f32x8_first(&x[8], 3)));
    const float32x8 x_3 = mul_f32x8(x_2, x_2);
    store_f32_f32x8_first(&out[8],
        div_f32x8(mul_f32x8(x_2,
        fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(number_2_end, x_3, number_3_end), x_3,
        number_4_end), x_3, number_5_end), x_3, number_6_end), x_3, number_7_end), x_3, number_8_end)),
        fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(number_9_end, x_3, number_10_end), x_3, number_11_end), x_3,
        number_12_end), x_3, number_13_end)), 3);
}
