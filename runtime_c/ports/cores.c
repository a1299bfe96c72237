/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second core that waits for work: a mailbox in RAM that both cores see, and a painted stack. How the core is started is in a file
 * of its own (microc_core1_start).
 *
 * Each word of the mailbox has one writer, so that cores without atomic instructions need none: `asked` counts forks, and `done`
 * follows when their functions have returned.
 */
#include "driver.h"
#include "microc_cores.h"
#include "microc_port.h"

#if defined(__arm__)
#define FENCE() __asm volatile("dmb" ::: "memory")
#define WAIT() __asm volatile("wfe" ::: "memory")
#define SIGNAL() __asm volatile("dsb\n\tsev" ::: "memory")
#elif defined(__riscv)
/* The instructions of Hazard3 that wait for the other core and wake it (h3.block, h3.unblock). Other cores do nothing and spin. */
#define FENCE() __asm volatile("fence rw, rw" ::: "memory")
#define WAIT() __asm volatile("slt x0, x0, x0" ::: "memory")
#define SIGNAL() __asm volatile("fence rw, rw\n\tslt x0, x0, x1" ::: "memory")
#else
#error "this port is for Arm and RISC-V"
#endif

#define STACK_PATTERN 0xA5A5A5A5u
#define STACK_WORDS (MICROC_FORK_STACK_BYTES / 4u)

static uint32_t stack[STACK_WORDS] __attribute__((aligned(16)));

static struct {
    void (*volatile function)(const void *);
    const void *volatile argument;
    volatile uint32_t asked;
    volatile uint32_t done;
} mail;

void microc_core1_work(void)
{
#if defined(__ARM_ARCH_8M_MAIN__)
    __asm volatile("msr msplim, %0" ::"r"(stack)); /* an overflow faults: the host sees a time-out, never a wrong answer */
#endif
    uint32_t seen = 0;
    for (;;) {
        while (mail.asked == seen) {
            WAIT();
        }
        FENCE();
        mail.function(mail.argument);
        FENCE();
        seen += 1u;
        mail.done = seen;
        SIGNAL();
    }
}

void microc_port_cores_init(void)
{
    for (uint32_t k = 0; k < STACK_WORDS; ++k) {
        stack[k] = STACK_PATTERN;
    }
    FENCE();
    microc_core1_start(stack + STACK_WORDS);
}

static void ask(void)
{
    FENCE();
    mail.asked = mail.asked + 1u;
    SIGNAL();
}

static void wait(void)
{
    while (mail.done != mail.asked) {
        WAIT();
    }
    FENCE();
}

#ifndef MICROC_FORK_SHARED_CLOCK
void microc_port_fork(void (*function)(const void *), const void *argument)
{
    mail.function = function;
    mail.argument = argument;
    ask();
}

void microc_port_join(void)
{
    wait();
}
#else
/* An emulator whose clock counts the instructions of both cores. The other core works while this one waits, and the shorter of the
 * two times is taken off the clock, which then counts what two cores at once would need. */
static uint32_t forked_at;
static uint32_t saved;

uint32_t microc_fork_saved_ticks(void)
{
    return saved;
}

void microc_port_fork(void (*function)(const void *), const void *argument)
{
    mail.function = function;
    mail.argument = argument;
    forked_at = microc_port_ticks();
}

void microc_port_join(void)
{
    const uint32_t joined_at = microc_port_ticks();
    ask();
    wait();
    const uint32_t own = joined_at - forked_at;
    const uint32_t other = microc_port_ticks() - joined_at;
    saved += own < other ? own : other;
}
#endif

uint32_t microc_port_fork_stack_used(void)
{
    uint32_t k = 0;
    while (k < STACK_WORDS && stack[k] == STACK_PATTERN) {
        ++k;
    }
    return 4u * (STACK_WORDS - k);
}
