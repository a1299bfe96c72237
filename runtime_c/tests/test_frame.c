/* SPDX-License-Identifier: Apache-2.0 */
/* Framing: known answers, round trips, damage. */
#include <string.h>

#include "check.h"
#include "memory_port.h"
#include "microc_frame.h"

#define CAPACITY 700u

static uint8_t received[CAPACITY];
static struct microc_decoder decoder;

static enum microc_decoded take_all(const uint8_t *data, size_t size)
{
    enum microc_decoded last = MICROC_FRAME_NONE;
    size_t i;
    for (i = 0; i < size; i++) {
        enum microc_decoded decoded = microc_decoder_take(&decoder, data[i]);
        last = decoded == MICROC_FRAME_NONE ? last : decoded;
    }
    return last;
}

static void send(const uint8_t *data, uint16_t size)
{
    memory_sent_size = 0;
    CHECK(microc_frame_send(data, size) == 0);
}

static void test_crc(void)
{
    CHECK(microc_crc32((const uint8_t *)"123456789", 9) == 0xCBF43926u);
    CHECK(microc_crc32(NULL, 0) == 0u);
}

static void test_known_encodings(void)
{
    static const uint8_t zeros[] = {0, 0}, zeros_sent[] = {0, 1, 1, 1, 0};
    static const uint8_t mixed[] = {11, 22, 0, 33}, mixed_sent[] = {0, 3, 11, 22, 2, 33, 0};
    uint8_t full[255];
    send(zeros, sizeof zeros);
    CHECK(memory_sent_size == sizeof zeros_sent && memcmp(memory_sent, zeros_sent, sizeof zeros_sent) == 0);
    send(mixed, sizeof mixed);
    CHECK(memory_sent_size == sizeof mixed_sent && memcmp(memory_sent, mixed_sent, sizeof mixed_sent) == 0);
    memset(full, 7, sizeof full);
    send(full, 254);
    CHECK(memory_sent_size == 257 && memory_sent[1] == 0xFF && memory_sent[256] == 0);
    send(full, 255);
    CHECK(memory_sent_size == 259 && memory_sent[1] == 0xFF && memory_sent[256] == 2 && memory_sent[257] == 7);
}

/* A sealed frame, with runs of zeros and of other bytes. */
static uint16_t make_frame(uint8_t *data)
{
    uint16_t size = (uint16_t)(MICROC_FRAME_OVERHEAD + memory_random() % (CAPACITY - MICROC_FRAME_OVERHEAD + 1u));
    uint32_t density = memory_random() % 300u;
    uint16_t i;
    for (i = 0; i < size; i++) {
        data[i] = (uint8_t)(memory_random() % 300u < density ? 0u : memory_random() & 0xFFu);
    }
    microc_frame_seal(data, size);
    return size;
}

static void test_round_trips(void)
{
    uint8_t data[CAPACITY];
    int i;
    for (i = 0; i < 5000; i++) {
        uint16_t size = make_frame(data);
        send(data, size);
        CHECK(memory_sent_size <= size + size / 254u + 3u);
        CHECK(memchr(memory_sent + 1, 0, memory_sent_size - 2u) == NULL);
        CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_GOOD);
        CHECK(decoder.size == size && memcmp(received, data, size) == 0);
    }
}

/* A damaged frame is refused, and the next one is whole again. */
static void test_damage(void)
{
    uint8_t data[CAPACITY];
    int i;
    for (i = 0; i < 5000; i++) {
        uint16_t size = make_frame(data);
        size_t at;
        send(data, size);
        at = 1u + memory_random() % (memory_sent_size - 2u);
        memory_sent[at] ^= (uint8_t)(1u << memory_random() % 8u);
        CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_BAD);
        send(data, size);
        CHECK(take_all(memory_sent, memory_sent_size - 1u - memory_random() % 10u) == MICROC_FRAME_NONE);
        CHECK(microc_decoder_take(&decoder, 0) != MICROC_FRAME_NONE);
        send(data, size);
        CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_GOOD);
    }
}

static void test_limits(void)
{
    static const uint8_t delimiters[] = {0, 0, 0};
    static uint8_t data[CAPACITY + 1u];
    microc_frame_seal(data, CAPACITY + 1u);
    send(data, CAPACITY + 1u);
    CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_BAD);
    microc_frame_seal(data, CAPACITY);
    send(data, CAPACITY);
    CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_GOOD);
    microc_frame_seal(data, MICROC_FRAME_OVERHEAD - 1u);
    send(data, MICROC_FRAME_OVERHEAD - 1u);
    CHECK(take_all(memory_sent, memory_sent_size) == MICROC_FRAME_BAD);
    CHECK(take_all(delimiters, sizeof delimiters) == MICROC_FRAME_NONE);
}

int main(void)
{
    microc_decoder_init(&decoder, received, CAPACITY);
    test_crc();
    test_known_encodings();
    test_round_trips();
    test_damage();
    test_limits();
    return 0;
}
