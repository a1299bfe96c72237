/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Renesas' SCI_B (RA8) as a UART. Events reach the core through the ICU: interrupt MICROC_CONSOLE_IRQ is linked to `event`,
 * which is the receiver's, and its flag is cleared by hand. The steps are those of Renesas' FSP (r_sci_b_uart.c) without FIFO.
 */
#include "driver.h"

#define SCI(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define RDR MICROC_REGISTER_AS(uint8_t, MICROC_CONSOLE_BASE) /* the data of a frame of 8 bits */
#define TDR MICROC_REGISTER_AS(uint8_t, MICROC_CONSOLE_BASE + 0x04u)
#define CCR0 SCI(0x08u)
#define CCR1 SCI(0x0Cu)
#define CCR2 SCI(0x10u)
#define CCR3 SCI(0x14u)
#define CCR4 SCI(0x18u)
#define CSR SCI(0x48u)
#define CFCLR SCI(0x68u)
#define IELSR MICROC_REGISTER(MICROC_CONSOLE_ICU_BASE + 0x6300u + 4u * MICROC_CONSOLE_IRQ)

#define CCR0_RE (1u << 0)
#define CCR0_TE (1u << 4)
#define CCR0_IDSEL (1u << 10)
#define CCR0_RIE (1u << 16)
#define CCR1_IDLE_HIGH (3u << 4) /* TXD while TE is 0 */
#define CCR2_BGDM (1u << 4)      /* with ABCS: 8 cycles of the clock are a bit */
#define CCR2_ABCS (1u << 5)
#define CCR2_BRR 8u
#define CCR2_MDDR (0xFFu << 24) /* as after reset: no modulation */
#define CCR3_8_BITS (2u << 8)
#define CCR3_LSBF (1u << 12)
#define CSR_ERRORS (1u << 24 | 3u << 27) /* overrun, parity, framing: as long as one is set, nothing is received */
#define CSR_TDRE (1u << 29)
#define CSR_RDRF (1u << 31)
#define CFCLR_ALL 0x9D070010u

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ / 4u / MICROC_CONSOLE_BAUD + 1u) / 2u)

void microc_uart_init(void)
{
    CCR0 = CCR0_IDSEL;
    CCR3 = CCR3_LSBF | CCR3_8_BITS; /* asynchronous, one stop bit */
    CCR2 = CCR2_MDDR | (DIVISOR - 1u) << CCR2_BRR | CCR2_ABCS | CCR2_BGDM;
    CCR1 = CCR1_IDLE_HIGH; /* no parity */
    CCR4 = 0u;
    CFCLR = CFCLR_ALL;
    CCR0 = CCR0_IDSEL | CCR0_RE | CCR0_RIE | CCR0_TE;
    IELSR = MICROC_CONSOLE_EVENT; /* this write also clears the interrupt flag */
}

int microc_uart_waiting(void)
{
    CFCLR = CSR & CSR_ERRORS; /* both registers have these bits at the same positions */
    return (CSR & CSR_RDRF) != 0u;
}

uint8_t microc_uart_take(void)
{
    IELSR = MICROC_CONSOLE_EVENT; /* before the byte is read: the next one sets the flag again */
    return RDR;
}

void microc_uart_send(uint8_t byte)
{
    while ((CSR & CSR_TDRE) == 0u) {
    }
    TDR = byte;
}
