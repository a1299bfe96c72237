/* rv32imc, speed: matrix bits (packed)
 *
 * data: int8[1, 16]
 * weight: int8[2, 16] constant
 * bias: int32[2] constant
 * acc[p < 1, o < 2]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 16)
 *     # sum_bound = 7398
 *     # smallest_weight = -7
 *     # weight_bits = 4
 * out[p < 1, o < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 7398
 *     # magnitude = 0
 *
 * split(p, (None, 1)) split(o, (None, 2)) split(k, (None, 4, 1)) reorder((p_0, o_0, k_0, k_1, p_1, o_1, k_2))
 * decompose_reduction(acc, k_0) reverse_compute_at(out, o_0) set_scope(acc, register) pack_bits(weight, 4, neighbours)
 * set_kind(p_1_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(o_1,
 * unrolled) set_kind(k_2, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled)
 */
NET_KERNEL dense_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias, int8_t *out)
{
    /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 16) */
    int32_t acc_0, acc_1;
    acc_0 = bias[0];
    acc_1 = bias[1];
    for (int32_t k_tile = 0; k_tile < 4; ++k_tile) {
        const int8_t data_0 = data[k_tile * 4];
        const uint32_t weight_0 = (uint32_t)(int32_t)weight[k_tile * 2];
        acc_0 += (int32_t)data_0 * ((int32_t)(weight_0 << 28U) >> 28);
        const uint32_t weight_1 = (uint32_t)(int32_t)weight[k_tile * 2 + 8];
        acc_1 += (int32_t)data_0 * ((int32_t)(weight_1 << 28U) >> 28);
        const int8_t data_1 = data[k_tile * 4 + 1];
        acc_0 += (int32_t)data_1 * ((int32_t)(weight_0 << 24U) >> 28);
        acc_1 += (int32_t)data_1 * ((int32_t)(weight_1 << 24U) >> 28);
        const int8_t data_2 = data[k_tile * 4 + 2];
        const uint32_t weight_2 = (uint32_t)(int32_t)weight[k_tile * 2 + 1];
        acc_0 += (int32_t)data_2 * ((int32_t)(weight_2 << 28U) >> 28);
        const uint32_t weight_3 = (uint32_t)(int32_t)weight[k_tile * 2 + (8 + 1)];
        acc_1 += (int32_t)data_2 * ((int32_t)(weight_3 << 28U) >> 28);
        const int8_t data_3 = data[k_tile * 4 + 3];
        acc_0 += (int32_t)data_3 * ((int32_t)(weight_2 << 24U) >> 28);
        acc_1 += (int32_t)data_3 * ((int32_t)(weight_3 << 24U) >> 28);
    }
    /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
    out[0] = (int8_t)min_i32(max_i32(high_mac_round(acc_0 * 2, 1518500250, (acc_0 >> 31) + 448) >> 7, -128), 127);
    out[1] = (int8_t)min_i32(max_i32(high_mac_round(acc_1 * 2, 1518500250, (acc_1 >> 31) + 448) >> 7, -128), 127);
}
