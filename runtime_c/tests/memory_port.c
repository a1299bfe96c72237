#include "memory_port.h"

#include <string.h>

#include "check.h"
#include "microc_port.h"

uint8_t memory_sent[1u << 16];
size_t memory_sent_size;
uint32_t memory_ticks;

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

uint32_t memory_random(void)
{
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}
