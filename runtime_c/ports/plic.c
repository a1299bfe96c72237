/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The platform-level interrupt controller of RISC-V: [console] interrupt_base is its address, `irq` a source of it. The first
 * hart's machine mode is context 0.
 */
#include "driver.h"
#include "riscv.h"

#define PLIC(offset) MICROC_REGISTER(MICROC_CONSOLE_INTERRUPT_BASE + (offset))
#define PRIORITY PLIC(4u * MICROC_CONSOLE_IRQ)
#define ENABLE PLIC(0x2000u + 4u * (MICROC_CONSOLE_IRQ / 32u))
#define THRESHOLD PLIC(0x200000u)
#define CLAIM PLIC(0x200004u) /* write it back to complete */

#define IRQ_BIT ((uint32_t)1 << (MICROC_CONSOLE_IRQ % 32u))
#define MIE_EXTERNAL "0x800"

void microc_interrupt_enable(void)
{
    ENABLE |= IRQ_BIT;
    PRIORITY = 1u; /* after it: QEMU notices an interrupt that has been waiting only here */
    THRESHOLD = 0u;
    __asm volatile("li t0, " MIE_EXTERNAL "\n\tcsrs mie, t0\n\tcsrsi mstatus, " MSTATUS_MIE ::: "t0", "memory");
}

/* Called by the handler itself, whose claim this leaves alone. */
void microc_interrupt_disable(void)
{
    ENABLE &= ~IRQ_BIT;
}

/* An exception stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
__attribute__((interrupt("machine"), aligned(4), used)) void microc_trap(void)
{
    intptr_t cause;
    __asm volatile("csrr %0, mcause" : "=r"(cause));
    /* The highest bit says interrupt. NOLINTNEXTLINE(bugprone-infinite-loop) */
    while (cause >= 0) {
    }
    const uint32_t claimed = CLAIM;
    if (claimed == MICROC_CONSOLE_IRQ) {
        microc_console_interrupt();
    }
    if (claimed != 0u) {
        CLAIM = claimed;
    }
}
