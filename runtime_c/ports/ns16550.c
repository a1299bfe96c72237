/* SPDX-License-Identifier: Apache-2.0 */
/* The UART 16550 and what descends from it, with its FIFO on. `stride` is the distance of its registers in bytes. */
#include "driver.h"

#if MICROC_CONSOLE_STRIDE == 1
#define UART(number) (*(volatile uint8_t *)(uintptr_t)(MICROC_CONSOLE_BASE + (number)))
#else
#define UART(number) MICROC_REGISTER(MICROC_CONSOLE_BASE + (number) * MICROC_CONSOLE_STRIDE)
#endif
#define DATA UART(0u) /* with LCR_DIVISOR: the divisor's low byte */
#define IER UART(1u)  /* with LCR_DIVISOR: its high byte */
#define FCR UART(2u)
#define LCR UART(3u)
#define LSR UART(5u)

#define IER_RECEIVED (1u << 0)
#define FCR_ENABLE_AND_CLEAR 7u
#define LCR_8_BITS 3u
#define LCR_DIVISOR (1u << 7)
#define LSR_RECEIVED (1u << 0)
#define LSR_MAY_SEND (1u << 5)

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ + 8u * MICROC_CONSOLE_BAUD) / (16u * MICROC_CONSOLE_BAUD))

void microc_uart_init(void)
{
    LCR = LCR_DIVISOR;
    DATA = DIVISOR & 0xFFu;
    IER = DIVISOR >> 8;
    LCR = LCR_8_BITS;
    FCR = FCR_ENABLE_AND_CLEAR; /* the interrupt comes with the first byte */
    (void)DATA;                 /* what came too early: QEMU takes no more until it is read */
    IER = IER_RECEIVED;
}

int microc_uart_waiting(void)
{
    return (LSR & LSR_RECEIVED) != 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)DATA;
}

void microc_uart_send(uint8_t byte)
{
    while ((LSR & LSR_MAY_SEND) == 0u) {
    }
    DATA = byte;
}
