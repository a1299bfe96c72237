/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam: everything the runtime needs from a board. One C file per UART family implements it (ports/).
 *
 * A port uses no heap and no interrupt that the runtime depends on. All functions are called from one context (main).
 */
#ifndef MICROC_PORT_H
#define MICROC_PORT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Ticks per second of microc_port_ticks(); a fact of the board, stated on the compiler's command line. */
#ifndef MICROC_PORT_TICK_HZ
#error "define MICROC_PORT_TICK_HZ, the ticks per second of microc_port_ticks()"
#endif

/* Set up clock, console and tick counter. Called once, before any other function of the port. */
void microc_port_init(void);

/*
 * Take up to `size` bytes (size >= 1) that have arrived. Returns how many were taken, 0 when none has arrived yet, and a
 * negative number when none will ever arrive again (a closed pipe; an MCU never says so). May wait or return at once.
 */
int microc_port_read(uint8_t *data, size_t size);

/* Send `size` bytes (0 is allowed), waiting until all are accepted. Returns 0, or a negative number when the line is gone. */
int microc_port_write(const uint8_t *data, size_t size);

/* A free-running counter of MICROC_PORT_TICK_HZ that counts up and wraps from 2^32 - 1 to 0. */
uint32_t microc_port_ticks(void);

/*
 * Stack high-water mark. `paint` fills the unused stack with a pattern, once, early in main. `used` returns the largest
 * depth in bytes since, counted from the stack's top; 0 when the port cannot tell.
 */
void microc_port_stack_paint(void);
uint32_t microc_port_stack_used(void);

#ifdef __cplusplus
}
#endif

#endif
