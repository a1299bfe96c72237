/*
 * Loaded code on a Cortex-M. The linker script says what of RAM is left for it; the architecture's default memory map lets code
 * run in all RAM below 0xA0000000.
 */
#include "driver.h"
#include "microc_load.h"

extern uint8_t __region_start[];
extern uint8_t __region_end[];

void HardFault_Handler(void);

#define RESET_CONTROL 0xE000ED0Cu
#define RESET_REQUEST 0x05FA0004u

/* A fault of what was loaded begins anew: the host learns so by the session that nobody knows any more. */
void HardFault_Handler(void)
{
    __asm volatile("dsb" ::: "memory");
    MICROC_REGISTER(RESET_CONTROL) = RESET_REQUEST;
    for (;;) {
    }
}

uint8_t *microc_port_region(uint32_t *size)
{
    *size = (uint32_t)((uintptr_t)__region_end - (uintptr_t)__region_start);
    return __region_start;
}

#if !defined(__ARM_ARCH_6M__)
#define CONFIGURATION 0xE000ED14u
#define DATA_CACHE (1u << 16)
#define INSTRUCTION_CACHE (1u << 17)
#define CACHE_TYPE 0xE000ED7Cu
#define PROTECTION_CONTROL 0xE000ED94u
#define INSTRUCTION_INVALIDATE 0xE000EF50u
#define DATA_CLEAN 0xE000EF64u /* one line, by address, to where instructions are fetched from */
#define BRANCH_INVALIDATE 0xE000EF78u

/* The bytes may be in the data cache alone, and those before them in the instruction cache. Bits of a cache that is not there read
 * as zero. */
static void make_caches_agree(uintptr_t begin, uintptr_t end)
{
    const uint32_t caches = MICROC_REGISTER(CONFIGURATION);
    if ((caches & DATA_CACHE) != 0u) {
        const uintptr_t line = (uintptr_t)4u << (MICROC_REGISTER(CACHE_TYPE) >> 16 & 15u);
        for (uintptr_t at = begin & ~(line - 1u); at < end; at += line) {
            MICROC_REGISTER(DATA_CLEAN) = (uint32_t)at;
        }
        __asm volatile("dsb" ::: "memory");
    }
    if ((caches & INSTRUCTION_CACHE) != 0u) {
        MICROC_REGISTER(INSTRUCTION_INVALIDATE) = 0u;
        MICROC_REGISTER(BRANCH_INVALIDATE) = 0u;
    }
}
#endif

void microc_port_code_changed(const uint8_t *code, uint32_t size)
{
    __asm volatile("dsb" ::: "memory");
#if !defined(__ARM_ARCH_6M__)
    MICROC_REGISTER(PROTECTION_CONTROL) = 0u; /* a boot loader may have forbidden to execute RAM */
    make_caches_agree((uintptr_t)code, (uintptr_t)code + size);
#else
    (void)code;
    (void)size;
#endif
    __asm volatile("dsb\n\tisb" ::: "memory");
}

/* Bit 0 says Thumb. */
microc_entry microc_port_entry(const uint8_t *address)
{
    return (microc_entry)((uintptr_t)address | 1u);
}
