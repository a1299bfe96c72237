/* cortex-m4, speed: matrix float (direct)
 *
 * data: float32[1, 6]
 * weight: float32[2, 6] constant
 * bias: float32[2] constant
 * acc[p < 1, o < 2]: float32 = bias[o] + sum(data[p, k] * weight[o, k] for k < 6)
 * out[p < 1, o < 2]: float32 = select(acc[p, o] < float32(0), float32(0), acc[p, o])
 *     # magnitude = 1
 *
 * transform_layout(weight, ((None, 2), (None)), (0, 2, 1)) split(p, (None, 1)) split(o, (None, 2)) split(k, (None, 3, 1))
 * reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2)) decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc,
 * register) set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled)
 * set_kind(o_1, unrolled) set_kind(k_2, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled)
 * apply_identities((fused_product))
 */
NET_KERNEL dense_v1(const float *data, const float *restrict weight, const float *restrict bias, float *out)
{
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 6) */
    float acc_0, acc_1;
    acc_0 = bias[0];
    acc_1 = bias[1];
    for (int32_t k_tile = 0; k_tile < 2; ++k_tile) {
        const float data_0 = data[k_tile * 3];
        acc_0 = fmaf(data_0, weight[k_tile * (3 * 2)], acc_0);
        acc_1 = fmaf(data_0, weight[k_tile * (3 * 2) + 1], acc_1);
        const float data_1 = data[k_tile * 3 + 1];
        acc_0 = fmaf(data_1, weight[k_tile * (3 * 2) + 2], acc_0);
        acc_1 = fmaf(data_1, weight[k_tile * (3 * 2) + (2 + 1)], acc_1);
        const float data_2 = data[k_tile * 3 + 2];
        acc_0 = fmaf(data_2, weight[k_tile * (3 * 2) + 2 * 2], acc_0);
        acc_1 = fmaf(data_2, weight[k_tile * (3 * 2) + (2 * 2 + 1)], acc_1);
    }
    /* relu */
    out[0] = acc_0 < 0.0f ? 0.0f : acc_0;
    out[1] = acc_1 < 0.0f ? 0.0f : acc_1;
}
