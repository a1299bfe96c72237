/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interrupt controller ECLIC of Nuclei's cores (GD32VF103), without its vectors: [console] interrupt_base is its address.
 * At reset such a chip runs flash by its alias at 0; the first instructions leave it.
 */
#include "driver.h"
#include "riscv.h"

/* Pending, enable, attributes and control of an interrupt, a byte each. */
#define INTERRUPT(byte) (*(volatile uint8_t *)(uintptr_t)(MICROC_CONSOLE_INTERRUPT_BASE + 0x1000u + 4u * MICROC_CONSOLE_IRQ + (byte)))
#define ENABLE INTERRUPT(1u)
#define ATTRIBUTES INTERRUPT(2u) /* 0: by level, through mtvec */
#define CONTROL INTERRUPT(3u)    /* level and priority */

#define MTVEC_ECLIC "3"

void microc_boot(void);

__attribute__((naked, used, section(".boot"))) void microc_boot(void)
{
    __asm volatile("lui t0, %hi(Reset_Handler)\n\tjr %lo(Reset_Handler)(t0)");
}

void microc_interrupt_enable(void)
{
    ATTRIBUTES = 0u;
    CONTROL = 0xFFu;
    ENABLE = 1u;
    __asm volatile("csrsi mtvec, " MTVEC_ECLIC "\n\tcsrsi mstatus, " MSTATUS_MIE ::: "memory");
}

void microc_interrupt_disable(void)
{
    ENABLE = 0u;
}

/* An exception stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
__attribute__((interrupt("machine"), aligned(64), used)) void microc_trap(void)
{
    intptr_t cause;
    __asm volatile("csrr %0, mcause" : "=r"(cause));
    while (cause >= 0) { /* its highest bit says interrupt */
    }
    microc_console_interrupt();
}
