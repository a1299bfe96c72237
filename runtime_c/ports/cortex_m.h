/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code that was written to RAM on a Cortex-M: whatever is between it and the core is told.
 */
#ifndef MICROC_CORTEX_M_H
#define MICROC_CORTEX_M_H

#include "driver.h"

#define CONFIGURATION 0xE000ED14u
#define DATA_CACHE 0x10000u
#define INSTRUCTION_CACHE 0x20000u
#define CACHE_TYPE 0xE000ED7Cu
#define PROTECTION_CONTROL 0xE000ED94u
#define INSTRUCTION_INVALIDATE 0xE000EF50u
#define DATA_CLEAN 0xE000EF64u /* one line, by address, to where instructions are fetched from */
#define BRANCH_INVALIDATE 0xE000EF78u

#if !defined(__ARM_ARCH_6M__)
/* The bytes may be in the data cache alone, and those before them in the instruction cache. Bits of a cache that is not there read
 * as zero. */
static inline void microc_make_caches_agree(uintptr_t begin, uintptr_t end)
{
    const uint32_t caches = MICROC_REGISTER(CONFIGURATION);
    if ((caches & DATA_CACHE) != 0u) {
        const uintptr_t line = (uintptr_t)4u << ((MICROC_REGISTER(CACHE_TYPE) >> 16) & 15u);
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

/* Code was written from `begin` to before `end`; the architecture's default memory map lets it run. */
static inline void microc_code_written(uintptr_t begin, uintptr_t end)
{
    __asm volatile("dsb" ::: "memory");
#if !defined(__ARM_ARCH_6M__)
    MICROC_REGISTER(PROTECTION_CONTROL) = 0u; /* a boot loader may have forbidden to execute RAM */
    microc_make_caches_agree(begin, end);
#else
    (void)begin;
    (void)end;
#endif
    __asm volatile("dsb\n\tisb" ::: "memory");
}

#endif
