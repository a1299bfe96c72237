/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UART with EasyDMA of nRF52, nRF53 and nRF91: the only one that the nRF5340 has. Bytes are received one at a time, each into
 * the same place, so that every one raises the interrupt. Pins count on over the ports: P1.00 is 32. [setup] makes the
 * sending pin an output.
 */
#include "driver.h"

#define UARTE(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define TASKS_STARTRX UARTE(0x000u)
#define TASKS_STARTTX UARTE(0x008u)
#define EVENTS_ENDRX UARTE(0x110u)
#define EVENTS_ENDTX UARTE(0x120u)
#define SHORTS UARTE(0x200u)
#define INTENSET UARTE(0x304u)
#define ENABLE UARTE(0x500u)
#define PSEL_TXD UARTE(0x50Cu)
#define PSEL_RXD UARTE(0x514u)
#define BAUDRATE UARTE(0x524u)
#define RXD_PTR UARTE(0x534u)
#define RXD_MAXCNT UARTE(0x538u)
#define TXD_PTR UARTE(0x544u)
#define TXD_MAXCNT UARTE(0x548u)

#define SHORT_ENDRX_STARTRX (1u << 5)
#define INTERRUPT_ENDRX (1u << 4)
#define ENABLED 8u

/* The rate as a fraction of 16 MHz in 2^-32, rounded to the 20 bits that the hardware has. */
#define RATE ((((uint64_t)MICROC_CONSOLE_BAUD << 32) / 16000000u + 0x800u) & 0xFFFFF000u)

static volatile uint8_t received; /* DMA reaches RAM only */
static volatile uint8_t sent;

void microc_uart_init(void)
{
    PSEL_TXD = MICROC_CONSOLE_TX_PIN;
    PSEL_RXD = MICROC_CONSOLE_RX_PIN;
    BAUDRATE = (uint32_t)RATE;
    ENABLE = ENABLED;
    RXD_PTR = (uint32_t)(uintptr_t)&received;
    RXD_MAXCNT = 1u;
    TXD_PTR = (uint32_t)(uintptr_t)&sent;
    TXD_MAXCNT = 1u;
    SHORTS = SHORT_ENDRX_STARTRX;
    INTENSET = INTERRUPT_ENDRX;
    TASKS_STARTRX = 1u;
}

int microc_uart_waiting(void)
{
    return EVENTS_ENDRX != 0u;
}

uint8_t microc_uart_take(void)
{
    EVENTS_ENDRX = 0u; /* before the byte is read: the next one sets it again */
    return received;
}

void microc_uart_send(uint8_t byte)
{
    sent = byte;
    EVENTS_ENDTX = 0u;
    TASKS_STARTTX = 1u;
    while (EVENTS_ENDTX == 0u) {
    }
}
