/* x86-64-v3, speed: vectors (direct)
 *
 * data: float32[3, 11, 1]
 * largest[n < 3, i < 1]: float32 = max(float32(-inf), max(data[n, k, i] for k < 11))
 * power[n < 3, c < 11, i < 1]: float32 =
 *     select(data[n, c, i] - largest[n, i] < float32(-87), float32(0), (((((float32(0.00829027221) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.0418981612)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.166676387)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.499991477)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.999999702)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(1)) * reinterpret((reinterpret((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912)) << uint32(23)) + uint32(1065353216)))
 * total[n < 3, i < 1]: float32 = sum(power[n, j, i] for j < 11)
 * factor[n < 3, i < 1]: float32 = float32(1) / total[n, i]
 * softmax[n < 3, c < 11, i < 1]: float32 = power[n, c, i] * factor[n, i]
 *
 * decompose_reduction(largest, k) reverse_compute_at(power, i) set_scope(largest, register) decompose_reduction(total, j)
 * reverse_compute_at(factor, i_total) set_scope(total, register) set_kind(c_1, vectorized) annotate_loop(c_1, lanes, 8)
 * annotate_loop(c_1, floats, 1) set_kind(c_softmax, vectorized) annotate_loop(c_softmax, lanes, 8)
 * annotate_loop(c_softmax, floats, 1)
 */
NET_KERNEL softmax_v0(const float *data, float *softmax, float *factor, float *power)
{
    for (int32_t n = 0; n < 3; ++n) {
        /* largest[n, i] = max(-inf, max(data[n, k, i] for k < 11)) */
        float largest;
        largest = -INFINITY;
        for (int32_t k = 0; k < 11; ++k) {
            largest = max_f32(data[n * 11 + k], largest);
        }
        /* power */
        const float32x8 number_0 = dup_f32x8(-87.0f);
        const float32x8 number_1 = dup_f32x8(0.0f);
        const float32x8 number_2 = dup_f32x8(0.008290272f);
        const float32x8 number_3 = dup_f32x8(1.442695f);
        const float32x8 number_4 = dup_f32x8(1.2582912e+07f);
        const float32x8 number_5 = dup_f32x8(0.6931472f);
        const float32x8 number_6 = dup_f32x8(0.04189816f);
        const float32x8 number_7 = dup_f32x8(0.16667639f);
        const float32x8 number_8 = dup_f32x8(0.49999148f);
        const float32x8 number_9 = dup_f32x8(0.9999997f);
        const float32x8 number_10 = dup_f32x8(1.0f);
        const float32x8 dup_f32x8_0 = dup_f32x8(largest);
        const float32x8 data_0 = sub_f32x8(load_f32_f32x8(&data[n * 11]), dup_f32x8_0);
        const float32x8 data_1 = add_f32x8(mul_f32x8(data_0, number_3), number_4);
        const float32x8 data_2 = sub_f32x8(data_0, mul_f32x8(sub_f32x8(data_1, number_4), number_5));
        store_f32_f32x8(&power[n * 11],
            select_lt_f32x8(data_0, number_0, number_1,
            mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(number_2, data_2), number_6), data_2), number_7), data_2), number_8), data_2), number_9), data_2), number_10), of_bits_f32x8(add_n_i32x8(shl_n_i32x8(bits_i32x8(data_1), 23), 1065353216)))));
        const float32x8 data_3 = sub_f32x8(load_f32_f32x8(&data[n * 11 + 3]), dup_f32x8_0);
        const float32x8 data_4 = add_f32x8(mul_f32x8(data_3, number_3), number_4);
        const float32x8 data_5 = sub_f32x8(data_3, mul_f32x8(sub_f32x8(data_4, number_4), number_5));
        store_f32_f32x8(&power[n * 11 + 3],
            select_lt_f32x8(data_3, number_0, number_1,
            mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(add_f32x8(mul_f32x8(number_2, data_5), number_6), data_5), number_7), data_5), number_8), data_5), number_9), data_5), number_10), of_bits_f32x8(add_n_i32x8(shl_n_i32x8(bits_i32x8(data_4), 23), 1065353216)))));
    }
    for (int32_t n = 0; n < 3; ++n) {
        /* total[n, i] = sum(power[n, j, i] for j < 11) */
        float total;
        total = 0.0f;
        for (int32_t j = 0; j < 11; ++j) {
            total += power[n * 11 + j];
        }
        /* factor[n, i] = 1.0 / total[n, i] */
        factor[n] = 1.0f / total;
    }
    /* softmax[n, c, i] = power[n, c, i] * factor[n, i] */
    for (int32_t n = 0; n < 3; ++n) {
        const float32x8 factor_0 = dup_f32x8(factor[n]);
        store_f32_f32x8(&softmax[n * 11], mul_f32x8(load_f32_f32x8(&power[n * 11]), factor_0));
        store_f32_f32x8(&softmax[n * 11 + 3], mul_f32x8(load_f32_f32x8(&power[n * 11 + 3]), factor_0));
    }
}
