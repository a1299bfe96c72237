/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam: a ring of received bytes that the UART's interrupt fills, and the painted stack.
 *
 * When the ring is full the interrupt is masked and the next byte stays in the hardware: nothing is lost where the line has
 * flow control (or an emulator behind it), and elsewhere the sender's window keeps it from happening.
 *
 * With [console] sleep = 1, reading from an empty ring stops the core until the next interrupt, which may be another's: the
 * caller reads again, as it must anyway. The core and its clock go on as soon as it comes; kernels never get here.
 */
#include "driver.h"
#include "microc_port.h"
#ifdef MICROC_PORT_CORES
#include "microc_cores.h"
#endif

#include <stddef.h>

#define STACK_PATTERN 0xA5A5A5A5u
/* Bytes of its own frame that painting leaves alone. */
#define PAINT_MARGIN 32u

/* From the linker script. */
extern uint32_t __stack_limit[];
extern uint32_t __stack_top[];

static uint8_t ring[MICROC_PORT_RX_SIZE];
static volatile microc_ring_count ring_head; /* bytes ever received; only the interrupt writes it */
static volatile microc_ring_count ring_tail; /* bytes ever read; only microc_port_read writes it */

void microc_console_interrupt(void)
{
    microc_ring_count head = ring_head;
    while (microc_uart_waiting() != 0) {
        if ((microc_ring_count)(head - ring_tail) == MICROC_PORT_RX_SIZE) {
            microc_interrupt_disable();
            break;
        }
        ring[head % MICROC_PORT_RX_SIZE] = microc_uart_take();
        head = (microc_ring_count)(head + 1u);
        ring_head = head;
    }
}

void microc_port_init(void)
{
    microc_uart_init();
    microc_interrupt_enable();
    microc_timer_init();
#ifdef MICROC_PORT_CORES
    microc_port_cores_init();
#endif
}

int microc_port_read(uint8_t *data, size_t size)
{
    microc_ring_count tail = ring_tail;
    size_t count = 0;
#ifdef MICROC_CONSOLE_SLEEP
    microc_core_sleep(&ring_head, tail); /* only if the ring is empty */
#endif
    while (count < size && tail != ring_head) {
        data[count] = ring[tail % MICROC_PORT_RX_SIZE];
        count += 1u;
        tail = (microc_ring_count)(tail + 1u);
    }
    if (count != 0u) {
        ring_tail = tail;
        microc_interrupt_enable(); /* it may have been masked for want of room */
    }
    return (int)count;
}

int microc_port_write(const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        microc_uart_send(data[i]);
    }
    return 0;
}

void microc_port_stack_paint(void)
{
    /* Volatile stores: a call of memset would live in the very bytes it paints. */
    volatile uint32_t *word = __stack_limit;
    const uintptr_t stack_pointer = (uintptr_t)__builtin_frame_address(0) - PAINT_MARGIN;
    while ((uintptr_t)word < stack_pointer) {
        *word = STACK_PATTERN;
        word += 1;
    }
}

uint32_t microc_port_stack_used(void)
{
    const volatile uint32_t *word = __stack_limit;
    while ((uintptr_t)word < (uintptr_t)__stack_top && *word == STACK_PATTERN) {
        word += 1;
    }
    return (uint32_t)((uintptr_t)__stack_top - (uintptr_t)word);
}
