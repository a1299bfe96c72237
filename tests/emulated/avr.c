/* SPDX-License-Identifier: Apache-2.0 */
/* The server of an ATmega2560, over its USART 0 at 2 Mbit a second, with external RAM up to 64 KiB. */
#include <avr/io.h>
#include <stdint.h>

#define MOST_PARAMETERS 64
#define MOST_BYTES 32000u

void call_entry(int32_t number, uint8_t *const *p);

static uint8_t memory[MOST_BYTES];

static void take(void *to, uint16_t count)
{
    for (uint16_t k = 0; k < count; ++k) {
        while ((UCSR0A & (1u << RXC0)) == 0u) {
        }
        ((uint8_t *)to)[k] = UDR0;
    }
}

int main(void)
{
    static struct {
        int32_t number;
        uint32_t bytes;
        uint32_t places[MOST_PARAMETERS];
    } asked;
    static uint8_t *p[MOST_PARAMETERS];
    UBRR0 = 0;
    UCSR0A = 1u << U2X0;
    UCSR0B = (uint8_t)((1u << RXEN0) | (1u << TXEN0));
    for (;;) {
        take(&asked, sizeof asked);
        take(memory, (uint16_t)asked.bytes);
        for (uint8_t k = 0; k < MOST_PARAMETERS; ++k) {
            p[k] = &memory[asked.places[k]];
        }
        call_entry(asked.number, p);
        for (uint16_t k = 0; k < (uint16_t)asked.bytes; ++k) {
            while ((UCSR0A & (1u << UDRE0)) == 0u) {
            }
            UDR0 = memory[k];
        }
    }
}
