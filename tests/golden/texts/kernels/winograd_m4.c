/* cortex-m4, speed: winograd (winograd)
 *
 * data: int8[1, 4, 4, 4]
 * padded[n < 1, y < 4, x < 6, c < 4]: int8 = select(x < 4, data[n, y, x, c], int8(-1))
 * tile[s < 16, n < 1, y < 1, x < 2, c < 4]: int16 =
 *     int16(select(s % 4 == 0, select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 0, c]) - int32(padded[n, y * 2 + 2, x * 2 + 0, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 0, c]) + int32(padded[n, y * 2 + 2, x * 2 + 0, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 0, c]) - int32(padded[n, y * 2 + 1, x * 2 + 0, c]), int32(padded[n, y * 2 + 1, x * 2 + 0, c]) - int32(padded[n, y * 2 + 3, x * 2 + 0, c])))) - select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 2, c]) - int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 2, c]) + int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 2, c]) - int32(padded[n, y * 2 + 1, x * 2 + 2, c]), int32(padded[n, y * 2 + 1, x * 2 + 2, c]) - int32(padded[n, y * 2 + 3, x * 2 + 2, c])))), select(s % 4 == 1, select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 1, c]) - int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 1, c]) + int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 1, c]) - int32(padded[n, y * 2 + 1, x * 2 + 1, c]), int32(padded[n, y * 2 + 1, x * 2 + 1, c]) - int32(padded[n, y * 2 + 3, x * 2 + 1, c])))) + select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 2, c]) - int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 2, c]) + int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 2, c]) - int32(padded[n, y * 2 + 1, x * 2 + 2, c]), int32(padded[n, y * 2 + 1, x * 2 + 2, c]) - int32(padded[n, y * 2 + 3, x * 2 + 2, c])))), select(s % 4 == 2, select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 2, c]) - int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 2, c]) + int32(padded[n, y * 2 + 2, x * 2 + 2, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 2, c]) - int32(padded[n, y * 2 + 1, x * 2 + 2, c]), int32(padded[n, y * 2 + 1, x * 2 + 2, c]) - int32(padded[n, y * 2 + 3, x * 2 + 2, c])))) - select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 1, c]) - int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 1, c]) + int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 1, c]) - int32(padded[n, y * 2 + 1, x * 2 + 1, c]), int32(padded[n, y * 2 + 1, x * 2 + 1, c]) - int32(padded[n, y * 2 + 3, x * 2 + 1, c])))), select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 1, c]) - int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 1, c]) + int32(padded[n, y * 2 + 2, x * 2 + 1, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 1, c]) - int32(padded[n, y * 2 + 1, x * 2 + 1, c]), int32(padded[n, y * 2 + 1, x * 2 + 1, c]) - int32(padded[n, y * 2 + 3, x * 2 + 1, c])))) - select(s // 4 == 0, int32(padded[n, y * 2 + 0, x * 2 + 3, c]) - int32(padded[n, y * 2 + 2, x * 2 + 3, c]), select(s // 4 == 1, int32(padded[n, y * 2 + 1, x * 2 + 3, c]) + int32(padded[n, y * 2 + 2, x * 2 + 3, c]), select(s // 4 == 2, int32(padded[n, y * 2 + 2, x * 2 + 3, c]) - int32(padded[n, y * 2 + 1, x * 2 + 3, c]), int32(padded[n, y * 2 + 1, x * 2 + 3, c]) - int32(padded[n, y * 2 + 3, x * 2 + 3, c]))))))))
 * weight: int16[16, 1, 4] constant
 * acc[s < 16, n < 1, y < 1, x < 2, o < 1]: int32 = sum(int32(tile[s, n, y, x, k]) * int32(weight[s, o, k]) for k < 4)
 * rows[j < 4, a < 2, n < 1, y < 1, x < 2, o < 1]: int32 =
 *     select(a == 0, acc[j + 0, n, y, x, o] + (acc[j + 4, n, y, x, o] + acc[j + 8, n, y, x, o]), acc[j + 4, n, y, x, o] - acc[j + 8, n, y, x, o] - acc[j + 12, n, y, x, o])
 * bias: int32[1] constant
 * untile[n < 1, y < 2, x < 2, o < 1]: int32 =
 *     (select(x % 2 == 0, rows[0, y % 2, n, y // 2, x // 2, o] + (rows[1, y % 2, n, y // 2, x // 2, o] + rows[2, y % 2, n, y // 2, x // 2, o]), rows[1, y % 2, n, y // 2, x // 2, o] - rows[2, y % 2, n, y // 2, x // 2, o] - rows[3, y % 2, n, y // 2, x // 2, o]) >> 2) + bias[o]
 * out[n < 1, y < 2, x < 2, o < 1]: int8 =
 *     int8(min(max(high_mac_round(untile[n, y, x, o] << 1, 1518500250, (untile[n, y, x, o] >> 31) + 448) >> 7, -128), 127))
 *     # bound = 242406
 *     # magnitude = 0
 *
 * compute_inline(untile) split(y_out, (None, 2)) split(x_out, (None, 1, 2, 2)) split(o_out, (None, 1)) reorder((y_out_0,
 * x_out_0, o_out_0, x_out_1, o_out_1, x_out_2, y_out_1, x_out_3)) cache_write(acc, register) compute_at(rows, x_out_2)
 * set_scope(rows, register) compute_at(acc_register, x_out_1) split(acc_register_i0_1, (None, 4)) compute_at(acc,
 * acc_register_i0_1_1) compute_at(tile, x_out_0) set_kind(acc_register_i0_1_1, unrolled) compute_at(padded, x_out_0)
 * set_kind(c_1, vectorized) transform_layout(tile, ((None), (None), (None), (None, 2), (None, 2, 2)), (1, 2, 3, 0, 4, 5,
 * 7, 6)) split(c_tile_1, (None, 4)) reorder((n_tile_1, y_tile_1, x_tile_1, c_tile_1_0, c_tile_1_1, s_1)) set_kind(s_1,
 * unrolled) set_kind(c_tile_1_1, vectorized) transform_layout(weight, ((None), (None, 1), (None, 2, 2)), (1, 0, 2, 3, 5,
 * 4)) split(k_1, (None, 1, 4)) reorder((k_1_0, k_1_1, x_acc_1, o_1, k_1_2)) decompose_reduction(acc, k_1_0)
 * tensorize(k_1_2, dot4_crossed_int16_int16) set_kind(y_acc_1, unrolled) set_kind(x_acc_1_init, unrolled) set_kind(k_1_1,
 * unrolled) set_kind(x_acc_1, unrolled) set_kind(o_1, unrolled) annotate_loop(y_out_0, peel, 0) annotate_loop(x_out_0,
 * peel, 0) annotate_loop(x_out_1, peel, 0) annotate_loop(x_out_2, peel, 0) set_kind(acc_register_i3_1, unrolled)
 * set_kind(acc_register_i4_1, unrolled) set_kind(j_1, unrolled) set_kind(a_1, unrolled) set_kind(y_out_1, unrolled)
 * set_kind(x_out_3, unrolled) select_intrinsics((saturate_i8_shr_7))
 */
NET_KERNEL conv2d_v1(const int8_t *data, const int16_t *restrict weight, const int32_t *restrict bias, int8_t *out,
    int32_t *acc, int8_t *padded, int16_t *tile)
{
    /* pad: padded[n, y, x, c] = select(x < 4, data[n, y, x, c], -1) */
    for (int32_t y = 0; y < 4; ++y) {
        for (int32_t x = 0; x < 6; ++x) {
            if (x < 4) {
                store_i8x4(&padded[y * 24 + x * 4], load_i8x4(&data[y * 16 + x * 4]));
            } else {
                store_i8x4(&padded[y * 24 + x * 4], -1);
            }
        }
    }
    /* tile */
    for (int32_t x = 0; x < 2; ++x) {
        const int32_t padded_0 = load_i8x4(&padded[x * (2 * 4)]);
        const int32_t padded_1 = load_i8x4(&padded[x * (2 * 4) + 2 * 4]);
        const int32_t padded_2 = load_i8x4(&padded[x * (2 * 4) + 2 * 24]);
        const int32_t padded_3 = load_i8x4(&padded[x * (2 * 4) + (2 * 24 + 2 * 4)]);
        const int32_t padded_4 = evens_i8(padded_2);
        const int32_t padded_5 = evens_i8(padded_3);
        const int32_t padded_6 = sub_i16x2(evens_i8(padded_1), padded_5);
        store_i16x2_aligned(&tile[x * 4], sub_i16x2(sub_i16x2(evens_i8(padded_0), padded_4), padded_6));
        const int32_t padded_7 = load_i8x4(&padded[x * (2 * 4) + 4]);
        const int32_t padded_8 = load_i8x4(&padded[x * (2 * 4) + (2 * 24 + 4)]);
        const int32_t padded_9 = evens_i8(padded_8);
        const int32_t padded_10 = sub_i16x2(evens_i8(padded_7), padded_9);
        store_i16x2_aligned(&tile[x * 4 + 8], add_i16x2(padded_10, padded_6));
        store_i16x2_aligned(&tile[x * 4 + 2 * 8], sub_i16x2(padded_6, padded_10));
        const int32_t padded_11 = load_i8x4(&padded[x * (2 * 4) + 3 * 4]);
        const int32_t padded_12 = load_i8x4(&padded[x * (2 * 4) + (2 * 24 + 3 * 4)]);
        const int32_t padded_13 = evens_i8(padded_12);
        store_i16x2_aligned(&tile[x * 4 + 3 * 8], sub_i16x2(padded_10, sub_i16x2(evens_i8(padded_11), padded_13)));
        const int32_t padded_14 = load_i8x4(&padded[x * (2 * 4) + 24]);
        const int32_t padded_15 = load_i8x4(&padded[x * (2 * 4) + (24 + 2 * 4)]);
        const int32_t padded_16 = evens_i8(padded_14);
        const int32_t padded_17 = evens_i8(padded_15);
        const int32_t padded_18 = add_i16x2(padded_17, padded_5);
        store_i16x2_aligned(&tile[x * 4 + 4 * 8], sub_i16x2(add_i16x2(padded_16, padded_4), padded_18));
        const int32_t padded_19 = load_i8x4(&padded[x * (2 * 4) + (24 + 4)]);
        const int32_t padded_20 = evens_i8(padded_19);
        const int32_t padded_21 = add_i16x2(padded_20, padded_9);
        store_i16x2_aligned(&tile[x * 4 + 5 * 8], add_i16x2(padded_21, padded_18));
        store_i16x2_aligned(&tile[x * 4 + 6 * 8], sub_i16x2(padded_18, padded_21));
        const int32_t padded_22 = load_i8x4(&padded[x * (2 * 4) + (24 + 3 * 4)]);
        const int32_t padded_23 = evens_i8(padded_22);
        store_i16x2_aligned(&tile[x * 4 + 7 * 8], sub_i16x2(padded_21, add_i16x2(padded_23, padded_13)));
        const int32_t padded_24 = sub_i16x2(padded_5, padded_17);
        store_i16x2_aligned(&tile[x * 4 + 8 * 8], sub_i16x2(sub_i16x2(padded_4, padded_16), padded_24));
        const int32_t padded_25 = sub_i16x2(padded_9, padded_20);
        store_i16x2_aligned(&tile[x * 4 + 9 * 8], add_i16x2(padded_25, padded_24));
        store_i16x2_aligned(&tile[x * 4 + 10 * 8], sub_i16x2(padded_24, padded_25));
        store_i16x2_aligned(&tile[x * 4 + 11 * 8], sub_i16x2(padded_25, sub_i16x2(padded_13, padded_23)));
        const int32_t padded_26 = load_i8x4(&padded[x * (2 * 4) + 3 * 24]);
        const int32_t padded_27 = load_i8x4(&padded[x * (2 * 4) + (3 * 24 + 2 * 4)]);
        const int32_t padded_28 = sub_i16x2(padded_17, evens_i8(padded_27));
        store_i16x2_aligned(&tile[x * 4 + 12 * 8], sub_i16x2(sub_i16x2(padded_16, evens_i8(padded_26)), padded_28));
        const int32_t padded_29 = load_i8x4(&padded[x * (2 * 4) + (3 * 24 + 4)]);
        const int32_t padded_30 = sub_i16x2(padded_20, evens_i8(padded_29));
        store_i16x2_aligned(&tile[x * 4 + 13 * 8], add_i16x2(padded_30, padded_28));
        store_i16x2_aligned(&tile[x * 4 + 14 * 8], sub_i16x2(padded_28, padded_30));
        const int32_t padded_31 = load_i8x4(&padded[x * (2 * 4) + (3 * 24 + 3 * 4)]);
        store_i16x2_aligned(&tile[x * 4 + 15 * 8], sub_i16x2(padded_30, sub_i16x2(padded_23, evens_i8(padded_31))));
        const int32_t padded_32 = odds_i8(padded_2);
        const int32_t padded_33 = odds_i8(padded_3);
        const int32_t padded_34 = sub_i16x2(odds_i8(padded_1), padded_33);
        store_i16x2_aligned(&tile[x * 4 + 2], sub_i16x2(sub_i16x2(odds_i8(padded_0), padded_32), padded_34));
        const int32_t padded_35 = odds_i8(padded_8);
        const int32_t padded_36 = sub_i16x2(odds_i8(padded_7), padded_35);
        store_i16x2_aligned(&tile[x * 4 + (8 + 2)], add_i16x2(padded_36, padded_34));
        store_i16x2_aligned(&tile[x * 4 + (2 * 8 + 2)], sub_i16x2(padded_34, padded_36));
        const int32_t padded_37 = odds_i8(padded_12);
        store_i16x2_aligned(&tile[x * 4 + (3 * 8 + 2)],
            sub_i16x2(padded_36, sub_i16x2(odds_i8(padded_11), padded_37)));
        const int32_t padded_38 = odds_i8(padded_14);
        const int32_t padded_39 = odds_i8(padded_15);
        const int32_t padded_40 = add_i16x2(padded_39, padded_33);
        store_i16x2_aligned(&tile[x * 4 + (4 * 8 + 2)], sub_i16x2(add_i16x2(padded_38, padded_32), padded_40));
        const int32_t padded_41 = odds_i8(padded_19);
        const int32_t padded_42 = add_i16x2(padded_41, padded_35);
        store_i16x2_aligned(&tile[x * 4 + (5 * 8 + 2)], add_i16x2(padded_42, padded_40));
        store_i16x2_aligned(&tile[x * 4 + (6 * 8 + 2)], sub_i16x2(padded_40, padded_42));
        const int32_t padded_43 = odds_i8(padded_22);
        store_i16x2_aligned(&tile[x * 4 + (7 * 8 + 2)], sub_i16x2(padded_42, add_i16x2(padded_43, padded_37)));
        const int32_t padded_44 = sub_i16x2(padded_33, padded_39);
        store_i16x2_aligned(&tile[x * 4 + (8 * 8 + 2)], sub_i16x2(sub_i16x2(padded_32, padded_38), padded_44));
        const int32_t padded_45 = sub_i16x2(padded_35, padded_41);
        store_i16x2_aligned(&tile[x * 4 + (9 * 8 + 2)], add_i16x2(padded_45, padded_44));
        store_i16x2_aligned(&tile[x * 4 + (10 * 8 + 2)], sub_i16x2(padded_44, padded_45));
        store_i16x2_aligned(&tile[x * 4 + (11 * 8 + 2)], sub_i16x2(padded_45, sub_i16x2(padded_37, padded_43)));
        const int32_t padded_46 = sub_i16x2(padded_39, odds_i8(padded_27));
        store_i16x2_aligned(&tile[x * 4 + (12 * 8 + 2)],
            sub_i16x2(sub_i16x2(padded_38, odds_i8(padded_26)), padded_46));
        const int32_t padded_47 = sub_i16x2(padded_41, odds_i8(padded_29));
        store_i16x2_aligned(&tile[x * 4 + (13 * 8 + 2)], add_i16x2(padded_47, padded_46));
        store_i16x2_aligned(&tile[x * 4 + (14 * 8 + 2)], sub_i16x2(padded_46, padded_47));
        store_i16x2_aligned(&tile[x * 4 + (15 * 8 + 2)],
            sub_i16x2(padded_47, sub_i16x2(padded_43, odds_i8(padded_31))));
    }
    for (int32_t i0_tile = 0; i0_tile < 4; ++i0_tile) {
        /* accumulate: acc[s, n, y, x, o] = sum(tile[s, n, y, x, k] * weight[s, o, k] for k < 4) */
        int32_t acc_register_0, acc_register_1;
        acc_register_0 = 0;
        acc_register_1 = 0;
        const int32_t weight_0 = load_i16x2_aligned(&weight[i0_tile * (4 * 4)]);
        const int32_t weight_1 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + 2]);
        acc_register_0 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + 2]), weight_1,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8)]), weight_0, acc_register_0));
        acc_register_1 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (4 + 2)]), weight_1,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + 4]), weight_0, acc_register_1));
        acc[i0_tile * (4 * 2)] = acc_register_0;
        acc[i0_tile * (4 * 2) + 1] = acc_register_1;
        acc_register_0 = 0;
        acc_register_1 = 0;
        const int32_t weight_2 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + 4]);
        const int32_t weight_3 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + (4 + 2)]);
        acc_register_0 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (8 + 2)]), weight_3,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + 8]), weight_2, acc_register_0));
        acc_register_1 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (8 + 4 + 2)]), weight_3,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (8 + 4)]), weight_2, acc_register_1));
        acc[i0_tile * (4 * 2) + 2] = acc_register_0;
        acc[i0_tile * (4 * 2) + (2 + 1)] = acc_register_1;
        acc_register_0 = 0;
        acc_register_1 = 0;
        const int32_t weight_4 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + 2 * 4]);
        const int32_t weight_5 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + (2 * 4 + 2)]);
        acc_register_0 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (2 * 8 + 2)]), weight_5,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + 2 * 8]), weight_4, acc_register_0));
        acc_register_1 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (2 * 8 + 4 + 2)]), weight_5,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (2 * 8 + 4)]), weight_4, acc_register_1));
        acc[i0_tile * (4 * 2) + 2 * 2] = acc_register_0;
        acc[i0_tile * (4 * 2) + (2 * 2 + 1)] = acc_register_1;
        acc_register_0 = 0;
        acc_register_1 = 0;
        const int32_t weight_6 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + 3 * 4]);
        const int32_t weight_7 = load_i16x2_aligned(&weight[i0_tile * (4 * 4) + (3 * 4 + 2)]);
        acc_register_0 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (3 * 8 + 2)]), weight_7,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + 3 * 8]), weight_6, acc_register_0));
        acc_register_1 = dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (3 * 8 + 4 + 2)]), weight_7,
            dot2(load_i16x2_aligned(&tile[i0_tile * (4 * 8) + (3 * 8 + 4)]), weight_6, acc_register_1));
        acc[i0_tile * (4 * 2) + 3 * 2] = acc_register_0;
        acc[i0_tile * (4 * 2) + (3 * 2 + 1)] = acc_register_1;
    }
    for (int32_t x = 0; x < 2; ++x) {
        /* rows[j, a, n, y, x, o] = select(a == 0, acc[j, n, y, x, o] + (acc[j + 4, n, y, x, o] +
         *     acc[j + 8, n, y, x, o]), acc[j + 4, n, y, x, o] - acc[j + 8, n, y, x, o] - acc[j +
         *     12, n, y, x, o]) */
        int32_t rows_0_0, rows_0_1, rows_1_0, rows_1_1, rows_2_0, rows_2_1, rows_3_0, rows_3_1;
        const int32_t acc_0 = acc[x + 4 * 2];
        const int32_t acc_1 = acc[x + 8 * 2];
        rows_0_0 = acc[x] + (acc_0 + acc_1);
        rows_0_1 = acc_0 - acc_1 - acc[x + 12 * 2];
        const int32_t acc_2 = acc[x + 5 * 2];
        const int32_t acc_3 = acc[x + 9 * 2];
        rows_1_0 = acc[x + 2] + (acc_2 + acc_3);
        rows_1_1 = acc_2 - acc_3 - acc[x + 13 * 2];
        const int32_t acc_4 = acc[x + 6 * 2];
        const int32_t acc_5 = acc[x + 10 * 2];
        rows_2_0 = acc[x + 2 * 2] + (acc_4 + acc_5);
        rows_2_1 = acc_4 - acc_5 - acc[x + 14 * 2];
        const int32_t acc_6 = acc[x + 7 * 2];
        const int32_t acc_7 = acc[x + 11 * 2];
        rows_3_0 = acc[x + 3 * 2] + (acc_6 + acc_7);
        rows_3_1 = acc_6 - acc_7 - acc[x + 15 * 2];
        /* requantize: clamp(round(untile * 1518500250 * 2**(-7 - 31)) + 3, -128, 127) */
        if (x < 1) {
            const int32_t bias_0 = ((rows_0_0 + (rows_1_0 + rows_2_0)) >> 2) + bias[0];
            out[x * 2] = (int8_t)saturate_i8_shr_7(high_mac_round(bias_0 * 2, 1518500250, (bias_0 >> 31) + 448));
        }
        if (x < 1) {
            const int32_t bias_0 = ((rows_1_0 - rows_2_0 - rows_3_0) >> 2) + bias[0];
            out[x * 2 + 1] = (int8_t)saturate_i8_shr_7(high_mac_round(bias_0 * 2, 1518500250, (bias_0 >> 31) + 448));
        }
        if (x < 1) {
            const int32_t bias_0 = ((rows_0_1 + (rows_1_1 + rows_2_1)) >> 2) + bias[0];
            out[x * 2 + 2] = (int8_t)saturate_i8_shr_7(high_mac_round(bias_0 * 2, 1518500250, (bias_0 >> 31) + 448));
        }
        if (x < 1) {
            const int32_t bias_0 = ((rows_1_1 - rows_2_1 - rows_3_1) >> 2) + bias[0];
            out[x * 2 + (2 + 1)] = (int8_t)saturate_i8_shr_7(high_mac_round(bias_0 * 2, 1518500250, (bias_0 >> 31) +
                448));
        }
    }
}
