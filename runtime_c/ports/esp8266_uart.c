/* SPDX-License-Identifier: Apache-2.0 */
/* The UART of the ESP8266, with FIFOs of 128 bytes, on the clock of its peripherals: [console] clock_hz is its rate. */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define FIFO UART(0x00u)
#define INT_ENA UART(0x0Cu)
#define INT_CLR UART(0x10u)
#define CLKDIV UART(0x14u)
#define STATUS UART(0x1Cu)
#define CONF0 UART(0x20u)
#define CONF1 UART(0x24u)

#define INT_RXFIFO_FULL 1u /* at least the threshold of CONF1 waits */
#define STATUS_RXFIFO_CNT 0xFFu
#define STATUS_TXFIFO_CNT(status) ((status) >> 16 & 0xFFu)
#define CONF0_8_BITS 0x1Cu /* no parity, one stop bit */
#define CONF0_RESET_FIFOS (3u << 17)
#define FIFO_BYTES 126u /* a full FIFO loses the byte; two less than it has, as its own ROM leaves */

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD)

void microc_uart_init(void)
{
    while (STATUS_TXFIFO_CNT(STATUS) != 0u) { /* what the ROM says at reset goes out at the rate it was meant for */
    }
    CLKDIV = DIVISOR;
    CONF0 = CONF0_8_BITS | CONF0_RESET_FIFOS;
    CONF0 = CONF0_8_BITS;
    CONF1 = 1u; /* the interrupt comes with the first byte */
    INT_CLR = 0xFFFFFFFFu;
    INT_ENA = INT_RXFIFO_FULL;
}

int microc_uart_waiting(void)
{
    return (STATUS & STATUS_RXFIFO_CNT) != 0u;
}

uint8_t microc_uart_take(void)
{
    const uint8_t byte = (uint8_t)FIFO;
    if (!microc_uart_waiting()) { /* until then it stays: bytes may be left for the next interrupt */
        INT_CLR = INT_RXFIFO_FULL;
    }
    return byte;
}

void microc_uart_send(uint8_t byte)
{
    while (STATUS_TXFIFO_CNT(STATUS) >= FIFO_BYTES) {
    }
    FIFO = byte;
}
