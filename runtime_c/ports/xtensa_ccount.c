/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from CCOUNT, the cycle counter of Xtensa. */
#include "driver.h"
#include "microc_port.h"

void microc_timer_init(void)
{
}

uint32_t microc_port_ticks(void)
{
    uint32_t cycles;
    __asm volatile("rsr %0, ccount" : "=r"(cycles));
    return cycles;
}
