/* cortex-m4+tensor16, speed: matrix unit (direct)
 *
 * data: int8[64, 16]
 * weight: int8[40, 16] constant
 * bias: int32[40] constant
 * acc[p < 64, o < 40]: int32 = bias[o] + sum(int32(data[p, k]) * int32(weight[o, k]) for k < 16)
 *     # sum_bound = 154400
 *     # smallest_weight = -99
 * out[p < 64, o < 40]: int8 =
 *     int8(min(max(high_mac_round(acc[p, o] << 1, 1518500250, (acc[p, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 154400
 *     # magnitude = 0
 *
 * split(p, (None, 16)) split(o, (None, 10)) split(k, (None, 16)) reorder((p_0, o_0, k_0, p_1, o_1, k_1))
 * decompose_reduction(acc, k_0) cache_read(acc, weight, unit_weight) cache_read(acc, data, unit_input)
 * compute_at(data_unit_input, k_0) set_scope(acc, unit_sums) cache_read(out, acc, workspace)
 * reverse_compute_at(acc_workspace, o_0) reverse_compute_at(out, p_0) tensorize(weight_unit_weight_i0, unit_load_weight)
 * tensorize(data_unit_input_i0_1, unit_load_input) tensorize(p_1_init, unit_load_sums) tensorize(p_1, unit_matmul)
 * tensorize(acc_workspace_i0_1, unit_store_sums) align_rows(weight_unit_weight, 16) align_rows(data_unit_input, 16)
 * double_buffer(data_unit_input, k_0) align_rows(acc, 16) double_buffer(acc, o_0) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL pointwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out, int32_t *acc_workspace)
{
    unit_signal(1, 0, 0, 2);
    unit_signal(1, 0, 1, 1);
    unit_signal(2, 1, 2, 2);
    unit_wait(1, 0, 1, 1);
    unit_load_weight(0, &weight[0], 40, 16, 16, 16);
    unit_signal(0, 1, 1, 1);
    unit_wait(0, 1, 1, 1);
    for (int32_t p_tile = 0; p_tile < 4; ++p_tile) {
        for (int32_t o_tile = 0; o_tile < 4; ++o_tile) {
            unit_wait(2, 1, 2, 1);
            unit_load_sums(o_tile % 2 * 192, &bias[o_tile * 10], 16, 10, 12, 0);
            unit_wait(1, 0, 0, 1);
            unit_load_input(o_tile % 2 * 256, &data[p_tile * (16 * 16)], 16, 16, 16, 16);
            unit_signal(0, 1, 0, 1);
            unit_wait(0, 1, 0, 1);
            unit_matmul(o_tile % 2 * 192, o_tile % 2 * 256, o_tile * 160, 16, 10, 16, 12, 16, 16);
            unit_signal(1, 0, 0, 1);
            unit_signal(1, 2, 2, 1);
            unit_wait(1, 2, 2, 1);
            /* accumulate: acc[p, o] = bias[o] + sum(data[p, k] * weight[o, k] for k < 16) */
            unit_store_sums(&acc_workspace[o_tile * 10], o_tile % 2 * 192, 16, 10, 40, 12);
            unit_signal(2, 1, 2, 1);
        }
        unit_barrier();
        /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
        for (int32_t p = 0; p < 16; ++p) {
            for (int32_t o = 0; o < 40; ++o) {
                const int32_t acc_workspace_0 = acc_workspace[p * 40 + o];
                out[p_tile * (16 * 40) + p * 40 + o] =
                    (int8_t)saturate_i8_shr_7(high_mac_round(acc_workspace_0 * 2, 1518500250,
                    (acc_workspace_0 >> 31) + 448));
            }
        }
    }
    unit_signal(1, 0, 1, 1);
    unit_wait(1, 0, 0, 2);
    unit_wait(1, 0, 1, 1);
    unit_wait(2, 1, 2, 2);
    unit_barrier();
}
