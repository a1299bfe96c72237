/* SPDX-License-Identifier: Apache-2.0 */
/* Interrupts of Raspberry Pi's Hazard3 core (RP2350): arrays in control registers, sixteen sources to a window. */
#include "driver.h"
#include "riscv.h"

#define WINDOW (MICROC_CONSOLE_IRQ / 16u | 1u << (16u + MICROC_CONSOLE_IRQ % 16u))
#define MEIEA "0xBE0" /* enable array; the written value names the window, its upper half the sources */
#define MIE_EXTERNAL 0x800u

void microc_interrupt_enable(void)
{
    __asm volatile("csrs " MEIEA ", %0" : : "r"(WINDOW) : "memory");
    __asm volatile("csrs mie, %0\n\tcsrsi mstatus, " MSTATUS_MIE : : "r"(MIE_EXTERNAL) : "memory");
}

void microc_interrupt_disable(void)
{
    __asm volatile("csrc " MEIEA ", %0" : : "r"(WINDOW) : "memory");
}

/* An exception stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
__attribute__((interrupt("machine"), aligned(4), used)) void microc_trap(void)
{
    intptr_t cause;
    __asm volatile("csrr %0, mcause" : "=r"(cause));
    while (cause >= 0) { /* its highest bit says interrupt */
    }
    microc_console_interrupt();
}
