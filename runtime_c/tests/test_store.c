/* SPDX-License-Identifier: Apache-2.0 */
/* Stored weights: saves come back, damage is told, and a cut of the power at any moment leaves a whole save. */
#include <setjmp.h>
#include <string.h>

#include "check.h"
#include "memory_port.h"
#include "microc_store.h"

#define BANK 256u
#define IDENTITY 0x1234u

static uint8_t banks[2][BANK];
static uint8_t first[37], second[16];
static const struct microc_piece pieces[] = {{first, sizeof first}, {second, sizeof second}};
static enum { WORKS, FAILS, FORGETS } port;

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
    CHECK(bank < 2u && offset <= BANK && size <= BANK - offset);
    memcpy(data, banks[bank] + offset, size);
    return 0;
}

int microc_port_bank_write(uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size)
{
    uint32_t at;
    CHECK(bank < 2u && offset <= BANK && size <= BANK - offset);
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
    if (microc_store_restore(IDENTITY, pieces, 2) != MICROC_STORE_OK) {
        return 0;
    }
    for (i = 0; i < sizeof first; i++) {
        CHECK(first[i] == first[0]);
    }
    CHECK(second[0] == first[0] + 1u && second[sizeof second - 1u] == second[0]);
    return first[0];
}

static int save(uint8_t number)
{
    fill(number);
    return microc_store_save(IDENTITY, pieces, 2);
}

int main(void)
{
    uint8_t number;
    long cut;
    volatile long ended;
    memset(banks, 0xFF, sizeof banks);
    CHECK(microc_store_size(pieces, 2) == MICROC_STORE_RECORD + 48u + 16u);
    CHECK(restored() == 0);
    for (number = 1; number < 6; number++) {
        CHECK(save(number) == MICROC_STORE_OK && restored() == number);
    }
    /* Another network and tensors of other sizes are not taken. */
    CHECK(microc_store_restore(IDENTITY + 1u, pieces, 2) == MICROC_STORE_EMPTY);
    CHECK(microc_store_restore(IDENTITY, pieces, 1) == MICROC_STORE_EMPTY);
    /* A damaged byte of the newest save: the one before comes back. */
    banks[0][MICROC_STORE_RECORD + 3u] ^= 1u;
    CHECK(restored() == 4);
    banks[1][5] ^= 1u; /* of its record */
    CHECK(restored() == 0);
    /* A port that fails, or forgets what it is told to write. */
    CHECK(save(7) == MICROC_STORE_OK && save(8) == MICROC_STORE_OK);
    port = FAILS;
    CHECK(save(9) == MICROC_STORE_FAILED && restored() == 8);
    port = FORGETS;
    CHECK(save(9) == MICROC_STORE_FAILED && restored() == 8);
    port = WORKS;
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
    return 0;
}
