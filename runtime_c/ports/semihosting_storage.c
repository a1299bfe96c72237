/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage on the computer that runs the emulator or the debugger, by semihosting of Cortex-M: the file weights.bin beside the
 * firmware's own file. Arm, "Semihosting for AArch32 and AArch64": a call is a breakpoint with the operation in r0 and the address
 * of its arguments in r1; the result is in r0.
 */
#include "microc_storage.h"

#include <string.h>

enum { OPEN = 0x01, READ = 0x06, SEEK = 0x0a, COMMAND_LINE = 0x15 };
enum { READ_BINARY = 1 }; /* the mode "rb" of fopen */

static int32_t call_host(uint32_t operation, void *arguments)
{
    register uint32_t r0 __asm("r0") = operation;
    register void *r1 __asm("r1") = arguments;
    __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory", "cc");
    return (int32_t)r0;
}

/* Open weights.bin in the folder of the firmware's file, which is the first word of the command line. Returns its handle, or -1. */
static int32_t open_weights(void)
{
    static char path[512];
    static const char name[] = "weights.bin";
    uint32_t line[2] = { (uint32_t)(uintptr_t)path, sizeof path - sizeof name };
    if (call_host(COMMAND_LINE, line) != 0) {
        return -1;
    }
    uint32_t folder = 0; /* length of the path up to its last slash */
    for (uint32_t k = 0; path[k] != '\0' && path[k] != ' '; ++k) {
        if (path[k] == '/') {
            folder = k + 1u;
        }
    }
    (void)memcpy(&path[folder], name, sizeof name);
    uint32_t opening[3] = { (uint32_t)(uintptr_t)path, READ_BINARY, folder + (uint32_t)sizeof name - 1u };
    return call_host(OPEN, opening);
}

int microc_storage_read(uint32_t offset, void *to, uint32_t bytes)
{
    static int32_t file = -1;
    if (file < 0) {
        file = open_weights();
    }
    uint32_t seeking[2] = { (uint32_t)file, offset };
    uint32_t reading[3] = { (uint32_t)file, 0u, bytes };
    (void)memcpy(&reading[1], &to, sizeof to); /* the address, of 32 bits on these cores */
    if (file < 0 || call_host(SEEK, seeking) != 0) {
        return -1;
    }
    return (int)call_host(READ, reading); /* the number of bytes that are missing */
}

int microc_storage_wait(void)
{
    return 0; /* a call of the host returns when the bytes are there */
}
