/* SPDX-License-Identifier: Apache-2.0 */
/* USARTs with separate data registers: STM32 F0, F3, F7, G0, G4, H7, L0, L4, L5, U5 and WB. [setup] gives them clock and pins. */
#include "driver.h"

#define USART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define USART_CR1 USART(0x00u)
#define USART_CR3 USART(0x08u)
#define USART_BRR USART(0x0Cu)
#define USART_ISR USART(0x1Cu)
#define USART_RDR USART(0x24u)
#define USART_TDR USART(0x28u)

#define CR1_UE (1u << 0)
#define CR1_RE (1u << 2)
#define CR1_TE (1u << 3)
#define CR1_RXNEIE (1u << 5)
#define ISR_RXNE (1u << 5)
#define ISR_TXE (1u << 7)
#define CR3_OVRDIS (1u << 12)

/* LPUART counts in 256ths of a bit; [console] low_power = 1 says that it is one. */
#ifdef MICROC_CONSOLE_LOW_POWER
#define DIVISOR ((uint32_t)(((uint64_t)MICROC_CONSOLE_CLOCK_HZ * 256u + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD))
#else
#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD)
#endif

void microc_uart_init(void)
{
    USART_CR1 = 0u;
    USART_BRR = DIVISOR;
    USART_CR3 = CR3_OVRDIS; /* an overrun loses a byte, and does not go on raising the interrupt */
    USART_CR1 = CR1_UE | CR1_TE | CR1_RE | CR1_RXNEIE;
}

int microc_uart_waiting(void)
{
    return (USART_ISR & ISR_RXNE) != 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)USART_RDR;
}

void microc_uart_send(uint8_t byte)
{
    while ((USART_ISR & ISR_TXE) == 0u) {
    }
    USART_TDR = byte;
}
