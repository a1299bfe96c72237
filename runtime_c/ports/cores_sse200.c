/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second core of Arm's subsystem SSE-200 (MPS2 image AN521, MPS3 image AN524). It is held at reset by CPUWAIT, and begins with
 * the vector table that INITSVTOR1 names. Its core may have more than the first one (DSP, floating point): the network's code is
 * made for the first.
 */
#include "driver.h"

#define INITSVTOR1 0x50021114u
#define CPUWAIT 0x50021118u
#define CPUWAIT_CORE1 2u

/* Stays here, where a debugger finds it. */
static void fault(void)
{
    for (;;) {
    }
}

void microc_core1_start(uint32_t *stack_top)
{
    /* Stack, reset, NMI and the faults; no interrupt is enabled. */
    static uintptr_t vectors[16] __attribute__((aligned(128)));
    vectors[0] = (uintptr_t)stack_top;
    vectors[1] = (uintptr_t)microc_core1_work;
    for (uint32_t k = 2; k < 16u; ++k) {
        vectors[k] = (uintptr_t)fault;
    }
    MICROC_REGISTER(INITSVTOR1) = (uint32_t)(uintptr_t)vectors;
    __asm volatile("dsb" ::: "memory");
    MICROC_REGISTER(CPUWAIT) &= ~CPUWAIT_CORE1;
}
