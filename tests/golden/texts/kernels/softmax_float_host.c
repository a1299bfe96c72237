/* host, size: rows (direct)
 *
 * data: float32[2, 5, 1]
 * largest[n < 2, i < 1]: float32 = max(float32(-inf), max(data[n, k, i] for k < 5))
 * power[n < 2, c < 5, i < 1]: float32 =
 *     select(data[n, c, i] - largest[n, i] < float32(-87), float32(0), (((((float32(0.00829027221) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.0418981612)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.166676387)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.499991477)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(0.999999702)) * (data[n, c, i] - largest[n, i] - ((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912) - float32(12582912)) * float32(0.693147182)) + float32(1)) * reinterpret((reinterpret((data[n, c, i] - largest[n, i]) * float32(1.44269502) + float32(12582912)) << uint32(23)) + uint32(1065353216)))
 * total[n < 2, i < 1]: float32 = sum(power[n, j, i] for j < 5)
 * factor[n < 2, i < 1]: float32 = float32(1) / total[n, i]
 * softmax[n < 2, c < 5, i < 1]: float32 = power[n, c, i] * factor[n, i]
 *
 * compute_at(factor, n_softmax) compute_at(total, n_softmax) compute_at(power, n_softmax) compute_at(largest, n_softmax)
 * set_scope(largest, register) decompose_reduction(largest, k_1) set_scope(total, register) decompose_reduction(total,
 * j_1) set_scope(factor, register)
 */
NET_KERNEL softmax_v0(const float *data, float *softmax, float *power)
{
    for (int32_t n = 0; n < 2; ++n) {
        /* largest[n, i] = max(-inf, max(data[n, k, i] for k < 5)) */
        float largest;
        float total;
        float factor;
        largest = -INFINITY;
        for (int32_t k = 0; k < 5; ++k) {
            largest = max_f32(data[n * 5 + k], largest);
        }
        /* power */
        for (int32_t c = 0; c < 5; ++c) {
            const float data_0 = data[n * 5 + c] - largest;
            power[c] = data_0 < -87.0f ? 0.0f :
                (((((0.008290272f * (data_0 - (data_0 * 1.442695f + 1.2582912e+07f - 1.2582912e+07f) * 0.6931472f) +
                0.04189816f) * (data_0 - (data_0 * 1.442695f + 1.2582912e+07f - 1.2582912e+07f) * 0.6931472f) +
                0.16667639f) * (data_0 - (data_0 * 1.442695f + 1.2582912e+07f - 1.2582912e+07f) * 0.6931472f) +
                0.49999148f) * (data_0 - (data_0 * 1.442695f + 1.2582912e+07f - 1.2582912e+07f) * 0.6931472f) +
                0.9999997f) * (data_0 - (data_0 * 1.442695f + 1.2582912e+07f - 1.2582912e+07f) * 0.6931472f) +
                1.0f) * f32_of_u32((u32_of_f32(data_0 * 1.442695f + 1.2582912e+07f) << 23U) + 1065353216U);
        }
        /* total[n, i] = sum(power[n, j, i] for j < 5) */
        total = 0.0f;
        for (int32_t j = 0; j < 5; ++j) {
            total += power[j];
        }
        /* factor[n, i] = 1.0 / total[n, i] */
        factor = 1.0f / total;
        /* softmax[n, c, i] = power[n, c, i] * factor[n, i] */
        for (int32_t c = 0; c < 5; ++c) {
            softmax[n * 5 + c] = power[c] * factor;
        }
    }
}
