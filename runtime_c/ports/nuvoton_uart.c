/* SPDX-License-Identifier: Apache-2.0 */
/* Nuvoton's UART (NuMicro M55M1 and its relatives), with its FIFOs. [setup] gives it clock and pins. */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define DAT UART(0x00u)
#define INTEN UART(0x04u)
#define FIFO UART(0x08u)
#define LINE UART(0x0Cu)
#define FIFOSTS UART(0x18u)
#define BAUD UART(0x24u)

#define INTEN_RDAIEN (1u << 0)
#define LINE_8_BITS 3u
#define FIFOSTS_RXEMPTY (1u << 14)
#define FIFOSTS_TXFULL (1u << 23)
#define BAUD_MODE_2 (3u << 28) /* the clock by the divisor and two */

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD - 2u)

void microc_uart_init(void)
{
    LINE = LINE_8_BITS;
    BAUD = BAUD_MODE_2 | DIVISOR;
    FIFO = 0u; /* the interrupt comes with the first byte */
    INTEN = INTEN_RDAIEN;
}

int microc_uart_waiting(void)
{
    return (FIFOSTS & FIFOSTS_RXEMPTY) == 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)DAT; /* the interrupt goes with the last byte */
}

void microc_uart_send(uint8_t byte)
{
    while ((FIFOSTS & FIFOSTS_TXFULL) != 0u) {
    }
    DAT = byte;
}
