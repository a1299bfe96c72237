/* rv64gcv, speed: matrix strips (direct)
 *
 * data: int8[9, 8]
 * weight: int8[40, 8] constant
 * bias: int32[40] constant
 * acc[p < 9, o < 40]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 8)
 *     # sum_bound = 82921
 *     # smallest_weight = -99
 * out[p < 9, o < 40]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 82921
 *     # magnitude = 0
 *
 * transform_layout(weight, ((None), (None)), (1, 0)) split(p, (None, 3)) split(k, (None, 4)) reorder((p_0, o, k_0, k_1,
 * p_1)) decompose_reduction(acc, k_0) reverse_compute_at(out, o) set_scope(acc, register) set_kind(p_1_init, unrolled)
 * set_kind(k_1, unrolled) set_kind(p_1, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled) set_kind(o,
 * vectorized) annotate_loop(o, lanes, 32) annotate_loop(o, floats, 2) annotate_loop(o, scalable, 1)
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out)
{
    for (int32_t p_tile = 0; p_tile < 3; ++p_tile) {
        for (int32_t o = 0; o < 40;) {
            /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 8) */
            const int32_t lanes = vector_length_x32(40 - o);
            int32xvscalex32 acc_0, acc_1, acc_2;
            const int32xvscalex32 bias_0 = load_i32_i32xvscalex32(&bias[o], lanes);
            acc_0 = bias_0;
            acc_1 = bias_0;
            acc_2 = bias_0;
            for (int32_t k_tile = 0; k_tile < 2; ++k_tile) {
                const int16xvscalex32 weight_0 = load_i8_i16xvscalex32(&weight[k_tile * (4 * 40) + o], lanes);
                acc_0 = mac_short_n_i32xvscalex32(acc_0, weight_0, (int32_t)data[p_tile * (3 * 8) + k_tile * 4],
                    lanes);
                acc_1 = mac_short_n_i32xvscalex32(acc_1, weight_0, (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + 8],
                    lanes);
                acc_2 = mac_short_n_i32xvscalex32(acc_2, weight_0,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + 2 * 8], lanes);
                const int16xvscalex32 weight_1 = load_i8_i16xvscalex32(&weight[k_tile * (4 * 40) + o + 40], lanes);
                acc_0 = mac_short_n_i32xvscalex32(acc_0, weight_1, (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + 1],
                    lanes);
                acc_1 = mac_short_n_i32xvscalex32(acc_1, weight_1,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (8 + 1)], lanes);
                acc_2 = mac_short_n_i32xvscalex32(acc_2, weight_1,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (2 * 8 + 1)], lanes);
                const int16xvscalex32 weight_2 =
                    load_i8_i16xvscalex32(&weight[k_tile * (4 * 40) + o + 2 * 40], lanes);
                acc_0 = mac_short_n_i32xvscalex32(acc_0, weight_2, (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + 2],
                    lanes);
                acc_1 = mac_short_n_i32xvscalex32(acc_1, weight_2,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (8 + 2)], lanes);
                acc_2 = mac_short_n_i32xvscalex32(acc_2, weight_2,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (2 * 8 + 2)], lanes);
                const int16xvscalex32 weight_3 =
                    load_i8_i16xvscalex32(&weight[k_tile * (4 * 40) + o + 3 * 40], lanes);
                acc_0 = mac_short_n_i32xvscalex32(acc_0, weight_3, (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + 3],
                    lanes);
                acc_1 = mac_short_n_i32xvscalex32(acc_1, weight_3,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (8 + 3)], lanes);
                acc_2 = mac_short_n_i32xvscalex32(acc_2, weight_3,
                    (int32_t)data[p_tile * (3 * 8) + k_tile * 4 + (2 * 8 + 3)], lanes);
            }
            /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
            store_saturated_i8_i32xvscalex32(&out[p_tile * (3 * 40) + o],
                add_n_i32xvscalex32(right_round_n_i32xvscalex32(add_i32xvscalex32(doubling_high_mul_n_i32xvscalex32(acc_0, 1518500250, lanes), right_n_i32xvscalex32(acc_0, 31, lanes), lanes), 7, lanes), 3, lanes), lanes);
            store_saturated_i8_i32xvscalex32(&out[p_tile * (3 * 40) + o + 40],
                add_n_i32xvscalex32(right_round_n_i32xvscalex32(add_i32xvscalex32(doubling_high_mul_n_i32xvscalex32(acc_1, 1518500250, lanes), right_n_i32xvscalex32(acc_1, 31, lanes), lanes), 7, lanes), 3, lanes), lanes);
            store_saturated_i8_i32xvscalex32(&out[p_tile * (3 * 40) + o + 2 * 40],
                add_n_i32xvscalex32(right_round_n_i32xvscalex32(add_i32xvscalex32(doubling_high_mul_n_i32xvscalex32(acc_2, 1518500250, lanes), right_n_i32xvscalex32(acc_2, 31, lanes), lanes), 7, lanes), 3, lanes), lanes);
            o += lanes;
        }
    }
}
