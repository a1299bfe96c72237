/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port of a second core, which runs one function at a time for the core that runs main. Ports are in ports/cores_*.c; a
 * network that is compiled with --cores 2 calls fork and join, and microc_port_init() of a firmware calls init.
 *
 * Fork and join are called from one context (main), in turn: forks do not nest, and a function that was forked forks nothing. It has
 * a stack of MICROC_FORK_STACK_BYTES bytes and returns before its kernel ends. The other core takes no interrupts, except in the
 * port of ESP-IDF, which keeps room for their frames.
 */
#ifndef MICROC_CORES_H
#define MICROC_CORES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Start the other core, which waits for work. Called once, before the first fork. */
void microc_port_cores_init(void);

/* Let the other core call function(argument). What was written before is seen there. */
void microc_port_fork(void (*function)(const void *), const void *argument);

/* Wait until the function has returned. What it wrote is seen then. */
void microc_port_join(void);

/* Largest depth of the other core's stack so far, in bytes; 0 when the port cannot tell. */
uint32_t microc_port_fork_stack_used(void);

#ifdef __cplusplus
}
#endif

#endif
