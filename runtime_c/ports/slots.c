/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the slots of loadable networks are: in the flash that the board's table [slots] sets apart, which a driver of its own
 * erases and writes; else in RAM, a third of what the linker left of it for each, and a third for tensors.
 */
#include <string.h>

#include "microc_slot.h"

extern uint8_t __stack_limit[];
extern uint8_t __stack_top[];

#if defined(__GNUC__)
#define WEAK __attribute__((weak))
#else
#define WEAK
#endif

WEAK void microc_port_slots(struct microc_slots *slots)
{
    uint32_t room;
    uint8_t *region = microc_port_region(&room);
    slots->stack_size = (uint32_t)((uintptr_t)__stack_top - (uintptr_t)__stack_limit);
#ifdef MICROC_SLOTS_BASE
    slots->slot[0] = (uint8_t *)(uintptr_t)MICROC_SLOTS_BASE;
    slots->slot[1] = slots->slot[0] + MICROC_SLOTS_BYTES;
    slots->size = MICROC_SLOTS_BYTES;
    slots->unit = MICROC_SLOTS_UNIT;
    slots->memory = region;
    slots->memory_size = room;
#else
    slots->size = room / 3u / MICROC_SLOT_RECORD * MICROC_SLOT_RECORD;
    slots->unit = 4u;
    slots->slot[0] = region;
    slots->slot[1] = region + slots->size;
    slots->memory = region + 2u * slots->size;
    slots->memory_size = room - 2u * slots->size;
#endif
}

#ifndef MICROC_SLOTS_BASE
static uint8_t *slot_of(uint32_t slot)
{
    struct microc_slots slots;
    microc_port_slots(&slots);
    return slots.slot[slot];
}

WEAK int microc_port_slot_erase(uint32_t slot, uint32_t size)
{
    (void)memset(slot_of(slot), 0xFF, size);
    return 0;
}

WEAK int microc_port_slot_write(uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size)
{
    (void)memcpy(slot_of(slot) + offset, data, size);
    return 0;
}
#endif
