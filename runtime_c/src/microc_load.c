/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_load.h"

#include <string.h>

#include "microc_port.h"

/* The only place that makes an address in the region: `size` bytes from `offset` on. */
static int find_bytes(uint32_t offset, uint32_t size, uint8_t **bytes)
{
    uint32_t room;
    uint8_t *region = microc_port_region(&room);
    if (offset > room || size > room - offset) {
        return MICROC_BAD_RANGE;
    }
    *bytes = region + offset;
    return MICROC_OK;
}

int microc_load_region(const struct microc_call *call)
{
    uint32_t room;
    uint64_t address = (uint64_t)(uintptr_t)microc_port_region(&room);
    microc_put32(call->answer, (uint32_t)(address & 0xFFFFFFFFu));
    microc_put32(call->answer + 4, (uint32_t)(address >> 32));
    microc_put32(call->answer + 8, room);
    return 12;
}

int microc_load_bytes(const struct microc_call *call)
{
    uint32_t size = (uint32_t)call->size - MICROC_LOAD_HEADER;
    uint8_t *bytes;
    int status = find_bytes(microc_get32(call->payload), size, &bytes);
    if (status == MICROC_OK) {
        (void)memcpy(bytes, call->payload + MICROC_LOAD_HEADER, size);
    }
    return status;
}

int microc_load_fetch(const struct microc_call *call)
{
    uint16_t size = microc_get16(call->payload + 4);
    uint8_t *bytes;
    int status = find_bytes(microc_get32(call->payload), size, &bytes);
    if (status != MICROC_OK || size > MICROC_RPC_MAX_PAYLOAD) {
        return MICROC_BAD_RANGE;
    }
    (void)memcpy(call->answer, bytes, size);
    return (int)size;
}

int microc_load_check(const struct microc_call *call)
{
    uint32_t size = microc_get32(call->payload + 4);
    uint8_t *bytes;
    if (find_bytes(microc_get32(call->payload), size, &bytes) != MICROC_OK) {
        return MICROC_BAD_RANGE;
    }
    microc_put32(call->answer, microc_crc32(bytes, size));
    return 4;
}

/* The addresses that a call passes, behind its header. */
static int find_places(const struct microc_call *call, void **places)
{
    uint32_t count = ((uint32_t)call->size - MICROC_CALL_HEADER) / 4u;
    uint32_t k;
    if (((uint32_t)call->size - MICROC_CALL_HEADER) % 4u != 0 || count > MICROC_LOAD_PLACES) {
        return MICROC_BAD_LENGTH;
    }
    for (k = 0; k < count; k++) {
        uint8_t *place;
        if (find_bytes(microc_get32(call->payload + MICROC_CALL_HEADER + 4u * k), 0, &place) != MICROC_OK) {
            return MICROC_BAD_RANGE;
        }
        places[k] = place;
    }
    return MICROC_OK;
}

/* The function that a call names, once the image that it lies in is there, whole and undamaged. */
static int find_entry(const struct microc_call *call, microc_entry *entry)
{
    uint32_t offset = microc_get32(call->payload);
    uint32_t size = microc_get32(call->payload + 4);
    uint32_t begin = microc_get32(call->payload + 12) - offset;
    uint8_t *image;
    if (find_bytes(offset, size, &image) != MICROC_OK || begin >= size) {
        return MICROC_BAD_RANGE;
    }
    if (microc_crc32(image, size) != microc_get32(call->payload + 8)) {
        return MICROC_BAD_IMAGE;
    }
    microc_port_code_changed(image, size);
    *entry = microc_port_entry(image + begin);
    return MICROC_OK;
}

/* Execute, time each execution apart, and answer as RUN does. It is written here again: not a byte of it is in other firmware. */
static int time_calls(microc_entry entry, void *const *places, uint32_t number, uint32_t repeat, uint8_t *answer)
{
    uint32_t least = 0xFFFFFFFFu;
    uint32_t most = 0;
    uint64_t sum = 0;
    while (repeat-- != 0) {
        uint32_t begin = microc_port_ticks();
        int failed = entry(places, number);
        uint32_t ticks = microc_port_ticks() - begin;
        if (failed != 0) {
            return MICROC_RUN_FAILED;
        }
        least = ticks < least ? ticks : least;
        most = ticks > most ? ticks : most;
        sum += ticks;
    }
    microc_put32(answer, least);
    microc_put32(answer + 4, most);
    microc_put32(answer + 8, (uint32_t)(sum & 0xFFFFFFFFu));
    microc_put32(answer + 12, (uint32_t)(sum >> 32));
    return 16;
}

int microc_load_call(const struct microc_call *call)
{
    void *places[MICROC_LOAD_PLACES];
    uint32_t number = microc_get32(call->payload + 16);
    uint32_t repeat = microc_get32(call->payload + 20);
    microc_entry entry;
    int status = find_places(call, places);
    if (status == MICROC_OK) {
        status = repeat == 0 ? MICROC_BAD_COUNT : find_entry(call, &entry);
    }
    return status == MICROC_OK ? time_calls(entry, places, number, repeat, call->answer) : status;
}
