/* x86-64-v3, speed: vectors (direct)
 *
 * x: float32[16]
 * out[i0 < 16]: float32 = float32(1) / (exp(-x[i0]) + float32(1))
 *     # magnitude = 0
 *
 * select_functions(True) set_kind(i0, vectorized) annotate_loop(i0, lanes, 8) annotate_loop(i0, floats, 1)
 */
NET_KERNEL sigmoid_v0(const float *x, float *out)
{
    /* sigmoid */
    const float32x8 number_0 = dup_f32x8(1.0f);
    const float32x8 number_1 = dup_f32x8(0.00019551709f);
    const float32x8 number_2 = dup_f32x8(89.0f);
    const float32x8 number_3 = dup_f32x8(-104.0f);
    const float32x8 number_4 = dup_f32x8(-1.0f);
    const float32x8 number_5 = dup_f32x8(0.7213475f);
    const float32x8 number_6 = dup_f32x8(1.2582912e+07f);
    const float32x8 number_7 = dup_f32x8(-6.389237e-05f);
    const float32x8 number_8 = dup_f32x8(-1.3862305f);
    const float32x8 number_9 = dup_f32x8(0.0014114871f);
    const float32x8 number_10 = dup_f32x8(0.008337056f);
    const float32x8 number_11 = dup_f32x8(0.04166054f);
    const float32x8 number_12 = dup_f32x8(0.16666572f);
    const float32x8 number_13 = dup_f32x8(0.5000005f);
    for (int32_t i0 = 0; i0 < 2; ++i0) {
        const float32x8 x_0 = min_f32x8(number_2,
            max_f32x8(number_3, mul_f32x8(load_f32_f32x8(&x[i0 * 8]), number_4)));
        const float32x8 x_1 = add_f32x8(mul_f32x8(x_0, number_5), number_6);
        const float32x8 x_2 = sub_f32x8(x_1, number_6);
        const float32x8 x_3 = fma_f32x8(x_2, number_7, fma_f32x8(x_2, number_8, x_0));
        const float32x8 x_4 = of_bits_f32x8(add_n_i32x8(shl_n_i32x8(bits_i32x8(x_1), 23), 1065353216));
        store_f32_f32x8(&out[i0 * 8],
            div_f32x8(number_0, add_f32x8(mul_f32x8(mul_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(fma_f32x8(number_1, x_3, number_9), x_3, number_10), x_3, number_11), x_3, number_12), x_3, number_13), x_3, number_0), x_3, number_0), x_4), x_4), number_0)));
    }
}
