/* What the files of the RISC-V cores share. */
#ifndef MICROC_RISCV_H
#define MICROC_RISCV_H

/* Control registers are an extension by now, which -march of older compilers cannot name with their libraries still found. */
__asm(".option arch, +zicsr");

/* The handler of all traps, in the file of the interrupt controller. */
void microc_trap(void);

#endif
