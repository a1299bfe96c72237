/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arm's PrimeCell UART PL011 (Stellaris, RP2040, RP2350, Apollo4), with its FIFOs off: every byte raises the interrupt.
 * [console] control: what else UARTCR holds, as Ambiq's choice of a clock.
 */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define UARTDR UART(0x00u)
#define UARTFR UART(0x18u)
#define UARTIBRD UART(0x24u)
#define UARTFBRD UART(0x28u)
#define UARTLCR_H UART(0x2Cu)
#define UARTCR UART(0x30u)
#define UARTIMSC UART(0x38u)
#define UARTICR UART(0x44u)

#define FR_RXFE (1u << 4)
#define FR_TXFF (1u << 5)
#define LCR_8_BITS (3u << 5)
#define CR_UARTEN (1u << 0)
#define CR_TXE (1u << 8)
#define CR_RXE (1u << 9)
#define INTERRUPT_RX (1u << 4)
#define INTERRUPT_OVERRUN (1u << 10)

#ifndef MICROC_CONSOLE_CONTROL
#define MICROC_CONSOLE_CONTROL 0u
#endif

/* The clock over 16 times the baud rate in 64ths, rounded. */
#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ * 8u / MICROC_CONSOLE_BAUD + 1u) / 2u)

void microc_uart_init(void)
{
    UARTCR = MICROC_CONSOLE_CONTROL;
    UARTIBRD = DIVISOR / 64u;
    UARTFBRD = DIVISOR % 64u;
    UARTLCR_H = LCR_8_BITS; /* after the divisor: writing it takes the divisor over */
    UARTIMSC = INTERRUPT_RX;
    UARTCR = MICROC_CONSOLE_CONTROL | CR_UARTEN | CR_TXE | CR_RXE;
}

int microc_uart_waiting(void)
{
    return (UARTFR & FR_RXFE) == 0u;
}

uint8_t microc_uart_take(void)
{
    uint8_t byte = (uint8_t)UARTDR;
    UARTICR = INTERRUPT_RX | INTERRUPT_OVERRUN;
    return byte;
}

void microc_uart_send(uint8_t byte)
{
    while ((UARTFR & FR_TXFF) != 0u) {
    }
    UARTDR = byte;
}
