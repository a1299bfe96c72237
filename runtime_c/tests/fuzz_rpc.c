/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher under a fuzzer (libFuzzer). An input is a list of commands that are turned into frames, most of them well
 * sealed, so that the fuzzer spends its time behind the CRC; the rest goes to the decoder as it is. After every frame the gaps
 * between tensors must be intact and the answers whole. `make fuzz` says how many frames were tried.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "fake_model.h"
#include "memory_port.h"

static const struct microc_model model = {
    "fake", fake_tensors, FAKE_TENSORS, FAKE_KERNELS, 1280, "0123456789abcde", fake_run, fake_reset};
static const struct microc_model *const models[] = {&model};
static struct microc_rpc rpc;
static unsigned long long frames;

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void tell_frames(void)
{
    fprintf(stderr, "frames: %llu\n", frames);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    return atexit(tell_frames);
}

/* Most twists leave the frame right; the first few make it one that a board must refuse, or answer from what it kept. */
enum twist { OTHER_VERSION = 1, OTHER_SESSION, REPEATED, OTHER_MODEL, WRONG_LENGTH, RAW_BYTES = 15 };

/* A line that gives the answers back has none answered: they are no requests. Their first delimiter may end a raw one. */
static void check_echo(void)
{
    static uint8_t line[sizeof memory_sent];
    unsigned rounds;
    for (rounds = 0; memory_sent_size != 0; rounds++) {
        size_t size = memory_sent_size;
        memcpy(line, memory_sent, size);
        memory_sent_size = 0;
        CHECK(microc_rpc_receive(&rpc, line, size) == 0);
        CHECK(rounds < 2);
    }
}

/* Every answer is a good frame of the board's version, and there is one at most for each frame that came in. */
static void check_answers(unsigned most)
{
    static uint8_t reply[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
    struct microc_decoder decoder;
    unsigned replies = 0;
    size_t i;
    microc_decoder_init(&decoder, reply, sizeof reply);
    for (i = 0; i < memory_sent_size; i++) {
        enum microc_decoded decoded = microc_decoder_take(&decoder, memory_sent[i]);
        CHECK(decoded != MICROC_FRAME_BAD);
        if (decoded == MICROC_FRAME_GOOD) {
            replies++;
            CHECK(reply[0] == MICROC_RPC_VERSION && (reply[1] & MICROC_REPLY) != 0);
            CHECK(microc_get16(reply + 6) + MICROC_FRAME_OVERHEAD == decoder.size);
        }
    }
    CHECK(replies <= most);
    CHECK(fake_gaps_intact());
    for (i = 0; i < 8; i++) {
        CHECK(memory_region[i] == MEMORY_GUARD && memory_region[8 + MEMORY_REGION + i] == MEMORY_GUARD);
    }
    check_echo();
}

/* Raw bytes may hold as many frames as delimiters. */
static void deliver_raw(const uint8_t *data, size_t size)
{
    unsigned delimiters = 1;
    size_t i;
    for (i = 0; i < size; i++) {
        delimiters += data[i] == 0;
    }
    CHECK(microc_rpc_receive(&rpc, data, size) == 0);
    check_answers(delimiters);
}

static void deliver_sealed(unsigned operation, unsigned twist, const uint8_t *payload, uint16_t size)
{
    static uint8_t frame[512];
    static uint8_t line[1024];
    uint16_t whole = (uint16_t)(size + MICROC_FRAME_OVERHEAD);
    size_t line_size;
    frame[0] = (uint8_t)(MICROC_RPC_VERSION + (twist == OTHER_VERSION));
    frame[1] = (uint8_t)operation;
    microc_put16(frame + 2, (uint16_t)((unsigned)rpc.session + (twist == OTHER_SESSION)));
    frame[4] = (uint8_t)((unsigned)rpc.sequence + (twist != REPEATED));
    frame[5] = (uint8_t)(twist == OTHER_MODEL);
    microc_put16(frame + 6, (uint16_t)(size + (twist == WRONG_LENGTH)));
    memcpy(frame + MICROC_FRAME_HEADER, payload, size);
    if (operation == MICROC_RUN && size >= 8) {
        frame[MICROC_FRAME_HEADER + 5] = 0; /* few repetitions: they are no news */
        frame[MICROC_FRAME_HEADER + 6] = 0;
        frame[MICROC_FRAME_HEADER + 7] = 0;
        frame[MICROC_FRAME_HEADER + 4] &= 3u;
    }
    if (operation == MICROC_CALL && size >= 24) { /* the same, of an image that is there */
        memset(frame + MICROC_FRAME_HEADER + 21, 0, 3);
        frame[MICROC_FRAME_HEADER + 20] &= 3u;
        microc_put32(frame + MICROC_FRAME_HEADER + 8, microc_crc32(memory_region + 8, 9));
    }
    microc_frame_seal(frame, whole);
    CHECK(microc_frame_send(frame, whole) == 0);
    line_size = memory_sent_size;
    memcpy(line, memory_sent, line_size);
    memory_sent_size = 0;
    CHECK(microc_rpc_receive(&rpc, line, line_size) == 0);
    check_answers(2); /* the delimiter may end a raw frame that was under way */
}

/* A command: a byte that names operation and twist, a byte for the length of what follows, its payload. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    microc_rpc_init(&rpc, models, 1);
    memset(memory_region, MEMORY_GUARD, sizeof memory_region);
    fake_reset();
    deliver_sealed(MICROC_HELLO, OTHER_SESSION, data, 0);
    while (size >= 2) {
        unsigned operation = data[0] & 15u;
        unsigned twist = data[0] >> 4;
        size_t length = data[1] < size - 2u ? data[1] : size - 2u;
        if (twist == RAW_BYTES) {
            deliver_raw(data + 2, length);
        } else {
            deliver_sealed(operation, twist, data + 2, (uint16_t)length);
        }
        frames++;
        data += 2u + length;
        size -= 2u + length;
    }
    return 0;
}
