/* SPDX-License-Identifier: Apache-2.0 */
/* The UART of the nRF51 (six bytes of FIFO for receiving), without flow control; the nRF52 has it, too.
 * Pins count on over the ports: P1.03 is 35. [setup] makes the sending pin an output. */
#include "driver.h"

#define UART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define TASKS_STARTRX UART(0x000u)
#define TASKS_STARTTX UART(0x008u)
#define EVENTS_RXDRDY UART(0x108u)
#define EVENTS_TXDRDY UART(0x11Cu)
#define INTENSET UART(0x304u)
#define ENABLE UART(0x500u)
#define PSELTXD UART(0x50Cu)
#define PSELRXD UART(0x514u)
#define RXD UART(0x518u)
#define TXD UART(0x51Cu)
#define BAUDRATE UART(0x524u)

#define INTERRUPT_RXDRDY (1u << 2)

/* The rate as a fraction of 16 MHz in 2^-32, rounded to the 20 bits that the hardware has. */
#define RATE ((((uint64_t)MICROC_CONSOLE_BAUD << 32) / 16000000u + 0x800u) & 0xFFFFF000u)

void microc_uart_init(void)
{
    PSELTXD = MICROC_CONSOLE_TX_PIN;
    PSELRXD = MICROC_CONSOLE_RX_PIN;
    BAUDRATE = (uint32_t)RATE;
    ENABLE = 4u;
    INTENSET = INTERRUPT_RXDRDY;
    TASKS_STARTRX = 1u;
    TASKS_STARTTX = 1u;
}

int microc_uart_waiting(void)
{
    return EVENTS_RXDRDY != 0u;
}

uint8_t microc_uart_take(void)
{
    EVENTS_RXDRDY = 0u; /* before the byte is read: the next one in the FIFO sets it again */
    return (uint8_t)RXD;
}

void microc_uart_send(uint8_t byte)
{
    EVENTS_TXDRDY = 0u;
    TXD = byte;
    while (EVENTS_TXDRDY == 0u) {
    }
}
