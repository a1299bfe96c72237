/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The USB Serial/JTAG controller of the ESP32-C3: a serial port without a UART. A byte that is sent is a packet of its own, since
 * nobody says here which is the last; a host that does not read holds the board up, as one that sends too much is held up.
 */
#include "driver.h"

#define USB(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define EP1 USB(0x00u)
#define EP1_CONF USB(0x04u)
#define INT_ENA USB(0x10u)
#define INT_CLR USB(0x14u)

#define CONF_WRITTEN (1u << 0)
#define CONF_MAY_WRITE (1u << 1)
#define CONF_RECEIVED (1u << 2)
#define INT_RECEIVED (1u << 2) /* a packet, whose bytes wait in a FIFO of 64 */

void microc_uart_init(void)
{
    INT_CLR = 0xFFFFFFFFu;
    INT_ENA = INT_RECEIVED;
}

int microc_uart_waiting(void)
{
    return (EP1_CONF & CONF_RECEIVED) != 0u;
}

uint8_t microc_uart_take(void)
{
    const uint8_t byte = (uint8_t)EP1;
    if (!microc_uart_waiting()) { /* until then it stays: bytes may be left for the next interrupt */
        INT_CLR = INT_RECEIVED;
    }
    return byte;
}

void microc_uart_send(uint8_t byte)
{
    while ((EP1_CONF & CONF_MAY_WRITE) == 0u) {
    }
    EP1 = byte;
    EP1_CONF = CONF_WRITTEN;
}
