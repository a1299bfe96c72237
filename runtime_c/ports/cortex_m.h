/*
 * What a UART family and a timer give to cortex_m.c, which makes the port seam out of them.
 *
 * Facts of the board (addresses, interrupt number, pins, rates) come from microc_board.h, which the build includes before
 * everything else: MICROC_CONSOLE_<KEY> for every key of [console] in the board file, MICROC_TIMER_<KEY> for [timer].
 */
#ifndef MICROC_CORTEX_M_H
#define MICROC_CORTEX_M_H

#include <stdint.h>

/* A device register. */
#define MICROC_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

/* A UART family, one C file. `init` sets clocks, pins and baud rate and lets every received byte raise the interrupt. */
void microc_uart_init(void);
/* Whether a received byte waits in the hardware. */
int microc_uart_waiting(void);
/* Take the waiting byte and clear its interrupt. */
uint8_t microc_uart_take(void);
/* Send one byte, waiting until the hardware accepts it. */
void microc_uart_send(uint8_t byte);

/* A timer, one C file; it implements microc_port_ticks() too. */
void microc_timer_init(void);

/* The handler of interrupt MICROC_CONSOLE_IRQ, in cortex_m.c. */
void microc_console_interrupt(void);

#endif
