/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ticks from TIMER0 of the nRF51, its only 32-bit timer, at 16 MHz (the part has no SysTick).
 *
 * Every reading restarts the counter: see systick.c for why.
 */
#include "driver.h"
#include "microc_port.h"

#define TIMER(offset) MICROC_REGISTER(MICROC_TIMER_BASE + (offset))
#define TASKS_START TIMER(0x000u)
#define TASKS_CLEAR TIMER(0x00Cu)
#define TASKS_CAPTURE0 TIMER(0x040u)
#define MODE TIMER(0x504u)
#define BITMODE TIMER(0x508u)
#define PRESCALER TIMER(0x510u)
#define CC0 TIMER(0x540u)

static uint32_t total; /* ticks until the last restart */

void microc_timer_init(void)
{
    MODE = 0u;      /* a timer, not a counter of events */
    BITMODE = 3u;   /* 32 bits */
    PRESCALER = 0u; /* 16 MHz */
    TASKS_CLEAR = 1u;
    TASKS_START = 1u;
}

uint32_t microc_port_ticks(void)
{
    TASKS_CAPTURE0 = 1u;
    TASKS_CLEAR = 1u;
    total += CC0;
    return total;
}
