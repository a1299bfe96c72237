/* cortex-m4, speed: matrix opened columns (packed_tables)
 *
 * data: int8[9, 8]
 * weight: int8[2, 8] constant
 * acc[p < 9, o < 2]: int32 = sum(int32(data[p, k]) * int32(weight[o, k]) for k < 8)
 *     # sum_bound = 63360
 *     # smallest_weight = -99
 *     # weight_bits = 1
 *     # weight_tables = 1
 * out[p < 9, o < 2]: int32 = acc[p, o]
 *
 * cache_read(acc, data, workspace) cache_read(acc, weight, workspace) split(p, (None, 3, 3)) split(o, (None, 2)) split(k,
 * (None, 2, 4)) reorder((p_0, o_0, p_1, k_0, k_1, p_2, o_1, k_2)) decompose_reduction(acc, k_0) reverse_compute_at(out,
 * p_1) set_scope(acc, register) compute_at(data_workspace, p_0) set_dtype(data_workspace, int16)
 * set_kind(data_workspace_i1_1, vectorized) compute_at(weight_workspace, o_0) set_dtype(weight_workspace, int16)
 * pack_bits(weight, 1, neighbours, 0, 1) split(weight_workspace_i1_1, (None, 8)) set_kind(weight_workspace_i1_1_1,
 * unrolled) tensorize(k_2, dot4_int16_int16) set_kind(p_2_init, unrolled) set_kind(o_1_init, unrolled) set_kind(k_1,
 * unrolled) set_kind(p_2, unrolled) set_kind(o_1, unrolled) set_kind(p_out_1, unrolled) set_kind(o_out_1, unrolled)
 */
NET_KERNEL dense_v0(const int8_t *data, const int8_t *restrict weight, int32_t *out, int16_t *data_workspace,
    int16_t *weight_workspace)
{
    /* copy of data */
    for (int32_t i0 = 0; i0 < 9; ++i0) {
        widen_i8x4(&data_workspace[i0 * 8], load_i8x4(&data[i0 * 8]));
        widen_i8x4(&data_workspace[i0 * 8 + 4], load_i8x4(&data[i0 * 8 + 4]));
    }
    /* copy of weight */
    for (int32_t i0 = 0; i0 < 2; ++i0) {
        const int32_t place_0 = (int32_t)weight[i0];
        weight_workspace[i0 * 8] = (int16_t)(int32_t)weight[2 + (place_0 & 1)];
        weight_workspace[i0 * 8 + 1] = (int16_t)(int32_t)weight[2 + ((place_0 >> 1) & 1)];
        weight_workspace[i0 * 8 + 2] = (int16_t)(int32_t)weight[2 + ((place_0 >> 2) & 1)];
        weight_workspace[i0 * 8 + 3] = (int16_t)(int32_t)weight[2 + ((place_0 >> 3) & 1)];
        weight_workspace[i0 * 8 + 4] = (int16_t)(int32_t)weight[2 + ((place_0 >> 4) & 1)];
        weight_workspace[i0 * 8 + 5] = (int16_t)(int32_t)weight[2 + ((place_0 >> 5) & 1)];
        weight_workspace[i0 * 8 + 6] = (int16_t)(int32_t)weight[2 + ((place_0 >> 6) & 1)];
        weight_workspace[i0 * 8 + 7] = (int16_t)(int32_t)weight[2 + ((place_0 >> 7) & 1)];
    }
    for (int32_t p = 0; p < 3; ++p) {
        /* accumulate: acc[p, o] = sum(data[p, k] * weight[o, k] for k < 8) */
        int32_t acc_0_0, acc_0_1, acc_1_0, acc_1_1, acc_2_0, acc_2_1;
        acc_0_0 = 0;
        acc_0_1 = 0;
        acc_1_0 = 0;
        acc_1_1 = 0;
        acc_2_0 = 0;
        acc_2_1 = 0;
        const int32_t data_workspace_0 = load_i16x2_aligned(&data_workspace[p * (3 * 8)]);
        const int32_t data_workspace_1 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + 2]);
        const int32_t weight_workspace_0 = load_i16x2_aligned(&weight_workspace[0]);
        const int32_t weight_workspace_1 = load_i16x2_aligned(&weight_workspace[2]);
        acc_0_0 = dot2(data_workspace_1, weight_workspace_1, dot2(data_workspace_0, weight_workspace_0, acc_0_0));
        const int32_t weight_workspace_2 = load_i16x2_aligned(&weight_workspace[8]);
        const int32_t weight_workspace_3 = load_i16x2_aligned(&weight_workspace[8 + 2]);
        acc_0_1 = dot2(data_workspace_1, weight_workspace_3, dot2(data_workspace_0, weight_workspace_2, acc_0_1));
        const int32_t data_workspace_2 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + 8]);
        const int32_t data_workspace_3 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (8 + 2)]);
        acc_1_0 = dot2(data_workspace_3, weight_workspace_1, dot2(data_workspace_2, weight_workspace_0, acc_1_0));
        acc_1_1 = dot2(data_workspace_3, weight_workspace_3, dot2(data_workspace_2, weight_workspace_2, acc_1_1));
        const int32_t data_workspace_4 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + 2 * 8]);
        const int32_t data_workspace_5 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (2 * 8 + 2)]);
        acc_2_0 = dot2(data_workspace_5, weight_workspace_1, dot2(data_workspace_4, weight_workspace_0, acc_2_0));
        acc_2_1 = dot2(data_workspace_5, weight_workspace_3, dot2(data_workspace_4, weight_workspace_2, acc_2_1));
        const int32_t data_workspace_6 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + 4]);
        const int32_t data_workspace_7 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + 6]);
        const int32_t weight_workspace_4 = load_i16x2_aligned(&weight_workspace[4]);
        const int32_t weight_workspace_5 = load_i16x2_aligned(&weight_workspace[6]);
        acc_0_0 = dot2(data_workspace_7, weight_workspace_5, dot2(data_workspace_6, weight_workspace_4, acc_0_0));
        const int32_t weight_workspace_6 = load_i16x2_aligned(&weight_workspace[8 + 4]);
        const int32_t weight_workspace_7 = load_i16x2_aligned(&weight_workspace[8 + 6]);
        acc_0_1 = dot2(data_workspace_7, weight_workspace_7, dot2(data_workspace_6, weight_workspace_6, acc_0_1));
        const int32_t data_workspace_8 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (8 + 4)]);
        const int32_t data_workspace_9 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (8 + 6)]);
        acc_1_0 = dot2(data_workspace_9, weight_workspace_5, dot2(data_workspace_8, weight_workspace_4, acc_1_0));
        acc_1_1 = dot2(data_workspace_9, weight_workspace_7, dot2(data_workspace_8, weight_workspace_6, acc_1_1));
        const int32_t data_workspace_10 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (2 * 8 + 4)]);
        const int32_t data_workspace_11 = load_i16x2_aligned(&data_workspace[p * (3 * 8) + (2 * 8 + 6)]);
        acc_2_0 = dot2(data_workspace_11, weight_workspace_5, dot2(data_workspace_10, weight_workspace_4, acc_2_0));
        acc_2_1 = dot2(data_workspace_11, weight_workspace_7, dot2(data_workspace_10, weight_workspace_6, acc_2_1));
        /* out[p, o] = acc[p, o] */
        out[p * (3 * 2)] = acc_0_0;
        out[p * (3 * 2) + 1] = acc_0_1;
        out[p * (3 * 2) + 2] = acc_1_0;
        out[p * (3 * 2) + (2 + 1)] = acc_1_1;
        out[p * (3 * 2) + 2 * 2] = acc_2_0;
        out[p * (3 * 2) + (2 * 2 + 1)] = acc_2_1;
    }
}
