/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from the cycle counter of Cortex-M3 and larger cores. Emulators do not have it. */
#include "driver.h"
#include "microc_port.h"

#define DEMCR MICROC_REGISTER(0xE000EDFCu)
#define DWT_CTRL MICROC_REGISTER(0xE0001000u)
#define DWT_CYCCNT MICROC_REGISTER(0xE0001004u)
#define DWT_LAR MICROC_REGISTER(0xE0001FB0u)

#define DEMCR_TRCENA (1u << 24)
#define CTRL_CYCCNTENA (1u << 0)
#define LAR_KEY 0xC5ACCE55u

void microc_timer_init(void)
{
    DEMCR |= DEMCR_TRCENA;
    DWT_LAR = LAR_KEY; /* the Cortex-M7 locks its registers; others ignore this */
    DWT_CYCCNT = 0u;
    DWT_CTRL |= CTRL_CYCCNTENA;
}

uint32_t microc_port_ticks(void)
{
    return DWT_CYCCNT;
}
