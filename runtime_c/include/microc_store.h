/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a network has learned, kept when the power is gone: its tensors in the newer of two banks of non-volatile memory. SPEC.md,
 * "Stored weights".
 *
 *     struct microc_piece pieces[NET_LEARNED_COUNT];
 *     const struct microc_store store = {pieces, NET_LEARNED_COUNT, identity, 0};
 *     for (uint32_t k = 0; k < NET_LEARNED_COUNT; k++) {
 *         pieces[k].data = net_learned(arena, k, &pieces[k].size);
 *     }
 *     net_reset(arena);
 *     (void)microc_store_restore(&store);
 *     ... microc_store_save(&store) ...
 */
#ifndef MICROC_STORE_H
#define MICROC_STORE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a bank in front of the first piece, and the unit of all offsets and sizes of a write. */
#define MICROC_STORE_RECORD ((uint32_t)32)
#define MICROC_STORE_UNIT ((uint32_t)16)

enum { MICROC_STORE_OK = 0, MICROC_STORE_EMPTY = -1, MICROC_STORE_FAILED = -2 };

/* A tensor in RAM. */
struct microc_piece {
    void *data;
    uint32_t size; /* in bytes */
};

/*
 * The tensors of a network, and where they are saved. `identity` tells networks apart, such as the CRC-32 of a digest. The network
 * has the banks `bank` and `bank + 1`.
 */
struct microc_store {
    const struct microc_piece *pieces;
    uint32_t count;
    uint32_t identity;
    uint32_t bank;
};

enum microc_bank_state {
    MICROC_BANK_EMPTY = 0,
    MICROC_BANK_WHOLE = 1,
    MICROC_BANK_DAMAGED = 2,   /* its record, or the tensors behind it */
    MICROC_BANK_FOREIGN = 3,   /* a save of another network, or of tensors of other sizes */
    MICROC_BANK_UNREADABLE = 4 /* the port fails to read it */
};

/* A bank's state, and what its record tells unless that is empty, damaged or not read. */
struct microc_bank {
    enum microc_bank_state state;
    uint32_t sequence; /* number of the save, modulo 2^32 */
    uint32_t identity;
    uint32_t size; /* bytes of the bank that the save takes */
    uint32_t check; /* of the tensors */
};

/* Bytes that a bank needs for the tensors; 0 if they exceed 2^31. */
uint32_t microc_store_size(const struct microc_store *store);

/* The check of the tensors in RAM; SPEC.md, "Stored weights". */
uint32_t microc_store_check(const struct microc_store *store);

/*
 * Write the tensors into the bank that does not hold the newest whole save. The record that makes it count is written last: a cut of
 * the power at any moment leaves the save before, or this one. Returns MICROC_STORE_OK, or MICROC_STORE_FAILED if the port failed
 * or bytes do not read back. If it fails to read a bank, nothing is erased: that bank may contain the newest save.
 */
int microc_store_save(const struct microc_store *store);

/*
 * Read the tensors of the newest whole save. Returns MICROC_STORE_OK; MICROC_STORE_EMPTY if there is none: the tensors are as they
 * were; MICROC_STORE_FAILED if the port failed to read a bank, or the bank changed while it was read: the network must be reset.
 */
int microc_store_restore(const struct microc_store *store);

/* Erase the records of both banks, the newest last. Returns MICROC_STORE_OK or MICROC_STORE_FAILED. */
int microc_store_clear(const struct microc_store *store);

/* Read a bank, 0 or 1 of the two, whole. */
void microc_store_inspect(const struct microc_store *store, uint32_t bank, struct microc_bank *found);

/* The bank with the newest whole save, 0 or 1 of the two; 2 if there is none, 3 if the port fails to read one of them. */
uint32_t microc_store_newest(const struct microc_store *store);

/*
 * The board's part. Both return 0, or non-zero on failure. `bank` is 0 or 1; firmware with several networks that learn has two
 * more for each.
 *
 * `read`: copy bytes of a bank; fail if the memory does not answer. Memory that detects errors may do so behind a cut of the power:
 * give any bytes for those that it cannot correct and return 0, since saves are refused as long as reads fail. `write`: set bytes
 * that were erased before and not written since, in whole units; with data NULL, erase the bank up to this size, its first bytes
 * first. Neither is called for other banks.
 */
int microc_port_bank_read(uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size);
int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size);

#ifdef MICROC_RPC_STORE

/* Operations of firmware that learns; microc_load.h has the call. */
struct microc_call;
#define MICROC_BANK_REQUEST 1u
#define MICROC_BANK_READ_REQUEST 7u
#define MICROC_SAVE_REQUEST 12u
int microc_store_describe_bank(const struct microc_call *call);
int microc_store_read_bank(const struct microc_call *call);
int microc_store_save_tensors(const struct microc_call *call);
int microc_store_restore_tensors(const struct microc_call *call);
int microc_store_clear_banks(const struct microc_call *call);

#endif

#ifdef __cplusplus
}
#endif

#endif
