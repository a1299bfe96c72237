/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a port is made of. console.c makes the seam of microc_port.h out of an interrupt controller, a UART and a timer, each
 * one C file that the board file lists.
 *
 * Facts of the board (addresses, interrupt number, rates) come from microc_board.h, which the build includes before
 * everything else: MICROC_CONSOLE_<KEY> for every key of [console] in the board file, MICROC_TIMER_<KEY> for [timer],
 * MICROC_NPU_<KEY> for the numbers of [npu], MICROC_FORK_<KEY> for those of [fork].
 */
#ifndef MICROC_DRIVER_H
#define MICROC_DRIVER_H

#include <stdint.h>

/* A device register. */
#define MICROC_REGISTER(address) MICROC_REGISTER_AS(uint32_t, address)
#define MICROC_REGISTER_AS(type, address) (*(volatile type *)(uintptr_t)(address))

/* A core, one C file: the way from reset to main, and the one interrupt that the console uses. */
void microc_interrupt_enable(void);
void microc_interrupt_disable(void);
/* Its handler, in console.c. */
void microc_console_interrupt(void);

/* Bytes of the ring of received bytes, a power of two: no less than what the host may send ahead of an answer. */
#ifndef MICROC_PORT_RX_SIZE
#define MICROC_PORT_RX_SIZE 512u
#endif

/* Counts bytes, modulo its own size; the core must read and write it at once. */
#if MICROC_PORT_RX_SIZE <= 128
typedef uint8_t microc_ring_count;
#else
typedef uint32_t microc_ring_count;
#endif

/*
 * What a core needs in addition for [console] sleep = 1: stop it until an interrupt is pending, unless the handler has already
 * changed `count` from `seen`. Interrupts are masked from reading `count` to stopping, so that none can come between them.
 */
void microc_core_sleep(const volatile microc_ring_count *count, microc_ring_count seen);

/* A UART family, one C file. `init` sets the baud rate and lets every received byte raise the interrupt. */
void microc_uart_init(void);
/* Whether a received byte waits in the hardware. */
int microc_uart_waiting(void);
/* Take the waiting byte and clear its interrupt. */
uint8_t microc_uart_take(void);
/* Send one byte, waiting until the hardware accepts it. */
void microc_uart_send(uint8_t byte);

/*
 * A second core, one C file beside cores.c: let it run microc_core1_work, on a stack that ends at `stack_top`. What a core needs
 * before C code (floating point on, global pointer) is done there.
 */
void microc_core1_start(uint32_t *stack_top);
/* Does not return. */
void microc_core1_work(void);
/* Ticks that the clock of an emulator counted in excess, since it runs one core at a time (MICROC_FORK_SHARED_CLOCK). */
uint32_t microc_fork_saved_ticks(void);

/* A timer, one C file; it implements microc_port_ticks() too. */
void microc_timer_init(void);

/*
 * Clocks, pins and whatever else the board's [setup] table says, register by register. The way from reset to main begins with
 * it, before RAM holds anything.
 */
static inline void microc_setup(void)
{
#ifdef MICROC_SETUP
#define MICROC_WRITE(address, value) MICROC_WRITE_AS(uint32_t, address, value)
#define MICROC_CHANGE(address, mask, value) MICROC_CHANGE_AS(uint32_t, address, mask, value)
#define MICROC_WAIT(address, mask, value) MICROC_WAIT_AS(uint32_t, address, mask, value)
#define MICROC_WRITE_AS(type, address, value) MICROC_REGISTER_AS(type, address) = (type)(value);
#define MICROC_CHANGE_AS(type, address, mask, value)                                                                            \
    MICROC_REGISTER_AS(type, address) = (type)((MICROC_REGISTER_AS(type, address) & ~(mask)) | (value));
#define MICROC_WAIT_AS(type, address, mask, value)                                                                              \
    while ((MICROC_REGISTER_AS(type, address) & (mask)) != (value)) {                                                           \
    }
    MICROC_SETUP(MICROC_WRITE, MICROC_CHANGE, MICROC_WAIT)
#endif
}

#endif
