/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots in the flash of an nRF51 or nRF52, which its NVMC erases by pages and writes by words. The core waits meanwhile: bytes
 * that the line sends then are lost, but a host that waits for the answer sends none.
 */
#include <string.h>

#include "driver.h"
#include "microc_slot.h"

#define READY 0x4001E400u
#define CONFIGURATION 0x4001E504u
#define ERASE_PAGE 0x4001E508u
#define PAGE_SIZE 0x10000010u /* in the chip's own facts (FICR) */
#define READ_ONLY 0u
#define WRITE 1u
#define ERASE 2u

#if MICROC_SLOTS_UNIT % 4 != 0
#error "the NVMC writes words: the unit of [slots] is a multiple of 4"
#endif

static void wait(void)
{
    while ((MICROC_REGISTER(READY) & 1u) == 0u) {
    }
}

static void allow(uint32_t what)
{
    MICROC_REGISTER(CONFIGURATION) = what;
    wait();
}

static uint32_t address_of(uint32_t slot)
{
    return MICROC_SLOTS_BASE + slot * MICROC_SLOTS_BYTES;
}

int microc_port_slot_erase(uint32_t slot, uint32_t size)
{
    const uint32_t page = MICROC_REGISTER(PAGE_SIZE);
    const uint32_t end = address_of(slot) + size;
    /* A page that two slots share, or a slot and the firmware, is not erased. */
    if (((MICROC_SLOTS_BASE | MICROC_SLOTS_BYTES) & (page - 1u)) != 0u) {
        return -1;
    }
    allow(ERASE);
    for (uint32_t at = address_of(slot); at < end; at += page) {
        MICROC_REGISTER(ERASE_PAGE) = at;
        wait();
    }
    allow(READ_ONLY);
    return 0;
}

int microc_port_slot_write(uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size)
{
    const uint32_t begin = address_of(slot) + offset;
    allow(WRITE);
    for (uint32_t at = 0; at < size; at += 4u) {
        uint32_t word;
        (void)memcpy(&word, data + at, sizeof word);
        MICROC_REGISTER(begin + at) = word;
        wait();
    }
    allow(READ_ONLY);
    return memcmp((const uint8_t *)(uintptr_t)begin, data, size) == 0 ? 0 : -1;
}
