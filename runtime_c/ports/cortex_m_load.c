/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded code on a Cortex-M. The linker script says what of RAM is left for it; the architecture's default memory map lets code
 * run in all RAM below 0xA0000000.
 */
#include "cortex_m.h"
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

void microc_port_code_changed(const uint8_t *code, uint32_t size)
{
    microc_code_written((uintptr_t)code, (uintptr_t)code + size);
}

/* Bit 0 says Thumb. */
microc_entry microc_port_entry(const uint8_t *address)
{
    return (microc_entry)((uintptr_t)address | 1u);
}
