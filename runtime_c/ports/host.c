/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port seam on a computer: standard input and output, and a clock that never goes back. For POSIX and for Windows.
 */
#define _POSIX_C_SOURCE 200112L

#include "microc_port.h"

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#else
#include <time.h>
#include <unistd.h>
#endif

enum { STANDARD_INPUT, STANDARD_OUTPUT };

/* Wait for bytes, read up to `size` of them and return their number; 0 at the end of the input, negative on an error. */
static ptrdiff_t read_input(uint8_t *data, size_t size)
{
#ifdef _WIN32
    return _read(STANDARD_INPUT, data, (unsigned int)size);
#else
    return read(STANDARD_INPUT, data, size);
#endif
}

/* Write up to `size` bytes and return their number; negative on an error. */
static ptrdiff_t write_output(const uint8_t *data, size_t size)
{
#ifdef _WIN32
    return _write(STANDARD_OUTPUT, data, (unsigned int)size);
#else
    return write(STANDARD_OUTPUT, data, size);
#endif
}

static uint8_t pending[1024]; /* written but not sent: system calls for single bytes are slow */
static size_t pending_size;

static int flush(void)
{
    size_t sent = 0;
    while (sent != pending_size) {
        ptrdiff_t count = write_output(pending + sent, pending_size - sent);
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
#ifdef _WIN32
    /* Else the C library changes line ends and stops at the byte 26. */
    (void)_setmode(STANDARD_INPUT, _O_BINARY);
    (void)_setmode(STANDARD_OUTPUT, _O_BINARY);
#endif
}

int microc_port_read(uint8_t *data, size_t size)
{
    ptrdiff_t count = flush() < 0 ? -1 : read_input(data, size);
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
    uint64_t seconds;
    uint64_t fraction; /* of a second, in units of 1 / `hz` */
    uint64_t hz;
#ifdef _WIN32
    LARGE_INTEGER frequency;
    LARGE_INTEGER now;
    (void)QueryPerformanceFrequency(&frequency);
    (void)QueryPerformanceCounter(&now);
    hz = (uint64_t)frequency.QuadPart;
    seconds = (uint64_t)now.QuadPart / hz;
    fraction = (uint64_t)now.QuadPart % hz;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    hz = 1000000000u;
    seconds = (uint64_t)now.tv_sec;
    fraction = (uint64_t)now.tv_nsec;
#endif
    return (uint32_t)((seconds * MICROC_PORT_TICK_HZ + fraction * MICROC_PORT_TICK_HZ / hz) & 0xFFFFFFFFu);
}

/* A host process has stack enough; it is not measured. */
void microc_port_stack_paint(void)
{
}

uint32_t microc_port_stack_used(void)
{
    return 0;
}
