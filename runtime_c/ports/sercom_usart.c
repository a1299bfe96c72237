/* SPDX-License-Identifier: Apache-2.0 */
/* The SERCOM of SAM D and E chips as a USART, internal clock, 16 times oversampled; `tx_pad` and `rx_pad` are values of TXPO and RXPO. */
#include "driver.h"

#define SERCOM(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define CTRLA SERCOM(0x00u)
#define CTRLB SERCOM(0x04u)
#define BAUD (*(volatile uint16_t *)(uintptr_t)(MICROC_CONSOLE_BASE + 0x0Cu))
#define INTENSET (*(volatile uint8_t *)(uintptr_t)(MICROC_CONSOLE_BASE + 0x16u))
#define INTFLAG (*(volatile uint8_t *)(uintptr_t)(MICROC_CONSOLE_BASE + 0x18u))
#define SYNCBUSY SERCOM(0x1Cu)
#define DATA SERCOM(0x28u)

#define CTRLA_ENABLE (1u << 1)
#define CTRLA_INTERNAL_CLOCK (1u << 2)
#define CTRLA_LSB_FIRST (1u << 30)
#define CTRLB_TXEN (1u << 16)
#define CTRLB_RXEN (1u << 17)
#define FLAG_DRE (1u << 0)
#define FLAG_RXC (1u << 2)

/* 65536 * (1 - 16 * baud / clock). */
#define DIVISOR (65536u - (uint32_t)((uint64_t)MICROC_CONSOLE_BAUD * 16u * 65536u / MICROC_CONSOLE_CLOCK_HZ))

static void settle(void)
{
    while (SYNCBUSY != 0u) {
    }
}

void microc_uart_init(void)
{
    CTRLA = CTRLA_LSB_FIRST | CTRLA_INTERNAL_CLOCK | (MICROC_CONSOLE_TX_PAD << 16) | (MICROC_CONSOLE_RX_PAD << 20);
    CTRLB = CTRLB_TXEN | CTRLB_RXEN;
    settle();
    BAUD = (uint16_t)DIVISOR;
    INTENSET = FLAG_RXC;
    CTRLA |= CTRLA_ENABLE;
    settle();
}

int microc_uart_waiting(void)
{
    return (INTFLAG & FLAG_RXC) != 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)DATA;
}

void microc_uart_send(uint8_t byte)
{
    while ((INTFLAG & FLAG_DRE) == 0u) {
    }
    DATA = byte;
}
