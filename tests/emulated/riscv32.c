/* SPDX-License-Identifier: Apache-2.0 */
/* What a program of 32-bit RISC-V needs of a Linux system, for which there is no C library in distributions: its start, and the
 * calls that the server makes. The bare-metal library (picolibc) does the rest. */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

enum { READ = 63, WRITE = 64, EXIT = 93 };

int main(void);
void start(void);

uint8_t thread_data[4096] __attribute__((aligned(64)));
/* where the library has its error number */

__asm__(".globl _start\n"
        "_start:\n"
        ".option push\n"
        ".option norelax\n"
        "la gp, __global_pointer$\n"
        ".option pop\n"
        "la tp, thread_data\n"
        "andi sp, sp, -16\n"
        "call start\n");

static long call_system(long number, long a, long b, long c)
{
    register long a0 __asm__("a0") = a;
    register long a1 __asm__("a1") = b;
    register long a2 __asm__("a2") = c;
    register long a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
    return a0;
}

void start(void)
{
    (void)call_system(EXIT, main(), 0, 0);
    __builtin_trap();
}

ssize_t read(int file, void *to, size_t count)
{
    return (ssize_t)call_system(READ, file, (long)(uintptr_t)to, (long)count);
}

ssize_t write(int file, const void *from, size_t count)
{
    return (ssize_t)call_system(WRITE, file, (long)(uintptr_t)from, (long)count);
}
