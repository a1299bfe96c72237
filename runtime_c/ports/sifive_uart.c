/* SPDX-License-Identifier: Apache-2.0 */
/* SiFive's UART (FE310, FU540), with eight bytes of FIFO each way. */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define TXDATA UART(0x00u)
#define RXDATA UART(0x04u)
#define TXCTRL UART(0x08u)
#define RXCTRL UART(0x0Cu)
#define IE UART(0x10u)
#define IP UART(0x14u)
#define DIV UART(0x18u)

#define TX_FULL (1u << 31)
#define CTRL_ENABLE 1u
#define INTERRUPT_RX (1u << 1) /* more bytes than the watermark, which is 0 */

void microc_uart_init(void)
{
    DIV = (MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD - 1u;
    TXCTRL = CTRL_ENABLE;
    RXCTRL = CTRL_ENABLE;
    IE = INTERRUPT_RX;
}

int microc_uart_waiting(void)
{
    return (IP & INTERRUPT_RX) != 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)RXDATA;
}

void microc_uart_send(uint8_t byte)
{
    while ((TXDATA & TX_FULL) != 0u) {
    }
    TXDATA = byte;
}
