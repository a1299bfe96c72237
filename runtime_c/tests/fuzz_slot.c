/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots under a fuzzer (libFuzzer): the numbered invariants of SPEC.md, "Slots".
 *
 * An input is a board (slots of some size, unit and page, with or without signatures) and a list of commands: whole transfers
 * with a fault in them, single requests, resets, cuts of the power, ports that fail, an attacker with the flash. Flash and
 * tensors are blocks of their own, so that the address sanitizer sees a step outside. A second, plain description of what must
 * happen (`must`) computes in 64 bits; after every frame it is compared with what did. Counts are printed at the end.
 */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "microc_port.h"
#include "microc_slot.h"

#define LARGEST 1024u /* bytes of a slot */
#define MEMORY 512u   /* bytes for tensors, at most */
#define STACK 500u
#define IMAGES 6u
#define TENSORS 2u
#define CODE 16u
#define SIGNATURE 8u
#define PIECE 192u
#define COMMANDS 48u /* of an input, at least: chance goes on where its bytes end */
#define NOBODY 2u /* no slot */
#define NO_OPERATION 0u

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct microc_model *const models[] = {&microc_slot_model};
static struct microc_rpc rpc;

/* The input, and a generator for what no byte of it names. */
static const uint8_t *input;
static size_t input_size;
static uint32_t chance_state;

/* The board. */
static enum { TAKES_ALL, SIGNED, ONLY_FORWARD } trust;
static uint32_t slot_size, unit, page, memory_size;
static uint8_t *flash[2];
static uint8_t *memory;
static uint8_t blank[2][LARGEST]; /* erased, and not written since */
static uint32_t least_version;    /* what a firmware that does not go back remembers */
static long cut_in, fail_in;      /* steps of the port until then; negative for never */
static enum { BEFORE, HALFWAY, AFTER, UNSAID } failure;
static jmp_buf power;
static unsigned operation; /* under way; NO_OPERATION where none may touch a slot or run */
static int failed;         /* the port, in this operation */
static int lied;           /* it said that it erased what it did not */

/* Networks whose signatures are good. */
static struct {
    uint8_t bytes[LARGEST];
    uint32_t size;
} images[IMAGES];

/* What must be the case. */
static struct {
    uint32_t room, erased, written;
    uint32_t active; /* a slot, or NOBODY */
    uint8_t record_and_blob[LARGEST];
} must;

static struct {
    unsigned long long frames, cuts, commits, accepted, boots, runs, attacks, failures;
} counts;

static void tell_counts(void)
{
    fprintf(stderr,
            "frames: %llu, power cuts: %llu, commits: %llu, accepted: %llu, boots: %llu, runs: %llu, attacks on the flash: %llu, "
            "failures of the port: %llu\n",
            counts.frames, counts.cuts, counts.commits, counts.accepted, counts.boots, counts.runs, counts.attacks,
            counts.failures);
}

static uint32_t chance(void)
{
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 17;
    chance_state ^= chance_state << 5;
    return chance_state;
}

static uint32_t take(void)
{
    if (input_size == 0) {
        return chance() & 0xFFu;
    }
    input_size--;
    return *input++;
}

/* A number that is likely to be on an edge. */
static uint32_t take_number(void)
{
    const uint32_t whole = images[take() % IMAGES].size - SIGNATURE;
    const uint32_t edges[] = {0,         unit,        must.written,       must.erased,        must.room,   whole,
                              slot_size, memory_size, MICROC_SLOT_RECORD, MICROC_BLOB_HEADER, 0xFFFFFFFFu, 0x80000000u};
    uint32_t kind = take();
    uint32_t value = kind < 240u ? edges[kind % 12u] : chance();
    const uint32_t steps[8] = {1, 0u - 1u, unit, 0u - MICROC_SLOT_RECORD, 0, 0, 0, 0};
    return value + steps[kind / 12u % 8u];
}

/* ---- the line */

static uint8_t sent[1u << 13];
static size_t sent_size;

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
    CHECK(sent_size + size <= sizeof sent);
    memcpy(sent + sent_size, data, size);
    sent_size += size;
    return 0;
}

uint32_t microc_port_ticks(void)
{
    return 7;
}

void microc_port_stack_paint(void)
{
}

uint32_t microc_port_stack_used(void)
{
    return 0;
}

uint8_t *microc_port_region(uint32_t *size)
{
    *size = 0;
    return NULL;
}

/* ---- networks */

static uint64_t mac(const uint8_t *data, uint32_t size)
{
    uint64_t hash = 0x5EC12E7C0FFEEu;
    uint32_t i;
    for (i = 0; i < size; i++) {
        hash = (hash ^ data[i]) * 0x100000001B3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static void seal(uint8_t *blob, uint32_t size)
{
    microc_put32(blob + 12, microc_crc32(blob + 16, size - 16u));
}

/* Versions go up with the index; code is between them in size, so that some fit no slot. */
static void make_image(uint32_t index)
{
    uint8_t *blob = images[index].bytes;
    uint32_t table = MICROC_BLOB_HEADER + CODE + 37u * index;
    uint32_t size = table + 12u * TENSORS;
    uint64_t signature;
    uint32_t i;
    for (i = 0; i < table; i++) {
        blob[i] = (uint8_t)(i * 7u + index);
    }
    memset(blob + table, 0, 12u * TENSORS);
    memcpy(blob, "MCRN", 4);
    microc_put32(blob + 4, MICROC_BLOB_VERSION);
    microc_put32(blob + 8, size);
    microc_put32(blob + 16, MICROC_SLOT_ABI);
    microc_put32(blob + 20, 100);
    microc_put32(blob + 24, STACK - index);
    microc_put32(blob + 28, MICROC_BLOB_HEADER + 4u);
    microc_put32(blob + 32, index % 2u == 0u ? MICROC_BLOB_HEADER + 8u : 0u);
    microc_put32(blob + 36, table);
    microc_put16(blob + 40, TENSORS);
    microc_put16(blob + 42, (uint16_t)(1u + index));
    memset(blob + 44, 0, 20);
    memcpy(blob + 44, MICROC_SLOT_CORE, sizeof MICROC_SLOT_CORE);
    microc_put32(blob + 64, index); /* the version, where a fingerprint begins */
    memset(blob + 80, 0, 48);
    blob[80] = (uint8_t)('a' + (int)index);
    microc_put32(blob + table + 4, 60);
    microc_put32(blob + table + 12, 60);
    microc_put32(blob + table + 16, 40);
    seal(blob, size);
    signature = mac(blob, size);
    memcpy(blob + size, &signature, SIGNATURE);
    images[index].size = size + SIGNATURE;
}

int microc_slot_verify(const uint8_t *blob, uint32_t size, const uint8_t *signature, uint32_t signature_size)
{
    uint64_t right = mac(blob, size);
    if (trust == TAKES_ALL) {
        return 0;
    }
    return signature_size != SIGNATURE || memcmp(signature, &right, SIGNATURE) != 0 ||
           (trust == ONLY_FORWARD && microc_get32(blob + 64) < least_version);
}

/* ---- what must be the case, from the specification alone */

/* Bytes of a slot behind its record. */
static uint32_t expected_room(void)
{
    int right = unit == 1u || unit == 2u || unit == 4u || unit == 8u || unit == 16u || unit == 32u || unit == 64u;
    return right && slot_size >= 192u ? slot_size - slot_size % unit - 64u : 0u;
}

static int genuine(const uint8_t *blob, uint64_t size)
{
    uint32_t k;
    for (k = 0; k < IMAGES; k++) {
        if (size == images[k].size && memcmp(blob, images[k].bytes, images[k].size) == 0) {
            return trust != ONLY_FORWARD || k >= least_version;
        }
    }
    return 0;
}

static uint64_t table_size(const uint8_t *blob)
{
    return ((uint64_t)microc_get16(blob + 40) * sizeof(struct microc_tensor) + 15u) / 16u * 16u;
}

static int acceptable(const uint8_t *blob, uint64_t size)
{
    static const uint8_t core[20] = MICROC_SLOT_CORE;
    uint64_t whole, run, reset, table, needed, k;
    if (size < 128u || memcmp(blob, "MCRN", 4) != 0 || microc_get32(blob + 4) != 1u) {
        return 0;
    }
    whole = microc_get32(blob + 8);
    if (whole < 128u || whole > size || microc_get32(blob + 12) != microc_crc32(blob + 16, (size_t)whole - 16u)) {
        return 0;
    }
    run = microc_get32(blob + 28);
    reset = microc_get32(blob + 32);
    table = microc_get32(blob + 36);
    needed = microc_get32(blob + 20);
    if (microc_get32(blob + 16) != MICROC_SLOT_ABI || memcmp(blob + 44, core, 20) != 0 || blob[127] != 0 ||
        microc_get16(blob + 42) == 0u || run < 128u || run >= whole || (reset != 0u && (reset < 128u || reset >= whole)) ||
        table < 128u || table + 12u * microc_get16(blob + 40) > whole || table_size(blob) + needed > memory_size ||
        microc_get32(blob + 24) > STACK) {
        return 0;
    }
    for (k = 0; k < microc_get16(blob + 40); k++) {
        const uint8_t *entry = blob + table + 12u * k;
        if ((uint64_t)microc_get32(entry) + microc_get32(entry + 4) > needed) {
            return 0;
        }
    }
    return trust == TAKES_ALL || genuine(blob, size);
}

/* Whether a slot has a whole commit record. */
static int has_record(uint32_t slot)
{
    static const uint8_t magic[4] = {1, 'M', 'C', 'S'};
    const uint8_t *record = flash[slot];
    return must.room != 0u && memcmp(record, magic, 4) == 0 && microc_get32(record + 12) == microc_crc32(record, 12) &&
           microc_get32(record + 8) <= must.room;
}

static int counts_at_boot(uint32_t slot)
{
    return has_record(slot) && acceptable(flash[slot] + 64, microc_get32(flash[slot] + 8));
}

/* The slot whose network must run after a reset. */
static uint32_t newest(void)
{
    int first = counts_at_boot(0), second = counts_at_boot(1);
    if (first && second) {
        return microc_get32(flash[1] + 4) - microc_get32(flash[0] + 4) < 0x80000000u ? 1u : 0u;
    }
    return first ? 0u : second ? 1u : NOBODY;
}

static uint32_t spare_slot(void)
{
    return must.active == 0u ? 1u : 0u;
}

/* ---- the port, which ends the program where the runtime does what it must never */

void microc_port_slots(struct microc_slots *slots)
{
    slots->slot[0] = flash[0];
    slots->slot[1] = flash[1];
    slots->size = slot_size;
    slots->unit = unit;
    slots->memory = memory;
    slots->memory_size = memory_size;
    slots->stack_size = STACK;
}

/* A step under way: it may be cut, and leaves anything then. */
static void spend(uint32_t slot, uint32_t at, uint32_t size)
{
    uint32_t i;
    if (cut_in < 0 || cut_in-- != 0) {
        return;
    }
    for (i = at; i < at + size; i++) {
        flash[slot][i] = chance() % 2u == 0u ? (uint8_t)(chance() & 0xFFu) : flash[slot][i];
        blank[slot][i] = 0;
    }
    counts.cuts++;
    longjmp(power, 1);
}

static int fails_now(void)
{
    if (fail_in < 0 || fail_in-- != 0) {
        return 0;
    }
    counts.failures++;
    failed = failure != UNSAID;
    return 1;
}

static void check_bounds(uint32_t slot, uint64_t offset, uint64_t size)
{
    CHECK(must.room != 0u); /* invariant 4 */
    CHECK(slot < 2u && slot != must.active); /* invariant 1 */
    CHECK(offset + size <= (uint64_t)must.room + 64u);
}

int microc_port_slot_erase(uint32_t slot, uint32_t size)
{
    uint32_t at, end = (size + page - 1u) / page * page;
    int fails = fails_now();
    CHECK(operation == MICROC_ERASE || (operation == MICROC_COMMIT && size == 64u));
    check_bounds(slot, 0, size);
    lied = fails && failure == UNSAID;
    end = end < slot_size ? end : slot_size;
    for (at = 0; at < end; at += page) {
        uint32_t step = end - at < page ? end - at : page;
        if (fails && (failure == BEFORE || failure == UNSAID || (failure == HALFWAY && at >= end / 2u))) {
            break;
        }
        spend(slot, at, step);
        memset(flash[slot] + at, 0xFF, step);
        memset(blank[slot] + at, 1, step);
    }
    if (fails && failure == UNSAID) {
        memset(blank[slot], 1, end); /* it says so */
        return 0;
    }
    return fails ? -1 : 0;
}

int microc_port_slot_write(uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size)
{
    uint32_t at, i;
    int fails = fails_now();
    CHECK((operation == MICROC_LOAD && offset >= 64u) || (operation == MICROC_COMMIT && offset == 0u && size <= 64u));
    check_bounds(slot, offset, size);
    CHECK(offset % unit == 0u && size % unit == 0u);
    if (operation == MICROC_COMMIT) { /* invariant 5 */
        CHECK(acceptable(flash[slot] + 64, microc_get32(data + 8)));
    }
    for (at = offset; at < offset + size; at += unit) {
        for (i = at; i < at + unit; i++) {
            CHECK(blank[slot][i]); /* invariant 2 */
            blank[slot][i] = 0;
        }
        if (fails && (failure == BEFORE || failure == UNSAID || (failure == HALFWAY && at >= offset + size / 2u))) {
            continue;
        }
        spend(slot, at, unit);
        for (i = at; i < at + unit; i++) {
            flash[slot][i] = (uint8_t)(flash[slot][i] & data[i - offset]);
        }
    }
    return fails && failure != UNSAID ? -1 : 0;
}

void microc_port_code_changed(const uint8_t *code, uint32_t size)
{
    uint32_t slot = code == flash[1] + 64 ? 1u : 0u;
    CHECK(code == flash[slot] + 64 && size >= 128u && size <= must.room);
}

/* The code of a network: it may write its whole memory, and is run from the slot that must run alone. */
static int enter(uint32_t slot, void *const *places, uint32_t number)
{
    const uint8_t *blob = flash[slot] + 64;
    const uint64_t table = table_size(blob);
    CHECK(slot == must.active); /* invariant 9 */
    CHECK(operation == MICROC_RUN || operation == MICROC_PROFILE || operation == MICROC_RESET);
    CHECK(number < microc_get16(blob + 42));
    CHECK(places[0] == memory + table && table + microc_get32(blob + 20) <= memory_size);
    memset(places[0], (int)(chance() & 0xFFu), microc_get32(blob + 20));
    counts.runs++;
    return chance() % 16u == 0u ? -1 : 0;
}

static int enter_first(void *const *places, uint32_t number)
{
    return enter(0, places, number);
}

static int enter_second(void *const *places, uint32_t number)
{
    return enter(1, places, number);
}

microc_entry microc_port_entry(const uint8_t *address)
{
    uint32_t slot = address >= flash[1] && address < flash[1] + slot_size ? 1u : 0u;
    CHECK(address >= flash[slot] + 64 + 128 && address < flash[slot] + 64 + must.room);
    return slot == 1u ? enter_second : enter_first;
}

/* ---- comparison */

/* What runs is what was accepted, byte for byte, and its tensors lie in the memory: invariants 7 and 10. */
static void check_network(void)
{
    const uint8_t *blob;
    uint32_t k;
    CHECK(rpc.model_count == (must.active != NOBODY));
    if (must.active == NOBODY) {
        return;
    }
    blob = flash[must.active] + 64;
    CHECK(memcmp(flash[must.active], must.record_and_blob, slot_size) == 0);
    CHECK(microc_slot_model.name == (const char *)blob + 80);
    CHECK(microc_slot_model.tensor_count == microc_get16(blob + 40) && microc_slot_model.kernel_count == microc_get16(blob + 42));
    CHECK((const uint8_t *)microc_slot_model.tensors == memory);
    for (k = 0; k < microc_slot_model.tensor_count; k++) {
        const uint8_t *entry = blob + microc_get32(blob + 36) + 12u * k;
        CHECK(microc_slot_model.tensors[k].data == memory + table_size(blob) + microc_get32(entry));
        CHECK(microc_slot_model.tensors[k].size == microc_get32(entry + 4));
    }
}

static void remember_network(uint32_t slot)
{
    must.active = slot;
    if (slot != NOBODY) {
        uint32_t version = microc_get32(flash[slot] + 64 + 64);
        memcpy(must.record_and_blob, flash[slot], slot_size);
        least_version = version > least_version ? version : least_version;
    }
}

static void deliver(unsigned what, const uint8_t *payload, uint32_t size);

/* After a reset. `may_change`: the flash or the firmware is another one, or a commit was under way. */
static void boot(int may_change)
{
    uint32_t expected, before = must.active;
    counts.boots++;
    operation = NO_OPERATION;
    cut_in = -1;
    fail_in = -1;
    must.room = expected_room();
    must.erased = 0;
    must.written = 0;
    must.active = NOBODY;
    expected = newest();
    CHECK(may_change || expected == before); /* invariant 6 */
    memset(&microc_slot_model, 0, sizeof microc_slot_model);
    microc_rpc_init(&rpc, models, microc_slot_open());
    remember_network(expected);
    check_network();
    deliver(MICROC_HELLO, NULL, 0);
}

/* The status that slots must give, in the state before the request: invariant 3. */
static void check_outcome(uint32_t value, uint32_t size, int status)
{
    uint32_t slot = spare_slot();
    if (operation == MICROC_ERASE) {
        int fits = must.room != 0u && value <= must.room;
        CHECK(status == (!fits ? MICROC_NO_ROOM : failed ? MICROC_SLOT_FAILED : MICROC_OK));
        must.written = 0;
        must.erased = status == MICROC_OK ? (value + unit - 1u) / unit * unit : 0u;
    } else if (operation == MICROC_LOAD) {
        int fits = must.erased != 0u && value == must.written && (uint64_t)value + size <= must.erased && size % unit == 0u;
        CHECK(status == (!fits ? MICROC_BAD_RANGE : failed ? MICROC_SLOT_FAILED : MICROC_OK));
        must.written += status == MICROC_OK ? size : 0u;
        if (status == MICROC_SLOT_FAILED) {
            must.erased = 0;
            must.written = 0;
        }
    } else if (operation == MICROC_COMMIT) {
        counts.commits++;
        if (must.erased == 0u || value > must.written) {
            CHECK(status == MICROC_BAD_RANGE);
            return;
        }
        must.erased = 0;
        must.written = 0;
        if (status == MICROC_OK) {
            uint32_t other = 1u - slot;
            CHECK(!failed && has_record(slot) && microc_get32(flash[slot] + 8) == value);
            /* invariant 8 */
            CHECK(microc_get32(flash[slot] + 4) == (has_record(other) ? microc_get32(flash[other] + 4) + 1u : 1u));
            CHECK(acceptable(flash[slot] + 64, value));
            remember_network(slot);
            counts.accepted++;
        } else {
            CHECK(status == MICROC_SLOT_FAILED || !acceptable(flash[slot] + 64, value));
            CHECK(lied || !has_record(slot));
        }
    } else if (operation == MICROC_REGION || (operation >= MICROC_FETCH && operation <= MICROC_CHECK) ||
               operation > MICROC_COMMIT) {
        CHECK(status == MICROC_BAD_OPERATION);
    }
}

/* The status of the last good answer; all are whole frames. */
static int check_answers(unsigned most)
{
    static uint8_t reply[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
    struct microc_decoder decoder;
    unsigned replies = 0;
    int status = MICROC_OK;
    size_t i;
    microc_decoder_init(&decoder, reply, sizeof reply);
    for (i = 0; i < sent_size; i++) {
        enum microc_decoded decoded = microc_decoder_take(&decoder, sent[i]);
        CHECK(decoded != MICROC_FRAME_BAD);
        if (decoded == MICROC_FRAME_GOOD) {
            replies++;
            status = reply[5] > 127 ? reply[5] - 256 : reply[5];
            CHECK(reply[0] == MICROC_RPC_VERSION && (reply[1] & MICROC_REPLY) != 0);
            CHECK(microc_get16(reply + 6) + MICROC_FRAME_OVERHEAD == decoder.size);
            CHECK(status == MICROC_OK || microc_get16(reply + 6) == 0u);
        }
    }
    CHECK(replies <= most);
    sent_size = 0;
    return status;
}

enum twist { PLAIN, OTHER_VERSION, OTHER_SESSION, REPEATED, OTHER_SEQUENCE, WRONG_LENGTH, TWISTS };

/* Bytes from the line into the runtime, under power that may be cut. */
static int receive(const uint8_t *line, size_t size, unsigned most)
{
    static volatile int status;
    counts.frames++;
    failed = 0;
    sent_size = 0;
    if (setjmp(power) != 0) {
        boot(operation == MICROC_COMMIT);
        return 1;
    }
    CHECK(microc_rpc_receive(&rpc, line, size) == 0);
    status = check_answers(most);
    return status;
}

static void deliver_twisted(unsigned what, enum twist twist, const uint8_t *payload, uint32_t size)
{
    static uint8_t frame[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
    static uint8_t line[1024];
    uint16_t whole = (uint16_t)(size + MICROC_FRAME_OVERHEAD);
    uint32_t value = size >= 4u ? microc_get32(payload) : 0u;
    uint32_t session = rpc.session;
    size_t line_size;
    int status, lengths;
    if (what == MICROC_HELLO && (twist == PLAIN || twist == OTHER_SESSION)) {
        session = session % 0xFFFFu + 1u;
    } else if (twist == OTHER_SESSION) {
        session++;
    }
    frame[0] = (uint8_t)(MICROC_RPC_VERSION + (twist == OTHER_VERSION));
    frame[1] = (uint8_t)what;
    microc_put16(frame + 2, (uint16_t)session);
    frame[4] = (uint8_t)((unsigned)rpc.sequence + (twist == OTHER_SEQUENCE ? 2u : twist == REPEATED ? 0u : 1u));
    frame[5] = 0;
    microc_put16(frame + 6, (uint16_t)(size + (twist == WRONG_LENGTH)));
    if (size != 0u) {
        memcpy(frame + MICROC_FRAME_HEADER, payload, size);
    }
    microc_frame_seal(frame, whole);
    sent_size = 0;
    CHECK(microc_frame_send(frame, whole) == 0);
    line_size = sent_size;
    memcpy(line, sent, line_size);
    lengths = (what != MICROC_ERASE && what != MICROC_COMMIT) || size == 4u;
    lengths = what == MICROC_LOAD ? size >= 4u : lengths;
    operation = twist == PLAIN && lengths ? what : NO_OPERATION; /* nothing else may touch a slot, or run */
    status = receive(line, line_size, 1);
    if (status != 1 && operation != NO_OPERATION) {
        check_outcome(value, size - 4u, status);
    }
    check_network();
    operation = NO_OPERATION;
}

static void deliver(unsigned what, const uint8_t *payload, uint32_t size)
{
    deliver_twisted(what, PLAIN, payload, size);
}

static void deliver_number(unsigned what, uint32_t value)
{
    uint8_t payload[4];
    microc_put32(payload, value);
    deliver(what, payload, 4);
}

/* ---- commands */

static void load(uint32_t offset, const uint8_t *bytes, uint32_t size)
{
    uint8_t payload[4u + PIECE];
    microc_put32(payload, offset);
    memcpy(payload + 4, bytes, size);
    deliver(MICROC_LOAD, payload, 4u + size);
}

/* Bytes of a piece in whole units; 0 where a unit is none, or larger. */
static uint32_t piece_size(void)
{
    return unit == 0u ? 0u : PIECE / unit * unit;
}

/* A transfer as a host does it, but for a fault: damage, a forged header, another signature, too few bytes, a wrong size, or
 * requests where none belong. */
static void send_image(uint32_t index, uint32_t fault)
{
    static uint8_t blob[LARGEST + PIECE];
    uint32_t size = images[index].size, most = piece_size(), end = size, at;
    memset(blob, 0xFF, sizeof blob);
    memcpy(blob, images[index].bytes, size);
    if (fault == 1u) {
        blob[chance() % size] ^= (uint8_t)(1u << chance() % 8u);
    } else if (fault == 2u) {
        microc_put32(blob + 16u + 4u * (chance() % 10u), take_number());
        seal(blob, size - SIGNATURE);
    } else if (fault == 3u) {
        uint32_t other = (index + 1u) % IMAGES;
        memcpy(blob + size - SIGNATURE, images[other].bytes + images[other].size - SIGNATURE, SIGNATURE);
    } else if (fault == 4u) {
        end = chance() % size;
    } else if (fault == 5u) { /* another size in the header, sealed as far */
        microc_put32(blob + 8, take_number());
        seal(blob, size - SIGNATURE);
    } else if (fault == 6u) {
        uint32_t entry = size - SIGNATURE - 12u * TENSORS + 4u * (chance() % 6u);
        microc_put32(blob + entry, take_number());
        seal(blob, size - SIGNATURE);
    }
    deliver_number(MICROC_ERASE, fault == 7u ? take_number() : size);
    for (at = 0; most != 0u && at < end; at += most) {
        load(at, blob + at, end - at < most ? (end - at + unit - 1u) / unit * unit : most);
    }
    if (fault != 8u) {
        deliver_number(MICROC_COMMIT, fault == 9u ? take_number() : size);
    }
    if (fault == 10u && most != 0u) { /* more, after the end */
        load(at, blob, most);
        load((size + unit - 1u) / unit * unit, blob, most);
        load(0, blob, 0);
        deliver_number(MICROC_COMMIT, size);
    }
}

/* One more network while the power goes at every step that there is. */
static void cut_everywhere(uint32_t index)
{
    static uint8_t before[2][LARGEST];
    long moment, begin;
    uint32_t k;
    for (k = 0; k < 2u; k++) {
        memcpy(before[k], flash[k], slot_size);
    }
    for (moment = begin = (long)(chance() % 8u);; moment++) {
        unsigned long long cuts = counts.cuts;
        for (k = 0; k < 2u; k++) {
            memcpy(flash[k], before[k], slot_size);
        }
        boot(1);
        cut_in = moment;
        send_image(index, 0);
        cut_in = -1;
        boot(0);
        if (counts.cuts == cuts || moment - begin > 300) {
            return;
        }
    }
}

/* Whoever has the flash writes what they like while the board is off: damage, records of any number and size, old networks. */
static void attack_flash(void)
{
    uint32_t slot = chance() % 2u, other = 1u - slot, kind = take() % 5u, index = take() % IMAGES, k;
    counts.attacks++;
    if (slot_size == 0u) {
        return;
    }
    if (kind == 0u) {
        for (k = take() % 4u + 1u; k != 0u; k--) {
            flash[slot][chance() % slot_size] ^= (uint8_t)(1u << chance() % 8u);
        }
    } else if (kind == 1u) {
        memcpy(flash[slot], flash[other], slot_size);
    } else if (kind == 2u) {
        for (k = 0; k < slot_size; k++) {
            flash[slot][k] = (uint8_t)(chance() & 0xFFu);
        }
    } else {
        if (kind == 3u && images[index].size + 64u <= slot_size) {
            memcpy(flash[slot] + 64, images[index].bytes, images[index].size);
        }
        if (slot_size >= 16u) {
            microc_put32(flash[slot], 0x53434D01u);
            microc_put32(flash[slot] + 4, take_number());
            microc_put32(flash[slot] + 8, kind == 3u ? images[index].size : take_number());
            microc_put32(flash[slot] + 12, microc_crc32(flash[slot], 12));
        }
    }
    boot(1);
}

/* A request for what runs, or of any operation, with a payload of the right kind now and then. */
static void ask_anything(void)
{
    static const uint8_t sizes[] = {0, 0, 2, 6, 8, 8, 4, 0, 0, 0, 4, 6, 24, 8, 0, 4, 4};
    uint8_t payload[40];
    unsigned what = take() % 20u + 1u;
    uint32_t size = what <= sizeof sizes ? sizes[what - 1u] : 4u, k;
    if (take() % 8u == 0u || what == MICROC_WRITE || what == MICROC_LOAD) {
        size = size + take() % 12u;
    }
    for (k = 0; k < size; k++) {
        payload[k] = (uint8_t)(take() % 4u == 0u ? chance() & 0xFFu : chance() % 3u);
    }
    if ((what == MICROC_RUN || what == MICROC_PROFILE) && size >= 4u && take() % 4u != 0u) {
        microc_put32(payload, (take() % (IMAGES + 1u)) << 16); /* from the first kernel on */
    }
    if (what == MICROC_RUN && size >= 8u) {
        microc_put32(payload + 4, payload[4] & 3u);
    }
    deliver_twisted(what, (enum twist)(take() % 4u == 0u ? take() % TWISTS : PLAIN), payload, size);
}

/* All kernels, as far as a network has them. */
static void run_network(void)
{
    const uint8_t whole[8] = {0, 0, (uint8_t)(take() % IMAGES), 0, (uint8_t)(take() % 3u), 0, 0, 0};
    deliver(MICROC_RUN, whole, 8);
    deliver(MICROC_PROFILE, whole, 4);
    deliver(MICROC_RESET, NULL, 0);
}

static void send_noise(void)
{
    uint8_t line[32];
    uint32_t size = take() % sizeof line, k;
    for (k = 0; k < size; k++) {
        line[k] = (uint8_t)take();
    }
    operation = NO_OPERATION;
    (void)receive(line, size, 2);
    check_network();
}

static void obey(uint32_t command)
{
    uint8_t bytes[PIECE];
    uint32_t k;
    switch (command % 16u) {
    case 0:
    case 1:
    case 2:
        send_image(take() % IMAGES, take() % 3u == 0u ? take() % 11u : 0u);
        break;
    case 3:
        deliver_number(MICROC_ERASE, take_number());
        break;
    case 4:
    case 5:
        for (k = 0; k < PIECE; k++) {
            bytes[k] = (uint8_t)(chance() & 0xFFu);
        }
        load(take_number(), bytes, take() % 4u == 0u ? chance() % PIECE : piece_size());
        break;
    case 6:
        deliver_number(MICROC_COMMIT, take_number());
        break;
    case 7:
    case 8:
        ask_anything();
        break;
    case 9:
        run_network();
        break;
    case 10:
        cut_in = (long)(take() % 64u);
        break;
    case 11:
        fail_in = (long)(take() % 8u);
        failure = take() % 4u;
        break;
    case 12:
        boot(0);
        break;
    case 13:
        if (take() % 4u == 0u) {
            trust = take() % 3u; /* another firmware */
            boot(1);
        } else {
            attack_flash();
        }
        break;
    case 14:
        if (take() % 8u == 0u) {
            cut_everywhere(take() % IMAGES);
        } else {
            deliver(MICROC_HELLO, NULL, 0); /* another host */
        }
        break;
    default:
        send_noise();
        break;
    }
}

/* Most boards are ordinary ones, on which networks fit. */
static void make_board(void)
{
    static const uint32_t sizes[] = {0, 1, 63, 64, 191, 192, 193, 255, 256, 333, 500};
    static const uint32_t units[] = {4, 1, 2, 8, 16, 32, 64, 4};
    static const uint32_t wrong_units[] = {0, 3, 96, 128, 0xFFFFFFFFu};
    static const uint32_t pages[] = {64, 1, 16, 256, 1024};
    uint32_t kind = take(), k;
    trust = kind % 3u;
    unit = units[take() % 8u];
    page = pages[take() % 5u];
    slot_size = kind % 4u == 0u ? sizes[take() % 11u] : 512u + take() * 2u;
    memory_size = kind % 32u == 5u ? take() : MEMORY;
    unit = kind % 32u == 6u ? wrong_units[take() % 5u] : unit;
    least_version = 0;
    lied = 0;
    for (k = 0; k < 2u; k++) {
        flash[k] = malloc(slot_size);
        memset(blank[k], 0, sizeof blank[k]);
        if (slot_size != 0u) {
            memset(flash[k], kind % 5u == 0u ? 0 : 0xFF, slot_size);
        }
    }
    memory = malloc(memory_size);
    boot(1);
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    uint32_t k;
    (void)count;
    (void)arguments;
    for (k = 0; k < IMAGES; k++) {
        make_image(k);
    }
    return atexit(tell_counts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t k;
    input = data;
    input_size = size;
    chance_state = 2463534242u ^ microc_crc32(data, size);
    chance_state += chance_state == 0u;
    make_board();
    for (k = 0; k < COMMANDS || input_size != 0; k++) {
        obey(take());
    }
    boot(0);
    free(flash[0]);
    free(flash[1]);
    free(memory);
    return 0;
}
