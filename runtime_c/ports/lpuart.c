/* SPDX-License-Identifier: Apache-2.0 */
/* NXP's LPUART (i.MX RT, MCX), 16 times oversampled, with its FIFOs off. */
#include "driver.h"

#define LPUART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define BAUD LPUART(0x10u)
#define STAT LPUART(0x14u)
#define CTRL LPUART(0x18u)
#define DATA LPUART(0x1Cu)

#define BAUD_OVERSAMPLING (15u << 24)
#define STAT_OVERRUN (1u << 19)
#define STAT_RDRF (1u << 21)
#define STAT_TDRE (1u << 23)
#define CTRL_RE (1u << 18)
#define CTRL_TE (1u << 19)
#define CTRL_RIE (1u << 21)

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ / 8u / MICROC_CONSOLE_BAUD + 1u) / 2u)

void microc_uart_init(void)
{
    CTRL = 0u;
    BAUD = BAUD_OVERSAMPLING | DIVISOR;
    CTRL = CTRL_RE | CTRL_TE | CTRL_RIE;
}

int microc_uart_waiting(void)
{
    return (STAT & STAT_RDRF) != 0u;
}

uint8_t microc_uart_take(void)
{
    const uint8_t byte = (uint8_t)DATA;
    STAT |= STAT_OVERRUN; /* otherwise nothing more would be received; none comes as long as the buffer is empty */
    return byte;
}

void microc_uart_send(uint8_t byte)
{
    while ((STAT & STAT_TDRE) == 0u) {
    }
    DATA = byte;
}
