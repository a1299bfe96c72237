/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loaded code on a RISC-V core in machine mode, which no protection holds back unless it is locked. The linker script says what
 * of RAM is left for it.
 */
#include "driver.h"
#include "microc_load.h"
#include "riscv.h"

extern uint8_t __region_start[];
extern uint8_t __region_end[];

uint8_t *microc_port_region(uint32_t *size)
{
    *size = (uint32_t)((uintptr_t)__region_end - (uintptr_t)__region_start);
    return __region_start;
}

void microc_port_code_changed(const uint8_t *code, uint32_t size)
{
    (void)code;
    (void)size;
    microc_code_written();
}

microc_entry microc_port_entry(const uint8_t *address)
{
    return (microc_entry)(uintptr_t)address;
}
