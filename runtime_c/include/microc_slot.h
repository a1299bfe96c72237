/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Networks that the host sends while the firmware stays: blobs of position-independent code and constants in two slots, of which
 * the newer that is whole runs. SPEC.md, "Loading networks".
 *
 * Firmware with slots alone has this (MICROC_RPC_SLOTS). A blob is code: whoever can write to the line of such firmware runs
 * code on the board, unless microc_slot_verify() tells signatures of one's own from all others.
 */
#ifndef MICROC_SLOT_H
#define MICROC_SLOT_H

#include "microc_load.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Version of the blob's format, and bytes of its header. */
#define MICROC_BLOB_VERSION 1u
#define MICROC_BLOB_HEADER 128u
/* A slot begins with the commit record in a part of its own; the blob lies behind it. */
#define MICROC_SLOT_RECORD 64u
/* `active` where no slot holds a network. */
#define MICROC_NO_SLOT 255u

/* Where a board keeps networks and what it has for them. */
struct microc_slots {
    uint8_t *slot[2];     /* as the core reads and executes them, aligned to 64 bytes */
    uint32_t size;        /* of each, in bytes: record, blob and signature; whole pages of flash */
    uint32_t unit;        /* bytes that are written at once, a power of two, at most MICROC_SLOT_RECORD */
    uint8_t *memory;      /* what tensors live in, aligned to 16 bytes */
    uint32_t memory_size; /* in bytes */
    uint32_t stack_size;  /* in bytes */
};

/*
 * What a board does for it. ports/slots.c has weak ones, for slots in RAM: a network is gone then when the power is. A board
 * with flash to spare defines the three in a file of its own (ports/nrf_nvmc.c is one).
 *
 * `erase`: have the first `size` bytes of slot 0 or 1 hold nothing; the first bytes must go first. `write`: set bytes that were
 * erased before and not written since; offset and size are multiples of the unit. Both return 0, or non-zero on failure, and the
 * core reads what is there when they do: a data cache in front of flash must have forgotten these bytes. Neither is called for
 * the slot that runs or for bytes past the end of one; slots that hold no blob (below 192 bytes, unit 0 or 3) are left alone.
 */
void microc_port_slots(struct microc_slots *slots);
int microc_port_slot_erase(uint32_t slot, uint32_t size);
int microc_port_slot_write(uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size);

/*
 * Whether a blob may run: 0, or non-zero to refuse it. It is asked before a blob is committed, and at every boot. The signature
 * is what the host sent behind the blob, and may have no bytes. The weak one that is there takes everything: a CRC, which is
 * checked before, tells damage, and no more.
 */
int microc_slot_verify(const uint8_t *blob, uint32_t size, const uint8_t *signature, uint32_t signature_size);

/* The network that runs, once microc_slot_open() or a host's commit has said that there is one. */
extern struct microc_model microc_slot_model;

/* Find the newer of the networks that are whole and fit. Call it once, at boot. Returns how many there are to run: 0 or 1. */
uint8_t microc_slot_open(void);

/*
 * Operations, as those of microc_load.h. A commit changes what runs: neither they nor microc_rpc_receive() may be called while
 * the network runs, from a hook, an interrupt or another task.
 */
#define MICROC_ERASE_REQUEST 4u
#define MICROC_COMMIT_REQUEST 4u
int microc_slot_tell(const struct microc_call *call);
int microc_slot_erase(const struct microc_call *call);
int microc_slot_load(const struct microc_call *call);
int microc_slot_commit(const struct microc_call *call);

#ifdef __cplusplus
}
#endif

#endif
