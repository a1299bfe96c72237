/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a network has learned, kept when the power is gone: its tensors in the newer of two banks of non-volatile memory. SPEC.md,
 * "Stored weights".
 *
 *     struct microc_piece pieces[NET_LEARNED_COUNT];
 *     for (uint32_t k = 0; k < NET_LEARNED_COUNT; k++) {
 *         pieces[k].data = net_learned(arena, k, &pieces[k].size);
 *     }
 *     if (microc_store_restore(identity, pieces, NET_LEARNED_COUNT) != MICROC_STORE_OK) {
 *         net_reset(arena);
 *     }
 *     ... microc_store_save(identity, pieces, NET_LEARNED_COUNT) ...
 */
#ifndef MICROC_STORE_H
#define MICROC_STORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a bank in front of the first piece, and the unit of all offsets and sizes of a write. */
#define MICROC_STORE_RECORD 32u
#define MICROC_STORE_UNIT 16u

enum { MICROC_STORE_OK = 0, MICROC_STORE_EMPTY = -1, MICROC_STORE_FAILED = -2 };

/* A tensor in RAM. */
struct microc_piece {
    void *data;
    uint32_t size; /* in bytes */
};

/* Bytes that a bank needs for these pieces; 0 if they exceed 2^31. */
uint32_t microc_store_size(const struct microc_piece *pieces, uint32_t count);

/*
 * Write the pieces into the bank that does not hold the newest whole save. The record that makes it count is written last: a cut of
 * the power at any moment leaves the save before, or this one. `identity` tells networks apart, such as the CRC-32 of a
 * fingerprint. Returns MICROC_STORE_OK, or MICROC_STORE_FAILED if the port failed or bytes do not read back.
 */
int microc_store_save(uint32_t identity, const struct microc_piece *pieces, uint32_t count);

/*
 * Read the pieces of the newest whole save of this identity and of pieces of these sizes. Returns MICROC_STORE_OK;
 * MICROC_STORE_EMPTY if there is none: the pieces may then hold anything, and the network must be reset.
 */
int microc_store_restore(uint32_t identity, const struct microc_piece *pieces, uint32_t count);

/*
 * The board's part. Both return 0, or non-zero on failure. `bank` is 0 or 1.
 *
 * `read`: copy bytes of a bank. `write`: set bytes that were erased before and not written since, in whole units; with data NULL,
 * erase the bank up to this size, its first bytes first. Neither is called for other banks.
 */
int microc_port_bank_read(uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size);
int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size);

#ifdef __cplusplus
}
#endif

#endif
