/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network as it is loaded: header, code and constants, table of tensors. SPEC.md, "Blob", has every byte of it.
 */
#ifndef MICROC_BLOB_H
#define MICROC_BLOB_H

#include "microc_slot.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a blob says of itself, once it is known to be whole and to fit. */
struct microc_blob {
    const uint8_t *bytes;
    uint32_t size;  /* without the signature */
    uint32_t table; /* bytes that a board's table of its tensors takes, in front of the network's own memory */
    microc_entry run;   /* one kernel, by its number; the first of the places is the network's memory */
    microc_entry reset; /* puts its state to the initial content; NULL where nothing is kept */
};

/*
 * Read the header of a blob in memory, which has `size` bytes at most, for a board with these slots. Nothing is executed.
 * MICROC_OK, MICROC_BAD_IMAGE (damaged), MICROC_BAD_TARGET (of another format, core or ABI), MICROC_NO_ROOM (needs more memory
 * or stack than there is).
 */
int microc_blob_read(const uint8_t *bytes, uint32_t size, const struct microc_slots *slots, struct microc_blob *blob);

/* Make the descriptor of a network that was read, its tensors in `memory`; all but its functions. */
void microc_blob_describe(const struct microc_blob *blob, uint8_t *memory, struct microc_model *model);

#ifdef __cplusplus
}
#endif

#endif
