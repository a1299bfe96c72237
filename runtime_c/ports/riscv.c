/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RISC-V in machine mode: the way from reset to main. An interrupt controller, another file, defines microc_trap. Symbols with
 * two leading underscores come from the linker script.
 */
#include "driver.h"
#include "riscv.h"

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
void Reset_Handler(void);
void microc_start(void);
#define MSTATUS_FLOAT "0x2000" /* FS: initial */

/* Other harts than the first sleep. */
__attribute__((naked, used, section(".vectors"))) void Reset_Handler(void)
{
    __asm volatile(".option push\n\t"
                   ".option norelax\n\t"
                   "la gp, __global_pointer$\n\t"
                   ".option pop\n\t"
                   "la sp, __stack_top\n\t"
                   "la tp, __tls_start\n\t"
                   "la t0, microc_trap\n\t"
                   "csrw mtvec, t0\n\t"
#ifdef __riscv_flen
                   "li t0, " MSTATUS_FLOAT "\n\t"
                   "csrs mstatus, t0\n\t"
#endif
                   "csrr t0, mhartid\n\t"
                   "bnez t0, 1f\n\t"
                   "tail microc_start\n"
                   "1: wfi\n\t"
                   "j 1b");
}

#ifdef MICROC_CONSOLE_SLEEP
/* WFI ends with an interrupt that mie enables although mstatus holds it back. */
void microc_core_sleep(const volatile microc_ring_count *count, microc_ring_count seen)
{
    __asm volatile("csrci mstatus, " MSTATUS_MIE ::: "memory");
    if (*count == seen) {
        __asm volatile("fence\n\twfi" ::: "memory");
    }
    __asm volatile("csrsi mstatus, " MSTATUS_MIE ::: "memory");
}
#endif

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
    microc_code_written();
#endif
    for (uint32_t *to = __bss_start; to < __bss_end; to++) {
        *to = 0u;
    }
    (void)main();
    for (;;) {
    }
}
