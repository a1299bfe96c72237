/* cortex-m4, size: depthwise dsp (direct)
 *
 * data: int8[1, 3, 4, 2]
 * weight: int8[2, 2, 2] constant
 * bias: int32[2] constant
 * acc[n < 1, y < 2, x < 3, c < 2]: int32 =
 *     bias[c] + sum(int32(data[n, y + ky, x + kx, c]) * int32(weight[ky, kx, c]) for ky < 2, kx < 2)
 * out[n < 1, y < 2, x < 3, c < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[n, y, x, c] << 1, 1518500250, (acc[n, y, x, c] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 39809
 *     # magnitude = 0
 *
 * split(x, (None, 4)) split(kx, (None, 2)) reorder((n, c, y, x_0, ky, kx_0, x_1, kx_1)) decompose_reduction(acc, ky)
 * cache_read(acc, data, workspace) pad_reduction(acc) reverse_compute_at(out, x_0) set_scope(acc, register)
 * transform_layout(data_workspace, ((None), (None), (None), (None)), (0, 3, 1, 2)) set_dtype(data_workspace, int16)
 * storage_align(data_workspace, 3, 2) transform_layout(weight, ((None), (None), (None)), (2, 0, 1)) set_dtype(weight,
 * int16) double_reduction(acc, weight) tensorize(x_1, correlate_4x2_s1) compute_at(data_workspace, c)
 * reorder((data_workspace_i1_1, data_workspace_i2_1)) set_kind(data_workspace_i2_1, vectorized) set_kind(kx_0, unrolled)
 * set_kind(ky, unrolled) set_kind(x_1_init, unrolled) set_kind(x_out_1, unrolled) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL depthwise_conv2d_v1(const int8_t *data, const int16_t *restrict weight, int8_t *out,
    int16_t *data_workspace)
{
    for (int32_t c = 0; c < 2; ++c) {
        /* copy of data */
        for (int32_t i1 = 0; i1 < 3; ++i1) {
            data_workspace[i1 * 6] = (int16_t)data[i1 * 8 + c];
            data_workspace[i1 * 6 + 1] = (int16_t)data[i1 * 8 + c + 2];
            data_workspace[i1 * 6 + 2] = (int16_t)data[i1 * 8 + c + 2 * 2];
            data_workspace[i1 * 6 + 3] = (int16_t)data[i1 * 8 + c + 3 * 2];
        }
        for (int32_t y = 0; y < 2; ++y) {
            /* accumulate: acc[n, y, x, c] = bias[c] + sum(data[n, y + ky, x + kx, c] * weight[ky, kx,
             *     c] for ky < 2, kx < 2) */
            int32_t acc_0, acc_1, acc_2;
            const int32_t bias_0 = load_i16x2_aligned(&weight[c * 6 + 4]) * 2;
            acc_0 = bias_0;
            acc_1 = bias_0;
            acc_2 = bias_0;
            const int32_t data_workspace_0 = load_i16x2_aligned(&data_workspace[y * 6]);
            const int32_t weight_0 = load_i16x2(&weight[c * 6]);
            acc_0 = dot2(data_workspace_0, weight_0, acc_0);
            const int32_t data_workspace_1 = load_i16x2_aligned(&data_workspace[y * 6 + 2]);
            acc_1 = mac_low_high(data_workspace_1, weight_0, mac_high_low(data_workspace_0, weight_0, acc_1));
            acc_2 = dot2(data_workspace_1, weight_0, acc_2);
            const int32_t data_workspace_2 = load_i16x2_aligned(&data_workspace[y * 6 + 6]);
            const int32_t weight_1 = load_i16x2(&weight[c * 6 + 2]);
            acc_0 = dot2(data_workspace_2, weight_1, acc_0);
            const int32_t data_workspace_3 = load_i16x2_aligned(&data_workspace[y * 6 + (6 + 2)]);
            acc_1 = mac_low_high(data_workspace_3, weight_1, mac_high_low(data_workspace_2, weight_1, acc_1));
            acc_2 = dot2(data_workspace_3, weight_1, acc_2);
            /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
            out[y * 6 + c] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_0, 1518500250, (acc_0 >> 31) + 448));
            out[y * 6 + c + 2] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_1, 1518500250, (acc_1 >> 31) + 448));
            out[y * 6 + c + 2 * 2] = (int8_t)saturate_i8_shr_7(high_mac_round(acc_2, 1518500250, (acc_2 >> 31) +
                448));
        }
    }
}
