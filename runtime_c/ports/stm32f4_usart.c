/* USARTs of the STM32F4 family, 8N1, on two pins of one GPIO port. The clock tree stays as reset leaves it. */
#include "cortex_m.h"

#define USART(offset) MICROC_REGISTER(MICROC_CONSOLE_BASE + (offset))
#define USART_SR USART(0x00u)
#define USART_DR USART(0x04u)
#define USART_BRR USART(0x08u)
#define USART_CR1 USART(0x0Cu)

#define SR_RXNE (1u << 5)
#define SR_TXE (1u << 7)
#define CR1_RE (1u << 2)
#define CR1_TE (1u << 3)
#define CR1_RXNEIE (1u << 5)
#define CR1_UE (1u << 13)

#define RCC_AHB1ENR MICROC_REGISTER(0x40023830u)
#define GPIO_FIRST 0x40020000u
#define GPIO_STRIDE 0x400u
#define GPIO_MODER MICROC_REGISTER(MICROC_CONSOLE_GPIO_BASE + 0x00u)
#define GPIO_AFR(pin) MICROC_REGISTER(MICROC_CONSOLE_GPIO_BASE + 0x20u + 4u * ((pin) / 8u))

/* Hand a pin to the USART. */
static void select_alternate(uint32_t pin)
{
    uint32_t mode = GPIO_MODER & ~(3u << (2u * pin));
    uint32_t function = GPIO_AFR(pin) & ~(15u << (4u * (pin % 8u)));
    GPIO_AFR(pin) = function | ((uint32_t)MICROC_CONSOLE_ALTERNATE << (4u * (pin % 8u)));
    GPIO_MODER = mode | (2u << (2u * pin));
}

void microc_uart_init(void)
{
    RCC_AHB1ENR |= 1u << ((MICROC_CONSOLE_GPIO_BASE - GPIO_FIRST) / GPIO_STRIDE);
    MICROC_REGISTER(MICROC_CONSOLE_ENABLE_ADDRESS) |= MICROC_CONSOLE_ENABLE_MASK;
    select_alternate(MICROC_CONSOLE_TX_PIN);
    select_alternate(MICROC_CONSOLE_RX_PIN);
    USART_BRR = (MICROC_CONSOLE_CLOCK_HZ + MICROC_CONSOLE_BAUD / 2u) / MICROC_CONSOLE_BAUD;
    USART_CR1 = CR1_UE | CR1_TE | CR1_RE | CR1_RXNEIE;
}

int microc_uart_waiting(void)
{
    return (USART_SR & SR_RXNE) != 0u;
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
