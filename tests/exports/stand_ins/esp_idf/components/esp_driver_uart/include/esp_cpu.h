/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>

uint32_t esp_cpu_get_cycle_count(void);
