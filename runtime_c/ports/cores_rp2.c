/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second core of RP2040 and RP2350 (Arm and RISC-V). Its boot ROM sleeps until six words came through the mailbox FIFO of SIO,
 * each of which it sends back: 0, 0, 1, the vector table, the stack pointer, the entry. After a wrong echo it starts over.
 */
#include "driver.h"
#if defined(__riscv)
#include "riscv.h"
#endif

#define FIFO_STATE MICROC_REGISTER(0xD0000050u)
#define FIFO_READABLE 1u
#define FIFO_WRITABLE 2u
#define FIFO_WRITE MICROC_REGISTER(0xD0000054u)
#define FIFO_READ MICROC_REGISTER(0xD0000058u)

/* The power-on state machine resets the core: a reset of the first core alone (a debugger's) leaves the other one running. The
 * addresses that are 0x2000 and 0x3000 above a register set and clear bits of it. */
#if defined(__ARM_ARCH_6M__)
#define FORCE_OFF 0x40010004u
#define FORCE_OFF_CORE1 (1u << 16)
#else
#define FORCE_OFF 0x40018004u
#define FORCE_OFF_CORE1 (1u << 24)
#endif

#if defined(__riscv)
#define VECTORS 0u /* the entry sets mtvec */
#define WAIT() __asm volatile("slt x0, x0, x0" ::: "memory")
#define SIGNAL() __asm volatile("slt x0, x0, x1" ::: "memory")

/* What Reset_Handler does for the first core. */
__attribute__((naked, used)) static void enter(void)
{
    __asm volatile(".option push\n\t"
                   ".option norelax\n\t"
                   "la gp, __global_pointer$\n\t"
                   ".option pop\n\t"
                   "la tp, __tls_start\n\t"
                   "la t0, microc_trap\n\t"
                   "csrw mtvec, t0\n\t"
                   "tail microc_core1_work");
}
#else
#define VECTORS MICROC_REGISTER(0xE000ED08u)
#define WAIT() __asm volatile("wfe" ::: "memory")
#define SIGNAL() __asm volatile("sev" ::: "memory")
#define COPROCESSOR_ACCESS MICROC_REGISTER(0xE000ED88u)

static void enter(void)
{
#if defined(__ARM_FP)
    COPROCESSOR_ACCESS |= 0xFu << 20; /* each core has this register: floating point, for all code */
    __asm volatile("dsb\n\tisb" ::: "memory");
#endif
    microc_core1_work();
}
#endif

static void drain(void)
{
    while ((FIFO_STATE & FIFO_READABLE) != 0u) {
        (void)FIFO_READ;
    }
}

void microc_core1_start(uint32_t *stack_top)
{
    const uint32_t words[6] = {0u, 0u, 1u, VECTORS, (uint32_t)(uintptr_t)stack_top, (uint32_t)(uintptr_t)enter};
    MICROC_REGISTER(FORCE_OFF + 0x2000u) = FORCE_OFF_CORE1;
    while ((MICROC_REGISTER(FORCE_OFF) & FORCE_OFF_CORE1) == 0u) {
    }
    MICROC_REGISTER(FORCE_OFF + 0x3000u) = FORCE_OFF_CORE1;
    for (uint32_t k = 0; k < 6u;) {
        if (words[k] == 0u) {
            drain();
            SIGNAL(); /* the other core may wait for room */
        }
        while ((FIFO_STATE & FIFO_WRITABLE) == 0u) {
        }
        FIFO_WRITE = words[k];
        SIGNAL();
        while ((FIFO_STATE & FIFO_READABLE) == 0u) {
            WAIT();
        }
        k = FIFO_READ == words[k] ? k + 1u : 0u;
    }
}
