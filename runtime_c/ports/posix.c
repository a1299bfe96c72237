/*
 * The port seam on a POSIX host: standard input and output, the monotonic clock.
 */
#define _POSIX_C_SOURCE 200112L

#include "microc_port.h"

#include <time.h>
#include <unistd.h>

void microc_port_init(void)
{
}

int microc_port_read(uint8_t *data, size_t size)
{
    ssize_t count = read(STDIN_FILENO, data, size);
    return count > 0 ? (int)count : -1;
}

int microc_port_write(const uint8_t *data, size_t size)
{
    while (size != 0) {
        ssize_t count = write(STDOUT_FILENO, data, size);
        if (count < 0) {
            return -1;
        }
        data += count;
        size -= (size_t)count;
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
