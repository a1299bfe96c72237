/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from mcycle, the cycle counter of RISC-V. [timer] inhibit = 1 for cores that stop it at reset. */
#include "driver.h"
#include "microc_port.h"
#include "riscv.h"

void microc_timer_init(void)
{
#ifdef MICROC_TIMER_INHIBIT
    __asm volatile("csrw mcountinhibit, zero");
#endif
}

uint32_t microc_port_ticks(void)
{
    uintptr_t cycles;
    __asm volatile("csrr %0, mcycle" : "=r"(cycles));
    return (uint32_t)cycles;
}
