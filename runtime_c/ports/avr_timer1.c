/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from the 16-bit timer 1 of an AVR, counting the core's clock. Its overflows are counted, too. */
#include "driver.h"
#include "microc_port.h"

#include <avr/interrupt.h>
#include <avr/io.h>

static volatile uint16_t overflows;

ISR(TIMER1_OVF_vect)
{
    overflows = (uint16_t)(overflows + 1u);
}

void microc_timer_init(void)
{
    TCCR1A = 0u;
    TCCR1B = (uint8_t)(1u << CS10);
    TIMSK1 = (uint8_t)(1u << TOIE1);
}

uint32_t microc_port_ticks(void)
{
    const uint8_t state = SREG;
    uint16_t low;
    uint16_t high;
    cli();
    low = TCNT1;
    high = overflows;
    if ((TIFR1 & (1u << TOV1)) != 0u && low < 0x8000u) { /* it has overflowed, and the interrupt waits */
        high = (uint16_t)(high + 1u);
    }
    SREG = state;
    return (uint32_t)high << 16 | low;
}
