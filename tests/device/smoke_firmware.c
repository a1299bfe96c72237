/* SPDX-License-Identifier: Apache-2.0 */
/* Firmware that exercises a port: echoes bytes, times a loop of known length, uses the stack and the floating-point unit. */
#include "microc_port.h"

#include <math.h>

extern volatile uint32_t initialised;
volatile uint32_t initialised = 0x12345678u;
static volatile uint32_t cleared;
static volatile float factor = 1.5f;
static volatile uint64_t divisor = 3000000000u;

static uint8_t take(void)
{
    uint8_t byte;
    while (microc_port_read(&byte, 1) == 0) {
    }
    return byte;
}

static uint32_t take_word(void)
{
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; i++) {
        word |= (uint32_t)take() << (8u * i);
    }
    return word;
}

static void give_word(uint32_t word)
{
    uint8_t bytes[4];
    for (uint32_t i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(word >> (8u * i));
    }
    (void)microc_port_write(bytes, sizeof bytes);
}

static void echo(uint32_t count)
{
    uint8_t buffer[64];
    while (count != 0) {
        size_t wanted = count < sizeof buffer ? count : sizeof buffer;
        int got = microc_port_read(buffer, wanted);
        (void)microc_port_write(buffer, (size_t)got);
        count -= (uint32_t)got;
    }
}

/* Two instructions a turn. */
static void spin(uint32_t turns)
{
#if defined(__riscv) || defined(__xtensa__)
    __asm volatile("1: addi %0, %0, -1\n\tbnez %0, 1b" : "+r"(turns));
#else
    __asm volatile(".syntax unified\n1: subs %0, %0, #1\n\tbne 1b" : "+l"(turns) : : "cc");
#endif
}

static void __attribute__((noinline)) descend(uint32_t bytes)
{
    volatile uint8_t block[256];
    block[0] = (uint8_t)bytes;
    if (bytes > sizeof block) {
        descend(bytes - (uint32_t)sizeof block);
    }
    block[1] = block[0];
}

int main(void)
{
    microc_port_init();
    microc_port_stack_paint();
    for (;;) {
        uint8_t command = take();
        uint32_t argument;
        uint32_t start;
        if (command < 32u) { /* is somebody there? */
            (void)microc_port_write(&command, 1);
            continue;
        }
        argument = take_word();
        switch (command) {
        case 'E':
            echo(argument);
            break;
        case 'T':
            start = microc_port_ticks();
            spin(argument);
            give_word(microc_port_ticks() - start);
            break;
        case 'B': /* busy, while bytes arrive */
            spin(argument);
            break;
        case 'S':
            descend(argument);
            give_word(microc_port_stack_used());
            break;
        case 'M':
            give_word(initialised);
            give_word(cleared);
            give_word((uint32_t)(factor * (float)argument));
            give_word(MICROC_PORT_TICK_HZ);
            break;
        case 'L': /* what the compiler's and the C library bring along */
            give_word((uint32_t)(((uint64_t)argument << 32) / divisor));
            give_word((uint32_t)(1000.0f * expf((float)argument / 8.0f)));
            break;
        default:
            break;
        }
    }
}
