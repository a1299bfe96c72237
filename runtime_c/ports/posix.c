/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam on a POSIX host: standard input and output, the monotonic clock.
 */
#define _POSIX_C_SOURCE 200112L

#include "microc_port.h"

#include <time.h>
#include <unistd.h>

static uint8_t pending[1024]; /* written but not sent: system calls for single bytes are slow */
static size_t pending_size;

static int flush(void)
{
    size_t sent = 0;
    while (sent != pending_size) {
        ssize_t count = write(STDOUT_FILENO, pending + sent, pending_size - sent);
        if (count < 0) {
            return -1;
        }
        sent += (size_t)count;
    }
    pending_size = 0;
    return 0;
}

void microc_port_init(void)
{
}

int microc_port_read(uint8_t *data, size_t size)
{
    ssize_t count = flush() < 0 ? -1 : read(STDIN_FILENO, data, size);
    return count > 0 ? (int)count : -1;
}

int microc_port_write(const uint8_t *data, size_t size)
{
    size_t i;
    for (i = 0; i < size; i++) {
        if (pending_size == sizeof pending && flush() < 0) {
            return -1;
        }
        pending[pending_size++] = data[i];
    }
    return 0;
}

uint32_t microc_port_ticks(void)
{
    struct timespec now;
    uint64_t ticks;
    clock_gettime(CLOCK_MONOTONIC, &now);
    ticks = (uint64_t)now.tv_sec * MICROC_PORT_TICK_HZ + (uint64_t)now.tv_nsec * MICROC_PORT_TICK_HZ / 1000000000u;
    return (uint32_t)(ticks & 0xFFFFFFFFu);
}

/* A host process has stack enough; it is not measured. */
void microc_port_stack_paint(void)
{
}

uint32_t microc_port_stack_used(void)
{
    return 0;
}
