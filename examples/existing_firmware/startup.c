/* SPDX-License-Identifier: Apache-2.0 */
/* The way from reset to main on a Cortex-M4, as the firmware had it before. */
#include <stdint.h>

#define CPACR (*(volatile uint32_t *)0xE000ED88u)

extern void _start(void);

static void reset(void)
{
    CPACR |= 0xFu << 20; /* the FPU */
    _start();
}

typedef void (*vector)(void);

__attribute__((section(".vectors"), used)) static const vector vectors[] = {(vector)0x00400000u, reset};
