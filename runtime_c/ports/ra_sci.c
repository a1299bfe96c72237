/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renesas' SCI (RA4M1) as a UART. Events reach the core through the ICU: interrupt MICROC_CONSOLE_IRQ is linked to `event`,
 * which is the receiver's, and its flag is cleared by hand.
 */
#include "driver.h"

#define SCI(offset) MICROC_REGISTER_AS(uint8_t, MICROC_CONSOLE_BASE + (offset))
#define SMR SCI(0u)
#define BRR SCI(1u)
#define SCR SCI(2u)
#define TDR SCI(3u)
#define SSR SCI(4u)
#define RDR SCI(5u)
#define SEMR SCI(7u)
#define IELSR MICROC_REGISTER(MICROC_CONSOLE_ICU_BASE + 0x300u + 4u * MICROC_CONSOLE_IRQ)

#define SCR_RE (1u << 4)
#define SCR_TE (1u << 5)
#define SCR_RIE (1u << 6)
#define SSR_ERRORS (7u << 3) /* overrun, framing, parity: as long as one is set, nothing is received */
#define SSR_RDRF (1u << 6)
#define SSR_TDRE (1u << 7)
#define SEMR_ABCS (1u << 4) /* with BGDM: 8 cycles of the clock are a bit */
#define SEMR_BGDM (1u << 6)

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ / 4u / MICROC_CONSOLE_BAUD + 1u) / 2u)

void microc_uart_init(void)
{
    SCR = 0u;
    SMR = 0u; /* asynchronous, 8 bits, no parity, one stop bit */
    SEMR = SEMR_ABCS | SEMR_BGDM;
    BRR = (uint8_t)(DIVISOR - 1u);
    SCR = SCR_TE | SCR_RE | SCR_RIE;
    IELSR = MICROC_CONSOLE_EVENT; /* this write also clears the interrupt flag */
}

int microc_uart_waiting(void)
{
    if ((SSR & SSR_ERRORS) != 0u) {
        SSR &= (uint8_t)~SSR_ERRORS; /* a flag that was not read as 1 is not cleared by a 0 */
    }
    return (SSR & SSR_RDRF) != 0u;
}

uint8_t microc_uart_take(void)
{
    IELSR = MICROC_CONSOLE_EVENT; /* before the byte is read: the next one sets the flag again */
    return RDR;
}

void microc_uart_send(uint8_t byte)
{
    while ((SSR & SSR_TDRE) == 0u) {
    }
    TDR = byte;
}
