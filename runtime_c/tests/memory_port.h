/* A port in memory: what is written to it stays readable here. */
#ifndef MEMORY_PORT_H
#define MEMORY_PORT_H

#include <stddef.h>
#include <stdint.h>

extern uint8_t memory_sent[1u << 16];
extern size_t memory_sent_size;
extern uint32_t memory_ticks; /* goes up by 10 at every reading */

/* A small generator of pseudo-random numbers, the same everywhere. */
uint32_t memory_random(void);

#endif
