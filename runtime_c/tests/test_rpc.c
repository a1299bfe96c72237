/* SPDX-License-Identifier: Apache-2.0 */
/* The dispatcher, driven in memory: every operation, every refusal, and a storm of random requests. */
#include <string.h>

#include "check.h"
#include "fake_model.h"
#include "memory_port.h"

static const struct microc_model model = {
    "fake", fake_tensors, FAKE_TENSORS, FAKE_KERNELS, 1280, "0123456789abcde", fake_run, fake_reset};
static const struct microc_model *const models[] = {&model};
static struct microc_rpc rpc;

static uint16_t session = 77;
static uint8_t sequence;

/* The board's last reply. */
static uint8_t reply[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
static const uint8_t *const answer = reply + MICROC_FRAME_HEADER;
static uint16_t answer_size;
static int replies;

static uint16_t make_request(uint8_t *frame, unsigned operation, const uint8_t *payload, uint16_t size)
{
    uint16_t whole = (uint16_t)(size + MICROC_FRAME_OVERHEAD);
    frame[0] = MICROC_RPC_VERSION;
    frame[1] = (uint8_t)operation;
    microc_put16(frame + 2, session);
    frame[4] = sequence;
    frame[5] = 0;
    microc_put16(frame + 6, size);
    if (size != 0) {
        memcpy(frame + MICROC_FRAME_HEADER, payload, size);
    }
    microc_frame_seal(frame, whole);
    return whole;
}

/* Send a sealed request; returns the status of the last reply, and counts the replies. */
static int deliver(const uint8_t *frame, uint16_t size)
{
    static uint8_t line[1u << 14];
    struct microc_decoder decoder;
    size_t line_size, i;
    int status = 1;
    memory_sent_size = 0;
    CHECK(microc_frame_send(frame, size) == 0);
    line_size = memory_sent_size;
    memcpy(line, memory_sent, line_size);
    memory_sent_size = 0;
    CHECK(microc_rpc_receive(&rpc, line, line_size) == 0);
    microc_decoder_init(&decoder, reply, sizeof reply);
    replies = 0;
    for (i = 0; i < memory_sent_size; i++) {
        enum microc_decoded decoded = microc_decoder_take(&decoder, memory_sent[i]);
        CHECK(decoded != MICROC_FRAME_BAD);
        if (decoded == MICROC_FRAME_GOOD) {
            replies++;
            answer_size = microc_get16(reply + 6);
            CHECK(answer_size + MICROC_FRAME_OVERHEAD == decoder.size);
            CHECK(reply[0] == MICROC_RPC_VERSION && reply[1] == (frame[1] | MICROC_REPLY));
            CHECK(memcmp(reply + 2, frame + 2, 3) == 0);
            status = reply[5] > 127 ? reply[5] - 256 : reply[5];
        }
    }
    return status;
}

static int ask(unsigned operation, const uint8_t *payload, uint16_t size)
{
    uint8_t frame[2 * MICROC_RPC_MAX_PAYLOAD];
    int status;
    sequence++;
    status = deliver(frame, make_request(frame, operation, payload, size));
    CHECK(replies == 1);
    CHECK(status == MICROC_OK || answer_size == 0);
    return status;
}

static int ask_read(unsigned tensor, uint32_t offset, unsigned size)
{
    uint8_t payload[8];
    microc_put16(payload, (uint16_t)tensor);
    microc_put32(payload + 2, offset);
    microc_put16(payload + 6, (uint16_t)size);
    return ask(MICROC_READ, payload, sizeof payload);
}

static int ask_write(unsigned tensor, uint32_t offset, const void *data, size_t size)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD];
    microc_put16(payload, (uint16_t)tensor);
    microc_put32(payload + 2, offset);
    memcpy(payload + 6, data, size);
    return ask(MICROC_WRITE, payload, (uint16_t)(6u + size));
}

static int ask_run(unsigned first, unsigned last, uint32_t repeat)
{
    uint8_t payload[8];
    microc_put16(payload, (uint16_t)first);
    microc_put16(payload + 2, (uint16_t)last);
    microc_put32(payload + 4, repeat);
    return ask(MICROC_RUN, payload, sizeof payload);
}

static int32_t out(void)
{
    int32_t value;
    CHECK(ask_read(FAKE_OUT, 0, 4) == MICROC_OK && answer_size == 4);
    memcpy(&value, answer, 4);
    return value;
}

static void begin(void)
{
    microc_rpc_init(&rpc, models, 1);
    fake_reset();
    session++;
    CHECK(ask(MICROC_HELLO, NULL, 0) == MICROC_OK);
}

static void test_descriptions(void)
{
    static const uint8_t zero[2] = {0, 0}, five[2] = {5, 0}, seven[2] = {7, 0}, eight[2] = {8, 0};
    begin();
    CHECK(answer_size == 8 && microc_get16(answer) == MICROC_RPC_MAX_PAYLOAD && answer[2] == 1);
    CHECK(microc_get32(answer + 4) == MICROC_PORT_TICK_HZ);
    CHECK(ask(MICROC_MODEL, NULL, 0) == MICROC_OK && answer_size == 28);
    CHECK(memcmp(answer, "0123456789abcde", 16) == 0 && memcmp(answer + 24, "fake", 4) == 0);
    CHECK(microc_get32(answer + 16) == 1280 && microc_get16(answer + 20) == FAKE_TENSORS);
    CHECK(microc_get16(answer + 22) == FAKE_KERNELS);
    CHECK(ask(MICROC_TENSORS, zero, 2) == MICROC_OK);
    CHECK(answer_size >= 32 && microc_get32(answer + 16) == FAKE_BYTES && microc_get16(answer + 20) == FAKE_DOUBLE);
    CHECK(answer[22] == MICROC_INT32 && answer[23] == MICROC_OUTPUT);
    CHECK(ask(MICROC_TENSORS, five, 2) == MICROC_OK && answer_size == 16 && microc_get32(answer) == 1);
    CHECK(ask(MICROC_TENSORS, seven, 2) == MICROC_OK && answer_size == 0);
    CHECK(ask(MICROC_TENSORS, eight, 2) == MICROC_BAD_TENSOR);
}

static void test_run(void)
{
    int32_t three = 3, four = 4;
    begin();
    CHECK(ask_write(FAKE_A, 0, &three, 4) == MICROC_OK && ask_write(FAKE_B, 0, &four, 4) == MICROC_OK);
    CHECK(ask_run(0, 2, 1) == MICROC_OK && answer_size == 16);
    CHECK(microc_get32(answer) == 10 && microc_get32(answer + 4) == 10 && microc_get32(answer + 8) == 10);
    CHECK(out() == 14);
    memory_ticks = 0xFFFFFFFFu - 14u; /* the counter wraps within */
    CHECK(ask_run(0, 2, 3) == MICROC_OK && microc_get32(answer + 8) == 30 && microc_get32(answer + 12) == 0);
    CHECK(out() == 56);
    CHECK(ask(MICROC_RESET, NULL, 0) == MICROC_OK && ask_run(0, 0, 1) == MICROC_OK && ask_run(2, 2, 1) == MICROC_OK);
    CHECK(out() == 0);
    CHECK(ask_read(FAKE_SUM, 0, 4) == MICROC_OK && microc_get32(answer) == 7);
    three = FAKE_REFUSED;
    CHECK(ask_write(FAKE_A, 0, &three, 4) == MICROC_OK && ask_run(0, 2, 1) == MICROC_RUN_FAILED);
    three = 0;
    CHECK(ask_write(FAKE_A, 0, &three, 4) == MICROC_OK);
}

static void test_profile(void)
{
    static const uint8_t all[4] = {0, 0, 2, 0}, too_many[4] = {0, 0, 3, 0};
    begin();
    CHECK(ask(MICROC_PROFILE, all, 4) == MICROC_OK && answer_size == 12);
    CHECK(microc_get32(answer) == 10 && microc_get32(answer + 4) == 10 && microc_get32(answer + 8) == 10);
    CHECK(ask(MICROC_PROFILE, too_many, 4) == MICROC_BAD_RANGE);
}

static void test_bounds(void)
{
    static const uint8_t bytes[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    begin();
    CHECK(ask_write(FAKE_A, FAKE_BYTES - 8u, bytes, 8) == MICROC_OK);
    CHECK(ask_write(FAKE_A, FAKE_BYTES - 7u, bytes, 8) == MICROC_BAD_RANGE);
    CHECK(ask_write(FAKE_A, 0xFFFFFFF8u, bytes, 8) == MICROC_BAD_RANGE);
    CHECK(ask_write(FAKE_A, FAKE_BYTES, bytes, 0) == MICROC_OK);
    CHECK(ask_write(FAKE_FLAG, 0, bytes, 2) == MICROC_BAD_RANGE && ask_write(FAKE_FLAG, 0, bytes, 1) == MICROC_OK);
    CHECK(ask_write(FAKE_UNBOUND, 0, bytes, 8) == MICROC_UNBOUND);
    CHECK(ask_write(FAKE_TENSORS, 0, bytes, 8) == MICROC_BAD_TENSOR);
    CHECK(ask_read(FAKE_A, 0, MICROC_RPC_MAX_PAYLOAD) == MICROC_OK && answer_size == MICROC_RPC_MAX_PAYLOAD);
    CHECK(ask_read(FAKE_A, 0, MICROC_RPC_MAX_PAYLOAD + 1) == MICROC_BAD_RANGE);
    CHECK(ask_read(FAKE_A, FAKE_BYTES, 1) == MICROC_BAD_RANGE && ask_read(FAKE_A, 0xFFFFFFFFu, 2) == MICROC_BAD_RANGE);
    CHECK(ask_read(FAKE_UNBOUND, 0, 4) == MICROC_UNBOUND && ask_read(0xFFFF, 0, 4) == MICROC_BAD_TENSOR);
    CHECK(ask_run(1, 0, 1) == MICROC_BAD_RANGE && ask_run(0, 3, 1) == MICROC_BAD_RANGE);
    CHECK(ask_run(0, 2, 0) == MICROC_BAD_COUNT);
    CHECK(fake_gaps_intact());
}

static void test_malformed(void)
{
    static const uint8_t bytes[MICROC_RPC_MAX_PAYLOAD] = {0};
    uint8_t frame[64];
    uint16_t size;
    begin();
    CHECK(ask(0, NULL, 0) == MICROC_BAD_OPERATION && ask(10, NULL, 0) == MICROC_BAD_OPERATION);
    CHECK(ask(0x7F, NULL, 0) == MICROC_BAD_OPERATION);
    CHECK(ask(MICROC_READ, bytes, 7) == MICROC_BAD_LENGTH && ask(MICROC_READ, bytes, 9) == MICROC_BAD_LENGTH);
    CHECK(ask(MICROC_WRITE, bytes, 5) == MICROC_BAD_LENGTH);
    sequence++;
    size = make_request(frame, MICROC_STATS, NULL, 0);
    frame[5] = 1; /* a model that does not exist; STATS is no model's business */
    microc_frame_seal(frame, size);
    CHECK(deliver(frame, size) == MICROC_OK);
    sequence++;
    size = make_request(frame, MICROC_MODEL, NULL, 0);
    frame[5] = 1;
    microc_frame_seal(frame, size);
    CHECK(deliver(frame, size) == MICROC_BAD_MODEL);
    sequence++;
    size = make_request(frame, MICROC_STATS, NULL, 0);
    frame[6] = 3; /* the header lies about the length */
    microc_frame_seal(frame, size);
    CHECK(deliver(frame, size) == MICROC_BAD_LENGTH);
    size = make_request(frame, MICROC_STATS, NULL, 0);
    frame[9] ^= 1u;
    CHECK(deliver(frame, size) == 1 && replies == 0 && rpc.bad_frames == 1);
}

static void test_order(void)
{
    uint8_t run_frame[64], frame[64];
    uint16_t run_size, size;
    int32_t five = 5;
    microc_rpc_init(&rpc, models, 1);
    fake_reset();
    CHECK(ask(MICROC_STATS, NULL, 0) == MICROC_BAD_SESSION); /* nobody has said hello */
    begin();
    CHECK(ask_write(FAKE_A, 0, &five, 4) == MICROC_OK && ask_write(FAKE_B, 0, &five, 4) == MICROC_OK);
    sequence++;
    run_size = make_request(run_frame, MICROC_RUN, (const uint8_t *)"\0\0\2\0\1\0\0\0", 8);
    CHECK(deliver(run_frame, run_size) == MICROC_OK);
    size = make_request(frame, MICROC_STATS, NULL, 0);
    frame[4] = (uint8_t)(sequence + 2u); /* from the future: refused, and the kept reply survives */
    microc_frame_seal(frame, size);
    CHECK(deliver(frame, size) == MICROC_BAD_SEQUENCE);
    CHECK(deliver(run_frame, run_size) == MICROC_OK && answer_size == 16 && replies == 1); /* repeated, not executed */
    CHECK(rpc.repeats == 1);
    CHECK(out() == 20);
    CHECK(deliver(run_frame, run_size) == MICROC_BAD_SEQUENCE); /* stale */
    CHECK(out() == 20);
    session++;
    CHECK(ask(MICROC_HELLO, NULL, 0) == MICROC_OK);
    CHECK(deliver(run_frame, run_size) == MICROC_BAD_SESSION); /* of an earlier session */
    CHECK(out() == 20);
    sequence++;
    size = make_request(frame, MICROC_STATS, NULL, 0);
    frame[0] = 2;
    microc_frame_seal(frame, size);
    CHECK(deliver(frame, size) == MICROC_BAD_VERSION);
    session = 0;
    size = make_request(frame, MICROC_HELLO, NULL, 0);
    CHECK(deliver(frame, size) == MICROC_BAD_SESSION);
    session = 500;
}

static void test_statistics(void)
{
    begin();
    CHECK(ask(99, NULL, 0) == MICROC_BAD_OPERATION && ask(MICROC_STATS, NULL, 0) == MICROC_OK);
    CHECK(answer_size == 20 && microc_get32(answer) == 1234 && microc_get32(answer + 4) == 3);
    CHECK(microc_get32(answer + 8) == 0 && microc_get32(answer + 12) == 0 && microc_get32(answer + 16) == 1);
}

/* The line gives back all that the board sends, in pieces of 7 bytes. Returns how often it had to. */
static int echo(void)
{
    static uint8_t line[1u << 14];
    int rounds = 0;
    while (memory_sent_size != 0) {
        size_t size = memory_sent_size, i;
        memcpy(line, memory_sent, size);
        memory_sent_size = 0;
        for (i = 0; i < size; i += 7u) {
            CHECK(microc_rpc_receive(&rpc, line + i, size - i < 7u ? size - i : 7u) == 0);
        }
        rounds++;
        CHECK(rounds < 3);
    }
    return rounds;
}

/* A board that hears itself answers once: replies, refusals and repetitions are no requests, of any version or session. */
static void test_loop_back(void)
{
    static const uint8_t bytes[MICROC_RPC_MAX_PAYLOAD] = {0};
    uint8_t frame[64];
    uint16_t size;
    unsigned operation, k;
    begin();
    CHECK(echo() == 1);
    for (operation = 0; operation < 128; operation++) {
        (void)ask(operation, bytes, 8);
        CHECK(echo() == 1);
    }
    size = make_request(frame, 127, NULL, 0);
    CHECK(deliver(frame, size) == MICROC_BAD_OPERATION && rpc.repeats == 1); /* the kept reply goes out again, once */
    CHECK(echo() == 1);
    for (k = 0; k < 3; k++) { /* refusals: another version, session, sequence */
        static const uint8_t place[3] = {0, 2, 4};
        size = make_request(frame, MICROC_STATS, NULL, 0);
        frame[place[k]] = (uint8_t)(frame[place[k]] + 9u);
        microc_frame_seal(frame, size);
        (void)deliver(frame, size);
        CHECK(replies == 1 && echo() == 1);
    }
    CHECK(ask(MICROC_STATS, NULL, 0) == MICROC_OK && rpc.bad_frames == 0);
}

/* Frames that go to the host change nothing, though they are the next request in all else. */
static void test_replies_are_dropped(void)
{
    uint8_t frame[64];
    unsigned operation, version;
    begin();
    for (operation = MICROC_REPLY; operation < 256; operation++) {
        for (version = 0; version < 3; version++) {
            uint32_t heard = rpc.frames;
            uint16_t size = make_request(frame, operation, NULL, 0);
            frame[0] = (uint8_t)version;
            frame[4] = (uint8_t)(sequence + (operation & 1u)); /* the last again, and the next */
            microc_put16(frame + 2, (uint16_t)(session + (operation & 2u)));
            microc_frame_seal(frame, size);
            CHECK(deliver(frame, size) == 1 && replies == 0);
            CHECK(rpc.frames == heard && rpc.refusals == 0 && rpc.repeats == 0);
        }
    }
    CHECK(ask(MICROC_STATS, NULL, 0) == MICROC_OK);
}

/* Requests whose frames are right and whose contents are anything: each is answered once, nothing else is touched. */
static void test_storm(void)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD];
    long i;
    begin();
    for (i = 0; i < 200000; i++) {
        unsigned operation = memory_random() % 11u;
        uint16_t size = (uint16_t)(memory_random() % 4u == 0 ? memory_random() % sizeof payload : 8u);
        uint16_t j;
        for (j = 0; j < size; j++) {
            payload[j] = (uint8_t)(memory_random() % 3u == 0 ? memory_random() & 0xFFu : memory_random() & 3u);
        }
        if (operation == MICROC_RUN && size == 8) {
            microc_put32(payload + 4, memory_random() % 3u);
        }
        (void)ask(operation, payload, size);
    }
    CHECK(fake_gaps_intact() && rpc.bad_frames == 0);
}

/* Bytes without any order: no answer but to frames, which chance does not make. */
static void test_noise(void)
{
    uint8_t noise[97];
    long i;
    begin();
    memory_sent_size = 0;
    for (i = 0; i < 20000; i++) {
        size_t j;
        for (j = 0; j < sizeof noise; j++) {
            noise[j] = (uint8_t)(memory_random() & 0xFFu);
        }
        CHECK(microc_rpc_receive(&rpc, noise, sizeof noise) == 0);
    }
    CHECK(memory_sent_size == 0 && rpc.bad_frames > 1000 && fake_gaps_intact());
    (void)ask(MICROC_STATS, NULL, 0);
    CHECK(replies == 1);
}

int main(void)
{
    test_descriptions();
    test_run();
    test_profile();
    test_bounds();
    test_malformed();
    test_order();
    test_statistics();
    test_loop_back();
    test_replies_are_dropped();
    test_storm();
    test_noise();
    return 0;
}
