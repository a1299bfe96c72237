/* host, size: depthwise (single)
 *
 * data: float32[1, 3, 3, 1]
 * weight: float32[2, 2, 1] constant
 * bias: float32[1] constant
 * acc[n < 1, y < 2, x < 2, c < 1]: float32 =
 *     bias[c] + sum(data[n, y + ky, x + kx, c] * weight[ky, kx, c] for ky < 2, kx < 2)
 * out[n < 1, y < 2, x < 2, c < 1]: float32 = acc[n, y, x, c]
 *
 * split(x, (None, 2)) reorder((x_0, c, ky, kx, x_1)) decompose_reduction(acc, ky) reverse_compute_at(out, c)
 * set_scope(acc, register) set_kind(kx, unrolled) set_kind(ky, unrolled) set_kind(x_1, unrolled) set_kind(x_1_init,
 * unrolled) set_kind(x_out_1, unrolled)
 */
NET_KERNEL conv2d_v0(const float *data, const float *restrict weight, const float *restrict bias, float *out)
{
    for (int32_t y = 0; y < 2; ++y) {
        /* accumulate: acc[n, y, x, c] = bias[c] + sum(data[n, y + ky, x + kx, c] * weight[ky, kx,
         *     c] for ky < 2, kx < 2) */
        float acc_0, acc_1;
        const float bias_0 = bias[0];
        acc_0 = bias_0;
        acc_1 = bias_0;
        const float weight_0 = weight[0];
        acc_0 += data[y * 3] * weight_0;
        const float data_0 = data[y * 3 + 1];
        acc_1 += data_0 * weight_0;
        const float weight_1 = weight[1];
        acc_0 += data_0 * weight_1;
        acc_1 += data[y * 3 + 2] * weight_1;
        const float weight_2 = weight[2];
        acc_0 += data[y * 3 + 3] * weight_2;
        const float data_1 = data[y * 3 + (3 + 1)];
        acc_1 += data_1 * weight_2;
        const float weight_3 = weight[2 + 1];
        acc_0 += data_1 * weight_3;
        acc_1 += data[y * 3 + (3 + 2)] * weight_3;
        /* out[n, y, x, c] = acc[n, y, x, c] */
        out[y * 2] = acc_0;
        out[y * 2 + 1] = acc_1;
    }
}
