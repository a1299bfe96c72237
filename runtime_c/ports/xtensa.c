/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Xtensa with the call0 ABI, such as the ESP8266's LX106: the way from reset to main, and its interrupt of level 1, which the
 * console has. Symbols with two leading underscores come from the linker script. The image begins with the vectors, whose
 * offsets are of the LX106.
 */
#include "driver.h"

extern const uint32_t __data_load[];
extern uint32_t __data_start[];
extern uint32_t __data_end[];
extern uint32_t __bss_start[];
extern uint32_t __bss_end[];
#ifdef MICROC_HOT_CODE
extern const uint32_t __hot_code_load[];
extern uint32_t __hot_code_start[];
extern uint32_t __hot_code_end[];
#endif

int main(void);
void microc_start(void);
void microc_trap(uint32_t cause);

#define CAUSE_LEVEL1 4u
#define IRQ_BIT ((uint32_t)1 << MICROC_CONSOLE_IRQ)

/* Debug exceptions, interrupts that cannot be masked, and exceptions in a handler stay at their vectors, where a debugger finds them. */
__asm__(".section .vectors, \"ax\"\n"
        ".align 256\n"
        ".global Reset_Handler\n"
        "Reset_Handler:\n\t"
        "j .Lreset\n\t"
        ".org 0x10\n\tj .\n\t" /* debug */
        ".org 0x20\n\tj .\n\t" /* not maskable */
        ".org 0x30\n\tj .\n\t" /* an exception with PS.UM = 0 */
        ".org 0x50\n\tj .Lexception\n\t" /* with PS.UM = 1 */
        ".org 0x70\n\tj .\n\t" /* in a handler */
        ".align 4\n\t"
        ".literal_position\n"
        ".Lreset:\n\t"
        "movi a0, 0\n\t"
        "wsr a0, intenable\n\t"
        "movi a2, Reset_Handler\n\t"
        "wsr a2, vecbase\n\t"
        "movi a2, 0x20\n\t" /* PS.UM: no level is masked, no exception is being handled */
        "wsr a2, ps\n\t"
        "rsync\n\t"
        "movi a1, __stack_top\n\t"
        "call0 microc_start\n"
        /* Registers that a function may change, in a frame of 64 bytes. */
        ".Lexception:\n\t"
        "addi a1, a1, -64\n\t"
        "s32i a0, a1, 0\n\t"
        "s32i a2, a1, 4\n\t"
        "s32i a3, a1, 8\n\t"
        "s32i a4, a1, 12\n\t"
        "s32i a5, a1, 16\n\t"
        "s32i a6, a1, 20\n\t"
        "s32i a7, a1, 24\n\t"
        "s32i a8, a1, 28\n\t"
        "s32i a9, a1, 32\n\t"
        "s32i a10, a1, 36\n\t"
        "s32i a11, a1, 40\n\t"
        "rsr a2, sar\n\t"
        "s32i a2, a1, 44\n\t"
        "rsr a2, exccause\n\t"
        "call0 microc_trap\n\t"
        "l32i a2, a1, 44\n\t"
        "wsr a2, sar\n\t"
        "l32i a0, a1, 0\n\t"
        "l32i a2, a1, 4\n\t"
        "l32i a3, a1, 8\n\t"
        "l32i a4, a1, 12\n\t"
        "l32i a5, a1, 16\n\t"
        "l32i a6, a1, 20\n\t"
        "l32i a7, a1, 24\n\t"
        "l32i a8, a1, 28\n\t"
        "l32i a9, a1, 32\n\t"
        "l32i a10, a1, 36\n\t"
        "l32i a11, a1, 40\n\t"
        "addi a1, a1, 64\n\t"
        "rfe\n\t"
        ".previous");

__attribute__((used)) void microc_start(void)
{
    const uint32_t *from = __data_load;
    microc_setup();
    for (uint32_t *to = __data_start; to < __data_end; to++) {
        *to = *from++;
    }
#ifdef MICROC_HOT_CODE
    from = __hot_code_load;
    for (uint32_t *to = __hot_code_start; to < __hot_code_end; to++) {
        *to = *from++;
    }
    __asm volatile("isync" ::: "memory");
#endif
    for (uint32_t *to = __bss_start; to < __bss_end; to++) {
        *to = 0u;
    }
    (void)main();
    for (;;) {
    }
}

/* An exception stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
__attribute__((used)) void microc_trap(uint32_t cause)
{
    /* NOLINTNEXTLINE(bugprone-infinite-loop) */
    while (cause != CAUSE_LEVEL1) {
    }
    microc_console_interrupt();
}

void microc_interrupt_enable(void)
{
    __asm volatile("wsr %0, intenable\n\trsync" ::"r"(IRQ_BIT) : "memory");
}

void microc_interrupt_disable(void)
{
    __asm volatile("wsr %0, intenable\n\trsync" ::"r"(0u) : "memory");
}

#ifdef MICROC_CONSOLE_SLEEP
/* WAITI unmasks interrupts and stops the core in one step. */
void microc_core_sleep(const volatile microc_ring_count *count, microc_ring_count seen)
{
    uint32_t state;
    __asm volatile("rsil %0, 15" : "=r"(state)::"memory");
    if (*count == seen) {
        __asm volatile("waiti 0" ::: "memory");
    }
    __asm volatile("rsil %0, 0" : "=r"(state)::"memory");
}
#endif
