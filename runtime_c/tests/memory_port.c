/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_port.h"

#include <string.h>

#include "check.h"
#include "microc_load.h"
#include "microc_port.h"

uint8_t memory_sent[1u << 16];
size_t memory_sent_size;
uint32_t memory_ticks;
uint8_t memory_region[8u + MEMORY_REGION + 8u];
unsigned memory_calls;
uint32_t memory_number;
int memory_fails;

void microc_port_init(void)
{
}

int microc_port_read(uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    return -1;
}

int microc_port_write(const uint8_t *data, size_t size)
{
    CHECK(memory_sent_size + size <= sizeof memory_sent);
    memcpy(memory_sent + memory_sent_size, data, size);
    memory_sent_size += size;
    return 0;
}

uint32_t microc_port_ticks(void)
{
    memory_ticks += 10u;
    return memory_ticks;
}

void microc_port_stack_paint(void)
{
}

uint32_t microc_port_stack_used(void)
{
    return 1234;
}

uint8_t *microc_port_region(uint32_t *size)
{
    *size = MEMORY_REGION;
    return memory_region + 8;
}

void microc_port_code_changed(const uint8_t *code, uint32_t size)
{
    CHECK(code >= memory_region + 8 && code + size <= memory_region + 8 + MEMORY_REGION);
}

static int enter(void *const *places, uint32_t number)
{
    (void)places;
    memory_calls++;
    memory_number = number;
    return memory_fails;
}

microc_entry microc_port_entry(const uint8_t *address)
{
    CHECK(address >= memory_region + 8 && address < memory_region + 8 + MEMORY_REGION);
    return enter;
}

uint32_t memory_random(void)
{
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}
