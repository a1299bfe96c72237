/* SPDX-License-Identifier: Apache-2.0 */
/* The UART of Arm's Cortex-M System Design Kit (MPS2, MPS3). It holds one byte each way. */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define UART_DATA UART(0x00u)
#define UART_STATE UART(0x04u)
#define UART_CTRL UART(0x08u)
#define UART_INTCLEAR UART(0x0Cu)
#define UART_BAUDDIV UART(0x10u)

#define STATE_TX_FULL (1u << 0)
#define STATE_RX_FULL (1u << 1)
#define CTRL_TX (1u << 0)
#define CTRL_RX (1u << 1)
#define CTRL_RX_INTERRUPT (1u << 3)
#define INTERRUPT_RX (1u << 1)

void microc_uart_init(void)
{
    UART_BAUDDIV = MICROC_CONSOLE_CLOCK_HZ / MICROC_CONSOLE_BAUD;
    UART_CTRL = CTRL_TX | CTRL_RX | CTRL_RX_INTERRUPT;
}

int microc_uart_waiting(void)
{
    return (UART_STATE & STATE_RX_FULL) != 0u;
}

uint8_t microc_uart_take(void)
{
    /* In this order: the next byte may arrive as soon as this one is read. */
    UART_INTCLEAR = INTERRUPT_RX;
    return (uint8_t)UART_DATA;
}

void microc_uart_send(uint8_t byte)
{
    while ((UART_STATE & STATE_TX_FULL) != 0u) {
    }
    UART_DATA = byte;
}
