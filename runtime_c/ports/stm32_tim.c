/* SPDX-License-Identifier: Apache-2.0 */
/* Ticks from a free-running 32-bit timer (TIM2 or TIM5) of the STM32 families. [setup] gives it its clock. */
#include "driver.h"
#include "microc_port.h"

#define TIM(offset) MICROC_REGISTER(MICROC_TIMER_BASE + (offset))
#define TIM_CR1 TIM(0x00u)
#define TIM_EGR TIM(0x14u)
#define TIM_CNT TIM(0x24u)
#define TIM_PSC TIM(0x28u)
#define TIM_ARR TIM(0x2Cu)

void microc_timer_init(void)
{
    TIM_PSC = 0u;
    TIM_ARR = 0xFFFFFFFFu;
    TIM_EGR = 1u; /* load the prescaler now */
    TIM_CR1 = 1u;
}

uint32_t microc_port_ticks(void)
{
    return TIM_CNT;
}
