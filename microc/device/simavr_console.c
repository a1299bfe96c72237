/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An AVR in libsimavr, cycle by cycle, with its USART 0 on standard input and output:
 *
 *     console MCU HZ FIRMWARE.elf [RAM_END]
 *
 * RAM_END: the last address of data memory, where external RAM extends that of the chip. The program ends with its input.
 */
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <simavr/avr_uart.h>
#include <simavr/sim_avr.h>
#include <simavr/sim_elf.h>

/* Cycles between two looks at standard input: a byte at 115200 baud and 16 MHz takes 1389. */
#define LOOK_CYCLES 1000u
#define INPUT_BYTES 4096u

static int console = -1;
static int ready = 0; /* the USART takes another byte */
static uint8_t input[INPUT_BYTES];
static ssize_t input_count = 0;
static ssize_t input_taken = 0;

static void send_byte(struct avr_irq_t *irq, uint32_t value, void *param)
{
    const uint8_t byte = (uint8_t)value;
    (void)irq;
    (void)param;
    while (write(console, &byte, 1) != 1) {
        struct pollfd wait = {.fd = console, .events = POLLOUT};
        if (poll(&wait, 1, 1000) < 0 || (wait.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
            exit(0);
        }
    }
}

static void set_ready(struct avr_irq_t *irq, uint32_t value, void *param)
{
    (void)irq;
    (void)value;
    ready = param != NULL;
}

static avr_irq_t *uart_irq(avr_t *avr, unsigned number)
{
    return avr_io_getirq(avr, AVR_IOCTL_UART_GETIRQ('0'), number);
}

static void connect_uart(avr_t *avr)
{
    uint32_t flags = 0; /* neither sleep while the firmware polls nor print its lines */
    avr_ioctl(avr, AVR_IOCTL_UART_SET_FLAGS('0'), &flags);
    avr_irq_register_notify(uart_irq(avr, UART_IRQ_OUTPUT), send_byte, NULL);
    avr_irq_register_notify(uart_irq(avr, UART_IRQ_OUT_XON), set_ready, &ready);
    avr_irq_register_notify(uart_irq(avr, UART_IRQ_OUT_XOFF), set_ready, NULL);
}

/* The core sleeps for some cycles, until a timer's at most. Unless bytes are on their way to it, wait as long for input. */
static void sleep_until_input(avr_t *avr, avr_cycle_count_t cycles)
{
    if (input_taken == input_count) {
        struct pollfd wait = {.fd = 0, .events = POLLIN};
        (void)poll(&wait, 1, (int)(cycles * 1000u / avr->frequency));
    }
}

static void run(avr_t *avr)
{
    avr_cycle_count_t look = 0;
    for (;;) {
        const int state = avr_run(avr);
        if (state == cpu_Done || state == cpu_Crashed) {
            fprintf(stderr, "the firmware has ended at %#x\n", (unsigned)avr->pc);
            exit(1);
        }
        if (avr->cycle < look) {
            continue;
        }
        look = avr->cycle + LOOK_CYCLES;
        if (input_taken == input_count) {
            struct pollfd wait = {.fd = 0, .events = POLLIN};
            if (poll(&wait, 1, 0) > 0) {
                input_count = read(0, input, sizeof input);
                input_taken = 0;
                if (input_count <= 0) {
                    exit(0);
                }
            }
        }
        while (input_taken < input_count && ready) {
            avr_raise_irq(uart_irq(avr, UART_IRQ_INPUT), input[input_taken]);
            input_taken += 1;
        }
    }
}

int main(int argc, char **argv)
{
    static elf_firmware_t firmware;
    avr_t *avr;
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("libsimavr");
        return 0;
    }
    if (argc < 4) {
        fprintf(stderr, "usage: %s MCU HZ FIRMWARE.elf [RAM_END]\n", argv[0]);
        return 2;
    }
    console = dup(1);
    if (console < 0 || freopen("/dev/null", "w", stdout) == NULL) { /* the library prints there */
        perror("standard output");
        return 1;
    }
    (void)signal(SIGPIPE, SIG_IGN);
    if (elf_read_firmware(argv[3], &firmware) != 0) {
        fprintf(stderr, "%s: no firmware\n", argv[3]);
        return 1;
    }
    avr = avr_make_mcu_by_name(argv[1]);
    if (avr == NULL) {
        fprintf(stderr, "simavr knows no %s\n", argv[1]);
        return 1;
    }
    if (argc > 4) {
        avr->ramend = (uint16_t)strtoul(argv[4], NULL, 0);
    }
    if (avr_init(avr) != 0) {
        return 1;
    }
    avr->log = LOG_ERROR;
    firmware.frequency = (uint32_t)strtoul(argv[2], NULL, 10);
    avr_load_firmware(avr, &firmware);
    avr->sleep = sleep_until_input;
    connect_uart(avr);
    run(avr);
    return 0;
}
