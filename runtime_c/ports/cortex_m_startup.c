/*
 * Start of a Cortex-M program: the vector table, and the way from reset to main. Nothing here knows a board; symbols with two
 * leading underscores come from the linker script. A program may define any handler under its CMSIS name.
 */
#include "cortex_m.h"

extern const uint32_t __data_load[];
extern uint32_t __data_start[];
extern uint32_t __data_end[];
extern uint32_t __bss_start[];
extern uint32_t __bss_end[];
extern uint32_t __stack_top[];

int main(void);
void Reset_Handler(void);
void Default_Handler(void);
void NMI_Handler(void) __attribute__((weak, alias("Default_Handler")));
void HardFault_Handler(void) __attribute__((weak, alias("Default_Handler")));
void SVC_Handler(void) __attribute__((weak, alias("Default_Handler")));
void PendSV_Handler(void) __attribute__((weak, alias("Default_Handler")));
void SysTick_Handler(void) __attribute__((weak, alias("Default_Handler")));

typedef void (*handler)(void);

/* Exceptions 1 to 15, then interrupts up to the console's. The faults left out escalate to HardFault. */
struct vector_table {
    uint32_t *stack;
    handler exception[15];
    handler interrupt[MICROC_CONSOLE_IRQ + 1];
};

extern const struct vector_table microc_vectors;
__attribute__((section(".vectors"), used)) const struct vector_table microc_vectors = {
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
    .interrupt = {[MICROC_CONSOLE_IRQ] = microc_console_interrupt},
};

#define COPROCESSOR_ACCESS 0xE000ED88u
#define CONFIGURATION 0xE000ED14u

void Reset_Handler(void)
{
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    MICROC_REGISTER(COPROCESSOR_ACCESS) |= 0xFu << 20; /* floating point and vectors, for all code */
#endif
#if defined(__ARM_FEATURE_MVE)
    MICROC_REGISTER(CONFIGURATION) |= 1u << 19; /* low-overhead branches */
#endif
    __asm volatile("dsb\n\tisb" ::: "memory");
    const uint32_t *from = __data_load;
    for (uint32_t *to = __data_start; to < __data_end; to++) {
        *to = *from++;
    }
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
