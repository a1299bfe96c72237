/* cortex-m0, size: depthwise (direct)
 *
 * data: int8[1, 2, 4, 2]
 * weight: int8[2, 2, 2] constant
 * bias: int32[2] constant
 * acc[n < 1, y < 1, x < 3, c < 2]: int32 =
 *     bias[c] + sum(int32(data[n, y + ky, x + kx, c]) * int32(weight[ky, kx, c]) for ky < 2, kx < 2)
 * out[n < 1, y < 1, x < 3, c < 2]: int8 =
 *     int8(min(max(high_mac_round(acc[n, y, x, c] << 1, 1518500250, (acc[n, y, x, c] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 39809
 *     # magnitude = 0
 *
 * split(x, (None, 2)) reorder((x_0, c, ky, kx, x_1)) decompose_reduction(acc, ky) reverse_compute_at(out, c)
 * set_scope(acc, register) set_kind(kx, unrolled) set_kind(ky, unrolled) set_kind(x_1, unrolled) set_kind(x_1_init,
 * unrolled) set_kind(x_out_1, unrolled) apply_identities((high_mac_round_by_thirds)) select_intrinsics((clamp8))
 */
NET_KERNEL depthwise_conv2d_v1(const int8_t *data, const int8_t *restrict weight, const int32_t *restrict bias,
    int8_t *out)
{
    for (int32_t c = 0; c < 2; ++c) {
        /* accumulate: acc[n, y, x, c] = bias[c] + sum(data[n, y + ky, x + kx, c] * weight[ky, kx,
         *     c] for ky < 2, kx < 2) */
        int32_t acc_0, acc_1;
        const int32_t bias_0 = bias[c];
        acc_0 = bias_0;
        acc_1 = bias_0;
        const int8_t weight_0 = weight[c];
        acc_0 += (int32_t)data[c] * (int32_t)weight_0;
        const int8_t data_0 = data[c + 2];
        acc_1 += (int32_t)data_0 * (int32_t)weight_0;
        const int8_t weight_1 = weight[c + 2];
        acc_0 += (int32_t)data_0 * (int32_t)weight_1;
        acc_1 += (int32_t)data[c + 2 * 2] * (int32_t)weight_1;
        const int8_t weight_2 = weight[c + 4];
        acc_0 += (int32_t)data[c + 8] * (int32_t)weight_2;
        const int8_t data_1 = data[c + (8 + 2)];
        acc_1 += (int32_t)data_1 * (int32_t)weight_2;
        const int8_t weight_3 = weight[c + (4 + 2)];
        acc_0 += (int32_t)data_1 * (int32_t)weight_3;
        acc_1 += (int32_t)data[c + (8 + 2 * 2)] * (int32_t)weight_3;
        /* requantize: clamp(round(acc * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
        out[c] = (int8_t)clamp8((((product_2_30(acc_0, 1518500250) + 1) >> 1) + ((acc_0 >> 31) + 448)) >> 7);
        out[c + 2] = (int8_t)clamp8((((product_2_30(acc_1, 1518500250) + 1) >> 1) + ((acc_1 >> 31) + 448)) >> 7);
    }
    for (int32_t c = 0; c < 2; ++c) {
        /* accumulate */
        int32_t acc_0;
        acc_0 = bias[c];
        acc_0 += (int32_t)data[c + 2 * 2] * (int32_t)weight[c];
        acc_0 += (int32_t)data[c + 3 * 2] * (int32_t)weight[c + 2];
        acc_0 += (int32_t)data[c + (8 + 2 * 2)] * (int32_t)weight[c + 4];
        acc_0 += (int32_t)data[c + (8 + 3 * 2)] * (int32_t)weight[c + (4 + 2)];
        /* requantize */
        out[c + 2 * 2] = (int8_t)clamp8((((product_2_30(acc_0, 1518500250) + 1) >> 1) + ((acc_0 >> 31) + 448)) >> 7);
    }
}
