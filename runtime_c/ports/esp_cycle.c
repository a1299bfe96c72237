/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from the one performance counter of the ESP32-C3's core, in control registers of its own: it has no mcycle. */
#include "driver.h"
#include "microc_port.h"
#include "riscv.h"

#define MPCER "0x7E0" /* what is counted */
#define MPCMR "0x7E1"
#define MPCCR "0x7E2"

#define CYCLES "1"
#define COUNT "1"

void microc_timer_init(void)
{
    __asm volatile("csrwi " MPCER ", " CYCLES "\n\tcsrwi " MPCMR ", " COUNT);
}

uint32_t microc_port_ticks(void)
{
    uint32_t cycles;
    __asm volatile("csrr %0, " MPCCR : "=r"(cycles));
    return cycles;
}
