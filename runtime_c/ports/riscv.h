/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the RISC-V cores share. */
#ifndef MICROC_RISCV_H
#define MICROC_RISCV_H

/* Control registers are an extension by now, which -march of older compilers cannot name with their libraries still found. */
__asm(".option arch, +zicsr");

/* The bit of mstatus that permits interrupts in machine mode. */
#define MSTATUS_MIE "0x8"

/* The handler of all traps, in the file of the interrupt controller. */
void microc_trap(void);

/* Code was written to RAM. fence.i by its number: assemblers want an extension named for it. */
static inline void microc_code_written(void)
{
    __asm volatile("fence rw, rw\n\t.4byte 0x0000100f" ::: "memory");
}

#endif
