/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and calling, driven in memory: what is refused, and that nothing is touched outside of the region. */
#include <string.h>

#include "ask.h"
#include "microc_load.h"

static void begin(void)
{
    memset(memory_region, MEMORY_GUARD, sizeof memory_region);
    memory_calls = 0;
    memory_fails = 0;
    sequence = 0;
    microc_rpc_init(&rpc, NULL, 0);
    CHECK(ask(MICROC_HELLO, NULL, 0) == MICROC_OK && answer[2] == 0);
}

static void check_guards(void)
{
    size_t i;
    for (i = 0; i < 8; i++) {
        CHECK(memory_region[i] == MEMORY_GUARD && memory_region[8 + MEMORY_REGION + i] == MEMORY_GUARD);
    }
}

static int load(uint32_t offset, const void *bytes, size_t size)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD];
    microc_put32(payload, offset);
    memcpy(payload + 4, bytes, size);
    return ask(MICROC_LOAD, payload, (uint16_t)(4u + size));
}

static int fetch(uint32_t offset, uint16_t size)
{
    uint8_t payload[6];
    microc_put32(payload, offset);
    microc_put16(payload + 4, size);
    return ask(MICROC_FETCH, payload, sizeof payload);
}

/* The header of a call, and how many places behind it. */
static int call(uint32_t image, uint32_t size, uint32_t crc, uint32_t entry, uint32_t repeat, uint32_t place, unsigned places)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD];
    unsigned k;
    microc_put32(payload, image);
    microc_put32(payload + 4, size);
    microc_put32(payload + 8, crc);
    microc_put32(payload + 12, entry);
    microc_put32(payload + 16, 7);
    microc_put32(payload + 20, repeat);
    for (k = 0; k < places; k++) {
        microc_put32(payload + 24 + 4 * k, place);
    }
    return ask(MICROC_CALL, payload, (uint16_t)(24u + 4u * places));
}

static void test_region(void)
{
    begin();
    CHECK(ask(MICROC_REGION, NULL, 0) == MICROC_OK && microc_get16(reply + 6) == 12);
    CHECK(microc_get32(answer) == (uint32_t)((uintptr_t)(memory_region + 8) & 0xFFFFFFFFu));
    CHECK(microc_get32(answer + 8) == MEMORY_REGION);
    CHECK(ask(MICROC_REGION, answer, 1) == MICROC_BAD_LENGTH);
}

static void test_bytes(void)
{
    static const uint8_t bytes[4] = {1, 2, 3, 4};
    begin();
    CHECK(load(MEMORY_REGION - 4, bytes, 4) == MICROC_OK && fetch(MEMORY_REGION - 4, 4) == MICROC_OK);
    CHECK(microc_get16(reply + 6) == 4 && memcmp(answer, bytes, 4) == 0);
    CHECK(load(MEMORY_REGION, bytes, 0) == MICROC_OK && fetch(MEMORY_REGION, 0) == MICROC_OK);
    CHECK(load(MEMORY_REGION - 3, bytes, 4) == MICROC_BAD_RANGE && fetch(MEMORY_REGION - 3, 4) == MICROC_BAD_RANGE);
    CHECK(load(0xFFFFFFFEu, bytes, 4) == MICROC_BAD_RANGE && fetch(0xFFFFFFFEu, 4) == MICROC_BAD_RANGE);
    CHECK(fetch(0, MICROC_RPC_MAX_PAYLOAD + 1) == MICROC_BAD_RANGE);
    CHECK(ask(MICROC_LOAD, bytes, 3) == MICROC_BAD_LENGTH && ask(MICROC_FETCH, bytes, 4) == MICROC_BAD_LENGTH);
    check_guards();
}

static void test_checks(void)
{
    static const uint8_t bytes[4] = {1, 2, 3, 4};
    uint8_t payload[8];
    begin();
    CHECK(load(5, bytes, 4) == MICROC_OK);
    microc_put32(payload, 5);
    microc_put32(payload + 4, 4);
    CHECK(ask(MICROC_CHECK, payload, 8) == MICROC_OK && microc_get16(reply + 6) == 4 && microc_get32(answer) == microc_crc32(bytes, 4));
    microc_put32(payload + 4, MEMORY_REGION - 4);
    CHECK(ask(MICROC_CHECK, payload, 8) == MICROC_BAD_RANGE && ask(MICROC_CHECK, payload, 7) == MICROC_BAD_LENGTH);
}

static void test_calls(void)
{
    static const uint8_t image[12] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2};
    const uint32_t crc = microc_crc32(image, sizeof image);
    begin();
    CHECK(call(16, 12, crc, 20, 1, 0, 0) == MICROC_BAD_IMAGE); /* nothing is there yet */
    CHECK(load(16, image, 8) == MICROC_OK);
    CHECK(call(16, 12, crc, 20, 1, 0, 0) == MICROC_BAD_IMAGE); /* a part of it */
    CHECK(load(24, image + 8, 4) == MICROC_OK);
    CHECK(call(16, 12, crc, 20, 3, MEMORY_REGION, 2) == MICROC_OK && memory_calls == 3 && memory_number == 7);
    CHECK(microc_get16(reply + 6) == 16 && microc_get32(answer) == 10 && microc_get32(answer + 4) == 10 && microc_get32(answer + 8) == 30);
    CHECK(call(16, 12, crc, 20, 0, 0, 0) == MICROC_BAD_COUNT);
    CHECK(call(16, 12, crc, 28, 1, 0, 0) == MICROC_BAD_RANGE && call(16, 12, crc, 15, 1, 0, 0) == MICROC_BAD_RANGE);
    CHECK(call(16, 0, 0, 16, 1, 0, 0) == MICROC_BAD_RANGE);
    CHECK(call(MEMORY_REGION - 4, 12, crc, MEMORY_REGION - 4, 1, 0, 0) == MICROC_BAD_RANGE);
    CHECK(call(16, 0xFFFFFFFFu, crc, 20, 1, 0, 0) == MICROC_BAD_RANGE);
    CHECK(call(16, 12, crc, 20, 1, MEMORY_REGION + 1, 1) == MICROC_BAD_RANGE);
    CHECK(ask(MICROC_CALL, image, 12) == MICROC_BAD_LENGTH);
    CHECK(memory_calls == 3);
    memory_fails = 1;
    CHECK(call(16, 12, crc, 20, 5, 0, 0) == MICROC_RUN_FAILED && memory_calls == 4 && microc_get16(reply + 6) == 0);
    CHECK(load(20, image, 1) == MICROC_OK && call(16, 12, crc, 20, 1, 0, 0) == MICROC_BAD_IMAGE); /* damaged */
    check_guards();
}

#if MICROC_RPC_MAX_PAYLOAD >= 256
static void test_places(void)
{
    static const uint8_t image[4] = {1, 1, 1, 1};
    uint8_t payload[26] = {0};
    begin();
    CHECK(load(0, image, 4) == MICROC_OK);
    CHECK(call(0, 4, microc_crc32(image, 4), 0, 1, 4, MICROC_LOAD_PLACES) == MICROC_OK);
    CHECK(call(0, 4, microc_crc32(image, 4), 0, 1, 4, MICROC_LOAD_PLACES + 1u) == MICROC_BAD_LENGTH);
    CHECK(ask(MICROC_CALL, payload, sizeof payload) == MICROC_BAD_LENGTH);
}
#endif

/* Requests whose frames are right and whose contents are anything. */
static void test_storm(void)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD];
    long i;
    begin();
    for (i = 0; i < 100000; i++) {
        unsigned operation = MICROC_REGION + memory_random() % 6u;
        uint16_t size = (uint16_t)(memory_random() % sizeof payload);
        uint16_t j;
        for (j = 0; j < size; j++) {
            payload[j] = (uint8_t)(memory_random() % 3u == 0 ? memory_random() & 0xFFu : memory_random() & 3u);
        }
        if (operation == MICROC_CALL && size >= 24) {
            microc_put32(payload + 20, memory_random() % 3u);
            if (memory_random() % 4u == 0) { /* an image that is there */
                size = (uint16_t)(24u + 4u * (size % 3u == 0));
                microc_put32(payload, 3);
                microc_put32(payload + 4, 50);
                microc_put32(payload + 8, microc_crc32(memory_region + 8 + 3, 50));
                microc_put32(payload + 12, memory_random() % 60u);
            }
        }
        (void)ask(operation, payload, size);
    }
    check_guards();
    CHECK(memory_calls > 100);
}

int main(void)
{
    test_region();
    test_bytes();
    test_checks();
    test_calls();
#if MICROC_RPC_MAX_PAYLOAD >= 256
    test_places();
#endif
    test_storm();
    return 0;
}
