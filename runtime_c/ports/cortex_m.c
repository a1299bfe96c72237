/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cortex-M: the vector table, the way from reset to main, and the console's interrupt. Nothing here knows a board; symbols with two
 * leading underscores come from the linker script. A program may define any handler under its CMSIS name.
 */
#include "cortex_m.h"
#include "driver.h"

extern const uint32_t __data_load[];
extern uint32_t __data_start[];
extern uint32_t __data_end[];
extern uint32_t __bss_start[];
extern uint32_t __bss_end[];
extern uint32_t __stack_top[];
#ifdef MICROC_HOT_CODE
extern const uint32_t __hot_code_load[];
extern uint32_t __hot_code_start[];
extern uint32_t __hot_code_end[];
#endif

int main(void);
void Reset_Handler(void);
void Default_Handler(void);
void NMI_Handler(void) __attribute__((weak, alias("Default_Handler")));
void HardFault_Handler(void) __attribute__((weak, alias("Default_Handler")));
void SVC_Handler(void) __attribute__((weak, alias("Default_Handler")));
void PendSV_Handler(void) __attribute__((weak, alias("Default_Handler")));
void SysTick_Handler(void) __attribute__((weak, alias("Default_Handler")));

#ifdef MICROC_NPU_IRQ
void microc_npu_interrupt(void) __attribute__((weak, alias("Default_Handler")));
#endif

typedef void (*interrupt_handler)(void);

#if defined(MICROC_NPU_IRQ) && MICROC_NPU_IRQ > MICROC_CONSOLE_IRQ
#define LAST_IRQ MICROC_NPU_IRQ
#else
#define LAST_IRQ MICROC_CONSOLE_IRQ
#endif

/* Exceptions 1 to 15, then interrupts up to the last that is used. The faults left out escalate to HardFault. */
struct vector_table {
    uint32_t *stack;
    interrupt_handler exception[15];
    interrupt_handler interrupt[LAST_IRQ + 1];
};

/* The next power of two beyond its size, as VTOR asks for. */
#define VECTOR_ALIGN (LAST_IRQ < 16 ? 128 : LAST_IRQ < 48 ? 256 : LAST_IRQ < 112 ? 512 : 1024)

extern const struct vector_table microc_vectors;
__attribute__((section(".vectors"), used, aligned(VECTOR_ALIGN))) const struct vector_table microc_vectors = {
    .stack = __stack_top,
    .exception =
        {
            [0] = Reset_Handler,
            [1] = NMI_Handler,
            [2] = HardFault_Handler,
            [10] = SVC_Handler,
            [13] = PendSV_Handler,
            [14] = SysTick_Handler,
        },
    .interrupt =
        {
            [MICROC_CONSOLE_IRQ] = microc_console_interrupt,
#ifdef MICROC_NPU_IRQ
            [MICROC_NPU_IRQ] = microc_npu_interrupt,
#endif
        },
};

#define VECTOR_TABLE_OFFSET 0xE000ED08u
#define COPROCESSOR_ACCESS 0xE000ED88u
#define NVIC_ENABLE (0xE000E100u + 4u * (MICROC_CONSOLE_IRQ / 32u))
#define NVIC_DISABLE (0xE000E180u + 4u * (MICROC_CONSOLE_IRQ / 32u))
#define IRQ_BIT ((uint32_t)1 << (MICROC_CONSOLE_IRQ % 32u))

void microc_interrupt_enable(void)
{
    MICROC_REGISTER(NVIC_ENABLE) = IRQ_BIT;
}

void microc_interrupt_disable(void)
{
    MICROC_REGISTER(NVIC_DISABLE) = IRQ_BIT;
}

#ifdef MICROC_CONSOLE_SLEEP
/* WFI ends with a pending interrupt although PRIMASK holds it back. */
void microc_core_sleep(const volatile microc_ring_count *count, microc_ring_count seen)
{
    __asm volatile("cpsid i" ::: "memory");
    if (*count == seen) {
        __asm volatile("dsb\n\twfi" ::: "memory");
    }
    __asm volatile("cpsie i" ::: "memory");
}
#endif

#ifdef MICROC_CACHES
#define DATA_INVALIDATE 0xE000EF60u /* one line, by set and way */
#define CACHE_SIZE 0xE000ED80u
#define CACHE_SELECT 0xE000ED84u
#define CACHES_ON (3u << 16)
#define WAY 30u /* the highest two bits: there are four */

/* The caches of a Cortex-M7. What they hold at reset is chance: it is invalidated first, line by line. */
static void enable_caches(void)
{
    if ((MICROC_REGISTER(CONFIGURATION) & CACHES_ON) == CACHES_ON) { /* by a boot loader: what they hold counts */
        return;
    }
    MICROC_REGISTER(CACHE_SELECT) = 0u; /* data */
    __asm volatile("dsb" ::: "memory");
    const uint32_t size = MICROC_REGISTER(CACHE_SIZE);
    const uint32_t last_set = size >> 13 & 0x7FFFu;
    const uint32_t line_bits = (size & 7u) + 4u;
    for (uint32_t way = 0; way < 4u; way++) {
        for (uint32_t set = 0; set <= last_set; set++) {
            MICROC_REGISTER(DATA_INVALIDATE) = way << WAY | set << line_bits;
        }
    }
    MICROC_REGISTER(INSTRUCTION_INVALIDATE) = 0u;
    __asm volatile("dsb\n\tisb" ::: "memory");
    MICROC_REGISTER(CONFIGURATION) |= CACHES_ON;
}
#endif

void Reset_Handler(void)
{
    /* A boot loader may have started us. The Cortex-M0 has no such register and ignores this. */
    MICROC_REGISTER(VECTOR_TABLE_OFFSET) = (uint32_t)(uintptr_t)&microc_vectors;
    microc_setup();
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    MICROC_REGISTER(COPROCESSOR_ACCESS) |= 0xFu << 20; /* floating point and vectors, for all code */
#endif
#if defined(__ARM_FEATURE_MVE)
    MICROC_REGISTER(CONFIGURATION) |= 1u << 19; /* low-overhead branches */
#endif
#ifdef MICROC_CACHES
    enable_caches();
#endif
    __asm volatile("dsb\n\tisb" ::: "memory");
    const uint32_t *from = __data_load;
    for (uint32_t *to = __data_start; to < __data_end; to++) {
        *to = *from++;
    }
#ifdef MICROC_HOT_CODE
    from = __hot_code_load;
    for (uint32_t *to = __hot_code_start; to < __hot_code_end; to++) {
        *to = *from++;
    }
    microc_code_written((uintptr_t)__hot_code_start, (uintptr_t)__hot_code_end);
#endif
    for (uint32_t *to = __bss_start; to < __bss_end; to++) {
        *to = 0u;
    }
    (void)main();
    for (;;) {
    }
}

/* Stays here, where a debugger finds it: the host sees a time-out, never a wrong answer. */
void Default_Handler(void)
{
    for (;;) {
    }
}
