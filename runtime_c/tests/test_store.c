/* SPDX-License-Identifier: Apache-2.0 */
/* Stored weights: saves come back, damage is told, a cut of the power at any moment leaves a whole save, and what a host may ask. */
#include <setjmp.h>
#include <string.h>

#include "ask.h"
#include "microc_store.h"

#define BANK 112u
#define IDENTITY 0x1234u

static uint8_t banks[4][BANK];
static uint8_t first[37], second[16];
static const struct microc_piece pieces[] = {{first, sizeof first}, {second, sizeof second}};
static const struct microc_store store = {pieces, 2, IDENTITY, 0};
static enum { WORKS, FAILS, FORGETS } port;
static uint32_t unreadable; /* a bit for each bank */

/* The power goes when as many units were written or erased; what is under way then holds anything. */
static long left = -1;
static jmp_buf power;

static void set(uint8_t *bytes, const uint8_t *data)
{
    uint32_t i;
    if (left >= 0 && left-- == 0) {
        for (i = 0; i < MICROC_STORE_UNIT; i++) {
            bytes[i] = memory_random() % 2u == 0u ? (uint8_t)(memory_random() & 0xFFu) : bytes[i];
        }
        longjmp(power, 1);
    }
    if (data == NULL) {
        memset(bytes, 0xFF, MICROC_STORE_UNIT);
    } else if (port != FORGETS) {
        for (i = 0; i < MICROC_STORE_UNIT; i++) {
            CHECK(bytes[i] == 0xFFu); /* erased before */
            bytes[i] = data[i];
        }
    }
}

int microc_port_bank_read(uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size)
{
    CHECK(bank < 4u && offset <= BANK && size <= BANK - offset);
    memcpy(data, banks[bank] + offset, size);
    return (int)(unreadable >> bank & 1u);
}

int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size)
{
    uint32_t at;
    CHECK(bank < 4u && offset <= BANK && size <= BANK - offset);
    CHECK(offset % MICROC_STORE_UNIT == 0u && size % MICROC_STORE_UNIT == 0u);
    for (at = 0; at < size; at += MICROC_STORE_UNIT) {
        set(banks[bank] + offset + at, data == NULL ? NULL : data + at);
    }
    return port == FAILS;
}

static void fill(uint8_t number)
{
    memset(first, number, sizeof first);
    memset(second, number + 1, sizeof second);
}

/* The number of the save that comes back; 0 if none does. */
static uint8_t restored(void)
{
    uint32_t i;
    fill(0);
    if (microc_store_restore(&store) != MICROC_STORE_OK) {
        return 0;
    }
    for (i = 0; i < sizeof first; i++) {
        CHECK(first[i] == first[0]);
    }
    CHECK(second[0] == first[0] + 1u && second[sizeof second - 1u] == second[0]);
    return first[0];
}

static enum microc_bank_state state_of(const struct microc_store *owner, uint32_t bank)
{
    struct microc_bank found;
    microc_store_inspect(owner, bank, &found);
    return found.state;
}

static int save(uint8_t number)
{
    fill(number);
    return microc_store_save(&store);
}

/* The power is cut after any number of units of a clearing: the newest save is there, or none. */
static void test_clearing(void)
{
    volatile long cut, ended = 0;
    uint8_t number;
    for (cut = 0; ended == 0; cut++) {
        left = -1;
        CHECK(save(20) == MICROC_STORE_OK && save(21) == MICROC_STORE_OK);
        left = cut;
        if (setjmp(power) == 0) {
            CHECK(microc_store_clear(&store) == MICROC_STORE_OK);
            ended = 1;
        }
        left = -1;
        number = restored();
        CHECK(number == 0 || (number == 21 && ended == 0));
    }
    CHECK(state_of(&store, 0) == MICROC_BANK_EMPTY && state_of(&store, 1) == MICROC_BANK_EMPTY);
}

static void forget(void)
{
    memset(first, 0xEE, sizeof first);
}

/* Asks for a save of tensors of this check, to the network of this identity and size. */
static int ask_to_save(uint32_t identity, uint32_t size, uint32_t check)
{
    uint8_t request[MICROC_SAVE_REQUEST];
    microc_put32(request, identity);
    microc_put32(request + 4, size);
    microc_put32(request + 8, check);
    return ask(MICROC_SAVE, request, sizeof request);
}

/* What a host may ask: nothing is kept unless identity, size and check are those of the tensors. */
static void test_requests(void)
{
    static struct microc_model model = {.name = "net", .kernel_count = 1, .reset = forget, .store = &store};
    static const struct microc_model *const models[] = {&model};
    const uint32_t size = MICROC_STORE_RECORD + 64u;
    uint8_t request[MICROC_BANK_READ_REQUEST] = {0};
    microc_rpc_init(&rpc, models, 1);
    CHECK(ask(MICROC_HELLO, NULL, 0) == MICROC_OK);
    CHECK(ask(MICROC_RESTORE, NULL, 0) == MICROC_BAD_IMAGE && first[0] != 0xEE);
    fill(30);
    CHECK(ask_to_save(IDENTITY + 1u, size, microc_store_check(&store)) == MICROC_BAD_TARGET);
    CHECK(ask_to_save(IDENTITY, size - 16u, microc_store_check(&store)) == MICROC_BAD_TARGET);
    CHECK(ask_to_save(IDENTITY, size, microc_store_check(&store) + 1u) == MICROC_BAD_IMAGE);
    CHECK(state_of(&store, 0) == MICROC_BANK_EMPTY);
    CHECK(ask_to_save(IDENTITY, size, microc_store_check(&store)) == MICROC_OK);
    CHECK(ask(MICROC_BANK, request, MICROC_BANK_REQUEST) == MICROC_OK);
    CHECK(answer[0] == MICROC_BANK_WHOLE && answer[1] == 1u && microc_get32(answer + 4) == 1u);
    CHECK(microc_get32(answer + 8) == IDENTITY && microc_get32(answer + 12) == size);
    CHECK(microc_get32(answer + 16) == microc_store_check(&store));
    microc_put32(request + 1, MICROC_STORE_RECORD);
    microc_put16(request + 5, 32);
    CHECK(ask(MICROC_BANK_READ, request, sizeof request) == MICROC_OK && memcmp(answer, first, 32) == 0);
    microc_put32(request + 1, size - 31u);
    CHECK(ask(MICROC_BANK_READ, request, sizeof request) == MICROC_BAD_RANGE);
    microc_put32(request + 1, 0xFFFFFFFFu);
    CHECK(ask(MICROC_BANK_READ, request, sizeof request) == MICROC_BAD_RANGE);
    request[0] = 2;
    microc_put32(request + 1, 0);
    CHECK(ask(MICROC_BANK_READ, request, sizeof request) == MICROC_BAD_RANGE);
    CHECK(ask(MICROC_BANK, request, MICROC_BANK_REQUEST) == MICROC_BAD_RANGE);
    forget();
    CHECK(ask(MICROC_RESTORE, NULL, 0) == MICROC_OK && first[0] == 30);
    port = FAILS;
    CHECK(ask_to_save(IDENTITY, size, microc_store_check(&store)) == MICROC_SLOT_FAILED);
    CHECK(ask(MICROC_CLEAR, NULL, 0) == MICROC_SLOT_FAILED);
    port = WORKS;
    unreadable = 3;
    request[0] = 1;
    CHECK(ask(MICROC_BANK, request, MICROC_BANK_REQUEST) == MICROC_OK);
    CHECK(answer[0] == MICROC_BANK_UNREADABLE && answer[1] == 0u);
    fill(31);
    CHECK(ask(MICROC_RESTORE, NULL, 0) == MICROC_SLOT_FAILED && first[0] == 0xEE);
    fill(31);
    model.reset = NULL; /* of firmware that has none */
    CHECK(ask(MICROC_RESTORE, NULL, 0) == MICROC_SLOT_FAILED && first[0] == 31);
    unreadable = 0;
    CHECK(ask(MICROC_CLEAR, NULL, 0) == MICROC_OK && ask(MICROC_RESTORE, NULL, 0) == MICROC_BAD_IMAGE);
    model.store = NULL; /* another network of this firmware, which does not learn */
    CHECK(ask(MICROC_CLEAR, NULL, 0) == MICROC_BAD_OPERATION && ask(MICROC_RESTORE, NULL, 0) == MICROC_BAD_OPERATION);
    CHECK(ask_to_save(IDENTITY, size, 0) == MICROC_BAD_OPERATION);
}

int main(void)
{
    static const struct microc_store other = {pieces, 2, IDENTITY + 1u, 2}, shorter = {pieces, 1, IDENTITY, 0};
    static const struct microc_store stranger = {pieces, 2, IDENTITY + 1u, 0};
    uint8_t number;
    long cut;
    volatile long ended;
    memset(banks, 0xFF, sizeof banks);
    CHECK(microc_store_size(&store) == MICROC_STORE_RECORD + 48u + 16u);
    CHECK(restored() == 0);
    for (number = 1; number < 6; number++) {
        CHECK(save(number) == MICROC_STORE_OK && restored() == number);
    }
    /* Another network and tensors of other sizes are not taken; the tensors stay as they are. */
    CHECK(microc_store_restore(&stranger) == MICROC_STORE_EMPTY && microc_store_restore(&shorter) == MICROC_STORE_EMPTY);
    CHECK(state_of(&stranger, 0) == MICROC_BANK_FOREIGN && first[0] == 5);
    /* A damaged byte of the newest save: the one before comes back. */
    banks[0][MICROC_STORE_RECORD + 3u] ^= 1u;
    CHECK(restored() == 4);
    CHECK(state_of(&store, 0) == MICROC_BANK_DAMAGED && state_of(&store, 1) == MICROC_BANK_WHOLE);
    banks[1][5] ^= 1u; /* of its record */
    CHECK(restored() == 0 && state_of(&store, 1) == MICROC_BANK_DAMAGED);
    /* A port that fails, or forgets what it is told to write. */
    CHECK(save(7) == MICROC_STORE_OK && save(8) == MICROC_STORE_OK);
    port = FAILS;
    CHECK(save(9) == MICROC_STORE_FAILED && restored() == 8);
    port = FORGETS;
    CHECK(save(9) == MICROC_STORE_FAILED && restored() == 8);
    port = WORKS;
    /* A bank that cannot be read may contain the newest save: nothing is erased, and no older save comes back. */
    for (unreadable = 1; unreadable < 4u; unreadable++) {
        CHECK(save(9) == MICROC_STORE_FAILED && microc_store_restore(&store) == MICROC_STORE_FAILED && first[0] == 9);
        CHECK(state_of(&store, unreadable == 2u) == MICROC_BANK_UNREADABLE && microc_store_newest(&store) == 3u);
    }
    unreadable = 0;
    CHECK(restored() == 8);
    /* A save does not take the bank of the only whole one, though a damaged one is newer. */
    CHECK(save(8) == MICROC_STORE_OK);
    banks[microc_store_newest(&store)][MICROC_STORE_RECORD] ^= 1u;
    number = restored();
    port = FAILS;
    CHECK(number == 8 && save(9) == MICROC_STORE_FAILED && restored() == 8);
    port = WORKS;
    /* Another network of the firmware has banks of its own. */
    CHECK(microc_store_save(&other) == MICROC_STORE_OK && restored() == 8);
    /* The power is cut after any number of units: what was there before is there, or the new save. */
    for (cut = 0, ended = 0; ended == 0; cut++) {
        left = -1;
        CHECK(save(10) == MICROC_STORE_OK && save(11) == MICROC_STORE_OK);
        left = cut;
        if (setjmp(power) == 0) {
            CHECK(save(12) == MICROC_STORE_OK);
            ended = 1;
        }
        left = -1;
        number = restored();
        CHECK(number == 12 || (number == 11 && ended == 0));
        CHECK(save(13) == MICROC_STORE_OK && restored() == 13);
    }
    CHECK(cut > 8);
    test_clearing();
    test_requests();
    return 0;
}
