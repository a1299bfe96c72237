/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam of networks whose weights are in a memory that the core cannot address (an SD card, a serial flash). The board's port
 * implements it, or a file of yours.
 */
#ifndef MICROC_STORAGE_H
#define MICROC_STORAGE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Read `bytes` bytes (at least 1) of weights.bin, from the byte `offset` on, to `to`, a multiple of four. Returns 0, or another
 * number if that fails. It may return before the bytes are there, to let a DMA controller work; more reads may follow before a wait.
 */
int microc_storage_read(uint32_t offset, void *to, uint32_t bytes);

/* Wait until all reads that were begun are complete. Returns 0, or another number if one has failed. */
int microc_storage_wait(void);

#ifdef __cplusplus
}
#endif

#endif
