/* SPDX-License-Identifier: Apache-2.0 */
/* A port in memory: what is written to it stays readable here. */
#ifndef MEMORY_PORT_H
#define MEMORY_PORT_H

#include <stddef.h>
#include <stdint.h>

extern uint8_t memory_sent[1u << 16];
extern size_t memory_sent_size;
extern uint32_t memory_ticks; /* goes up by 10 at every reading */

/* What a loaded program would be: memory between guards. Nothing in it runs; calls are counted, with what they were given. */
#define MEMORY_REGION 600u
#define MEMORY_GUARD 0xA5u
extern uint8_t memory_region[8u + MEMORY_REGION + 8u];
extern unsigned memory_calls;
extern uint32_t memory_number;
extern int memory_fails;

/* A small generator of pseudo-random numbers, the same everywhere. */
uint32_t memory_random(void);

#endif
