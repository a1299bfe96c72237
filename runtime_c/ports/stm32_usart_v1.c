/* SPDX-License-Identifier: Apache-2.0 */
/* USARTs with one data register: STM32 F1, F2, F4 and L1, GD32F1 and GD32VF103. [setup] gives them clock and pins. */
#include "driver.h"

#define USART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define USART_SR USART(0x00u)
#define USART_DR USART(0x04u)
#define USART_BRR USART(0x08u)
#define USART_CR1 USART(0x0Cu)

#define SR_ORE (1u << 3)
#define SR_RXNE (1u << 5)
#define SR_TXE (1u << 7)
#define CR1_RE (1u << 2)
#define CR1_TE (1u << 3)
#define CR1_RXNEIE (1u << 5)
#define CR1_UE (1u << 13)

void microc_uart_init(void)
{
    USART_BRR = (MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD;
    USART_CR1 = CR1_UE | CR1_TE | CR1_RE | CR1_RXNEIE;
}

/* An overrun raises the interrupt even when its byte has been taken: it counts as one, which the frame's check finds out. */
int microc_uart_waiting(void)
{
    return (USART_SR & (SR_RXNE | SR_ORE)) != 0u;
}

uint8_t microc_uart_take(void)
{
    return (uint8_t)USART_DR; /* reading it clears the interrupt, and an overrun */
}

void microc_uart_send(uint8_t byte)
{
    while ((USART_SR & SR_TXE) == 0u) {
    }
    USART_DR = byte;
}
