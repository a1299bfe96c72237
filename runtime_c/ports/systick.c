/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ticks from the core's own SysTick timer, counting the processor clock. Its 24 bits are widened by counting wraps.
 *
 * Every reading restarts the counter, so that an interval never depends on the phase at which it started: under an emulator
 * with a fixed instruction clock, equal work gives equal ticks.
 */
#include "driver.h"
#include "microc_port.h"

#define SYSTICK_CONTROL 0xE000E010u
#define SYSTICK_RELOAD 0xE000E014u
#define SYSTICK_CURRENT 0xE000E018u

#define CONTROL_RUN 7u /* enabled, interrupt at zero, processor clock */
#define COUNTER_MASK 0xFFFFFFu

void SysTick_Handler(void);

static volatile uint32_t wraps; /* since the last restart */
static uint32_t total;          /* ticks until the last restart */

void SysTick_Handler(void)
{
    wraps += 1u;
}

void microc_timer_init(void)
{
    MICROC_REGISTER(SYSTICK_RELOAD) = COUNTER_MASK;
    MICROC_REGISTER(SYSTICK_CURRENT) = 0u;
    MICROC_REGISTER(SYSTICK_CONTROL) = CONTROL_RUN;
}

uint32_t microc_port_ticks(void)
{
    uint32_t whole;
    uint32_t current;
    do {
        whole = wraps;
        current = MICROC_REGISTER(SYSTICK_CURRENT);
    } while (whole != wraps);
    MICROC_REGISTER(SYSTICK_CURRENT) = 0u;
    wraps = 0u;
    /* The counter leaves zero downwards: after n ticks it reads -n. */
    total += (whole << 24) + ((0u - current) & COUNTER_MASK);
#ifdef MICROC_FORK_SHARED_CLOCK
    return total - microc_fork_saved_ticks();
#else
    return total;
#endif
}
