/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVR: the USART 0 and its interrupt. avr-libc brings the vectors and the way from reset to main. [console] clock_hz is the
 * core's clock; the double speed mode comes closest to 115200 baud from 16 MHz.
 */
#include "driver.h"

#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/sleep.h>

#ifdef USART0_RX_vect
#define RECEIVED USART0_RX_vect
#else
#define RECEIVED USART_RX_vect
#endif

#define DIVISOR ((MICROC_CONSOLE_CLOCK_HZ / 4u / MICROC_CONSOLE_BAUD - 1u) / 2u)

ISR(RECEIVED)
{
    microc_console_interrupt();
}

void microc_interrupt_enable(void)
{
    UCSR0B |= (uint8_t)(1u << RXCIE0);
    sei();
}

void microc_interrupt_disable(void)
{
    UCSR0B &= (uint8_t)~(1u << RXCIE0);
}

#ifdef MICROC_CONSOLE_SLEEP
/* The instruction behind SEI is executed before any interrupt. */
void microc_core_sleep(const volatile microc_ring_count *count, microc_ring_count seen)
{
    cli();
    if (*count == seen) {
        SMCR = (uint8_t)(1u << SE); /* mode idle: the USART and the timers go on */
        sei();
        sleep_cpu();
        SMCR = 0u;
    }
    sei();
}
#endif

void microc_uart_init(void)
{
    UBRR0 = (uint16_t)DIVISOR;
    UCSR0A = (uint8_t)(1u << U2X0);
    UCSR0C = (uint8_t)((1u << UCSZ01) | (1u << UCSZ00));
    UCSR0B = (uint8_t)((1u << RXEN0) | (1u << TXEN0));
}

int microc_uart_waiting(void)
{
    return (UCSR0A & (1u << RXC0)) != 0u;
}

uint8_t microc_uart_take(void)
{
    return UDR0;
}

void microc_uart_send(uint8_t byte)
{
    while ((UCSR0A & (1u << UDRE0)) == 0u) {
    }
    UDR0 = byte;
}
