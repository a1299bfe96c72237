/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Boot header and interrupt matrix of an ESP32-C3. [console] matrix_base is the matrix' address, `irq` a source of it, and
 * `interrupt` the one of the core's 31 interrupts that the source is led to.
 */
#include "driver.h"
#include "riscv.h"

#define MATRIX(offset) MICROC_REGISTER(MICROC_CONSOLE_MATRIX_BASE + (offset))
#define SOURCE MATRIX(4u * MICROC_CONSOLE_IRQ) /* which interrupt the source raises */
#define ENABLE MATRIX(0x104u)
#define BY_EDGE MATRIX(0x108u)
#define PRIORITY MATRIX(0x114u + 4u * MICROC_CONSOLE_INTERRUPT)
#define THRESHOLD MATRIX(0x194u) /* the lowest priority that interrupts */

#define IRQ_BIT ((uint32_t)1 << MICROC_CONSOLE_INTERRUPT)

#define DIRECT_BOOT 0xAEDB041Du

/* By these two words at the start of flash the ROM knows a program that runs in place; it jumps behind them. */
extern const uint32_t microc_boot[2];
__attribute__((section(".boot"), used)) const uint32_t microc_boot[2] = {DIRECT_BOOT, DIRECT_BOOT};

void microc_interrupt(void);

/* The matrix wants no interrupt while it is written. */
void microc_interrupt_enable(void)
{
    __asm volatile("csrci mstatus, " MSTATUS_MIE ::: "memory");
    SOURCE = MICROC_CONSOLE_INTERRUPT;
    BY_EDGE &= ~IRQ_BIT;
    PRIORITY = 1u;
    THRESHOLD = 1u;
    ENABLE |= IRQ_BIT;
    __asm volatile("fence\n\tcsrsi mstatus, " MSTATUS_MIE ::: "memory");
}

/* Called by the handler itself, which no other interrupts. */
void microc_interrupt_disable(void)
{
    ENABLE &= ~IRQ_BIT;
    __asm volatile("fence" ::: "memory");
}

/* The core always jumps to the word of a table that has the interrupt's number; exceptions have 0. */
__attribute__((naked, used, aligned(256))) void microc_trap(void)
{
    __asm volatile(".option push\n\t"
                   ".option norvc\n\t"
                   ".option norelax\n\t"
                   ".rept 32\n\t"
                   "j microc_interrupt\n\t"
                   ".endr\n\t"
                   ".option pop");
}

/* An exception stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
__attribute__((interrupt("machine"), used)) void microc_interrupt(void)
{
    intptr_t cause;
    __asm volatile("csrr %0, mcause" : "=r"(cause));
    while (cause >= 0) { /* its highest bit says interrupt */
    }
    microc_console_interrupt();
}
