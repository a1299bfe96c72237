/* cortex-m55, speed: matrix half (half)
 *
 * data: float32[3, 8]
 * patch[p < 3, k < 8]: float16 = float16(data[p, k])
 * weight: float16[16, 8] constant
 * halves[p < 3, o < 16, r < 1]: float16 = fma(float16(0), fma(patch[p, r * 8 + k] * weight[o, r * 8 + k] for k < 8))
 * bias: float32[16] constant
 * acc[p < 3, o < 16]: float32 = bias[o] + sum(float32(halves[p, o, r]) for r < 1)
 * out[p < 3, o < 16]: float32 = select(acc[p, o] < float32(0), float32(0), acc[p, o])
 *     # magnitude = 1
 *
 * transform_layout(weight, ((None, 2, 2, 4), (None)), (0, 4, 1, 3, 2)) split(p_acc, (None, 3)) split(o_acc, (None, 2, 2,
 * 4)) reorder((p_acc_0, o_acc_0, o_acc_3, p_acc_1, o_acc_1, o_acc_2, r_acc)) decompose_reduction(acc, o_acc_3)
 * compute_at(halves, r_acc) decompose_reduction(halves, k_halves_1) set_scope(halves, register) set_scope(acc, local)
 * compute_at(patch, p_acc_0) reverse_compute_at(out, o_acc_0) annotate_loop(o_acc_3, product, 1) set_kind(k_1, vectorized)
 * annotate_loop(k_1, lanes, 4) annotate_loop(k_1, floats, 3) reorder((o_acc_1_init, o_acc_2_init, o_acc_3_init,
 * p_acc_1_init)) set_kind(p_acc_1_init, unrolled) set_kind(o_acc_3_init, vectorized) annotate_loop(o_acc_3_init, lanes, 4)
 * annotate_loop(o_acc_3_init, floats, 2) reorder((o_out_1, p_out_1)) set_kind(p_out_1, unrolled) set_kind(o_out_1,
 * vectorized) annotate_loop(o_out_1, lanes, 4) annotate_loop(o_out_1, floats, 2)
 */
NET_KERNEL dense_v1(const float *data, const uint16_t *restrict weight, const float *restrict bias, float *out,
    uint16_t *patch)
{
    /* im2col: patch[p, k] = float16(data[p, k]) */
    float acc[48];
    for (int32_t p = 0; p < 3; ++p) {
        narrow_f32_f16(&patch[p * 8], &data[p * 8], 8);
    }
    /* accumulate: acc[p, o] = bias[o] + sum(float32(halves[p, o, r]) for r < 1) */
    for (int32_t o = 0; o < 2; ++o) {
        for (int32_t o_2 = 0; o_2 < 2; ++o_2) {
            const float32x4 bias_0 = load_f32_f32x4(&bias[o * 8 + o_2 * 4]);
            store_f32_f32x4(&acc[o * 8 + o_2 * 4], bias_0);
            store_f32_f32x4(&acc[o * 8 + o_2 * 4 + 16], bias_0);
            store_f32_f32x4(&acc[o * 8 + o_2 * 4 + 2 * 16], bias_0);
        }
    }
    half_product_3x2(&patch[0], &weight[0], &acc[0], 8, 1, 8);
    /* relu */
    const float32x4 number_0 = dup_f32x4(0.0f);
    for (int32_t o = 0; o < 4; ++o) {
        const float32x4 acc_0 = load_f32_f32x4(&acc[o * 4]);
        store_f32_f32x4(&out[o * 4], select_lt_f32x4(acc_0, number_0, number_0, acc_0));
        const float32x4 acc_1 = load_f32_f32x4(&acc[o * 4 + 16]);
        store_f32_f32x4(&out[o * 4 + 16], select_lt_f32x4(acc_1, number_0, number_0, acc_1));
        const float32x4 acc_2 = load_f32_f32x4(&acc[o * 4 + 2 * 16]);
        store_f32_f32x4(&out[o * 4 + 2 * 16], select_lt_f32x4(acc_2, number_0, number_0, acc_2));
    }
}
