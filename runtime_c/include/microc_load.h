/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that the host sends: a reserved part of RAM that programs are loaded into and called in. SPEC.md, "Loading code".
 *
 * Firmware for tuning alone has this (MICROC_RPC_LOAD). Whoever can write to its line runs code: never ship it.
 */
#ifndef MICROC_LOAD_H
#define MICROC_LOAD_H

#include "microc_rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Addresses that a call passes at most. */
#define MICROC_LOAD_PLACES 32u

/* A request under execution. */
struct microc_call {
    struct microc_rpc *rpc;
    const struct microc_model *model;
    const uint8_t *payload;
    uint16_t size;
    uint8_t *answer; /* room for MICROC_RPC_MAX_PAYLOAD bytes */
};

/* Bytes of a request's payload in front of what may follow. */
#define MICROC_LOAD_HEADER 4u
#define MICROC_FETCH_REQUEST 6u
#define MICROC_CALL_HEADER 24u
#define MICROC_CHECK_REQUEST 8u

/* Operations. Each returns the bytes of `answer` it has written, or a negative enum microc_status. */
int microc_load_region(const struct microc_call *call);
int microc_load_bytes(const struct microc_call *call);
int microc_load_fetch(const struct microc_call *call);
int microc_load_call(const struct microc_call *call);
int microc_load_check(const struct microc_call *call);

/* Where a program begins: `number` and the addresses are the host's. 0, or non-zero on failure. */
typedef int (*microc_entry)(void *const *places, uint32_t number);

/*
 * What a core does for it, one C file (ports/<core>_load.c).
 *
 * `region`: the memory, of `size` bytes, from which the core can execute. `code_changed`: make caches agree about code that was
 * written as data, and have no protection unit forbid its execution. `entry`: the function at an address.
 */
uint8_t *microc_port_region(uint32_t *size);
void microc_port_code_changed(const uint8_t *code, uint32_t size);
microc_entry microc_port_entry(const uint8_t *address);

#ifdef __cplusplus
}
#endif

#endif
