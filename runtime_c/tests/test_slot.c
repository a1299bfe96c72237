/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, driven in memory: what is refused, and that a cut of the power at any moment leaves a whole network. */
#include <setjmp.h>
#include <string.h>

#include "ask.h"
#include "microc_slot.h"

#define SLOT 256u
#define PAGE 64u
#define IMAGE 16u
#define TENSORS 2u
#define BLOB (MICROC_BLOB_HEADER + IMAGE + 12u * TENSORS)
#define SIGNATURE 4u
#define KEY 0x5Au

static const struct microc_model *const models[] = {&microc_slot_model};
static uint64_t memory[32];
static uint32_t unit = 4;
static uint32_t slot_size = SLOT;
static uint32_t page = PAGE; /* what is erased at once */
static int must_sign;
static enum { WORKS, FAILS, FAILS_WHEN_DONE, FORGETS } port; /* how erasing and writing end */

/* The power goes when as many units were written or pages erased; what is under way then holds anything. */
static long left = -1;
static jmp_buf power;

static uint8_t *flash(uint32_t slot)
{
    return memory_region + 8 + slot * SLOT;
}

static void use(uint8_t *bytes, uint32_t size)
{
    uint32_t i;
    if (left < 0) {
        return;
    }
    if (left-- == 0) {
        for (i = 0; i < size; i++) {
            bytes[i] = memory_random() % 2u == 0u ? (uint8_t)(memory_random() & 0xFFu) : bytes[i];
        }
        longjmp(power, 1);
    }
}

void microc_port_slots(struct microc_slots *slots)
{
    slots->slot[0] = flash(0);
    slots->slot[1] = flash(1);
    slots->size = slot_size;
    slots->unit = unit;
    slots->memory = (uint8_t *)memory;
    slots->memory_size = sizeof memory;
    slots->stack_size = 500;
}

/* No call of the runtime leaves the slot or touches the one that runs, whatever came over the line. */
static void check_call(uint32_t slot, uint32_t offset, uint32_t size)
{
    const uint8_t *name = (const uint8_t *)microc_slot_model.name;
    CHECK(slot < 2u && offset <= slot_size && size <= slot_size - offset);
    CHECK(name == NULL || name < flash(slot) || name >= flash(slot) + slot_size);
}

int microc_port_slot_erase(uint32_t slot, uint32_t size)
{
    uint32_t at;
    check_call(slot, 0, size);
    for (at = 0; port != FAILS && port != FORGETS && at < size; at += page) {
        use(flash(slot) + at, page);
        memset(flash(slot) + at, 0xFF, page);
    }
    return port == FAILS || port == FAILS_WHEN_DONE ? -1 : 0;
}

int microc_port_slot_write(uint32_t slot, uint32_t offset, const uint8_t *data, uint32_t size)
{
    uint32_t at, i;
    check_call(slot, offset, size);
    CHECK(offset % unit == 0 && size % unit == 0);
    for (at = 0; port != FAILS && port != FORGETS && at < size; at += unit) {
        for (i = 0; i < unit; i++) {
            CHECK(flash(slot)[offset + at + i] == 0xFF); /* erased, and not written since */
        }
        use(flash(slot) + offset + at, unit);
        memcpy(flash(slot) + offset + at, data + at, unit);
    }
    return port == FAILS || port == FAILS_WHEN_DONE ? -1 : 0;
}

int microc_slot_verify(const uint8_t *blob, uint32_t size, const uint8_t *signature, uint32_t signature_size)
{
    uint32_t i;
    uint8_t sum = KEY;
    for (i = 0; i < size; i++) {
        sum = (uint8_t)(sum + blob[i]);
    }
    return must_sign && (signature_size != SIGNATURE || signature[0] != sum);
}

/* Returns how many networks there are. */
static unsigned boot(void)
{
    uint8_t count;
    memset(&microc_slot_model, 0, sizeof microc_slot_model); /* as start-up does */
    count = microc_slot_open();
    sequence = 0;
    microc_rpc_init(&rpc, models, count);
    CHECK(ask(MICROC_HELLO, NULL, 0) == MICROC_OK && answer[2] == count);
    return count;
}

static void clear(void)
{
    memset(memory_region, MEMORY_GUARD, sizeof memory_region);
    memory_calls = 0;
    memory_fails = 0;
    must_sign = 0;
    port = WORKS;
    left = -1;
    CHECK(boot() == 0);
}

static void seal(uint8_t *blob)
{
    microc_put32(blob + 12, microc_crc32(blob + 16, BLOB - 16u));
}

/* A network that is called by a letter. */
static void make(uint8_t *blob, char name)
{
    uint8_t *tensors = blob + MICROC_BLOB_HEADER + IMAGE;
    memset(blob, 0, BLOB);
    memcpy(blob, "MCRN", 4);
    microc_put32(blob + 4, MICROC_BLOB_VERSION);
    microc_put32(blob + 8, BLOB);
    microc_put32(blob + 16, MICROC_SLOT_ABI);
    microc_put32(blob + 20, 100);                       /* memory */
    microc_put32(blob + 24, 400);                       /* stack */
    microc_put32(blob + 28, MICROC_BLOB_HEADER + 4u);   /* run */
    microc_put32(blob + 32, MICROC_BLOB_HEADER + 8u);   /* reset */
    microc_put32(blob + 36, MICROC_BLOB_HEADER + IMAGE);
    microc_put16(blob + 40, TENSORS);
    microc_put16(blob + 42, 3); /* kernels */
    memcpy(blob + 44, MICROC_SLOT_CORE, sizeof MICROC_SLOT_CORE);
    blob[64] = (uint8_t)name;
    blob[80] = (uint8_t)name;
    microc_put32(tensors + 4, 60);
    microc_put16(tensors + 8, MICROC_NO_KERNEL);
    microc_put32(tensors + 12, 60);
    microc_put32(tensors + 16, 40);
    tensors[23] = MICROC_OUTPUT;
    seal(blob);
}

/* One with its signature behind it. */
static void sign(uint8_t *blob, char name)
{
    uint32_t i;
    memset(blob + BLOB, 0, SIGNATURE);
    make(blob, name);
    blob[BLOB] = KEY;
    for (i = 0; i < BLOB; i++) {
        blob[BLOB] = (uint8_t)(blob[BLOB] + blob[i]);
    }
}

static int number(unsigned operation, uint32_t value)
{
    uint8_t payload[4];
    microc_put32(payload, value);
    return ask(operation, payload, 4);
}

/* A piece of `size` bytes from `offset` on. */
static int piece(uint32_t offset, const uint8_t *bytes, uint32_t size)
{
    uint8_t payload[4 + 16];
    microc_put32(payload, offset);
    memcpy(payload + 4, bytes, size);
    return ask(MICROC_LOAD, payload, (uint16_t)(4u + size));
}

/* Send a blob, and what may follow it, whole units. */
static int send(const uint8_t *blob, uint32_t size)
{
    uint32_t at;
    uint8_t padded[SLOT];
    int status = number(MICROC_ERASE, size);
    memset(padded, 0xFF, sizeof padded);
    memcpy(padded, blob, size);
    for (at = 0; status == MICROC_OK && at < size; at += 16u) {
        status = piece(at, padded + at, size - at < 16u ? (size - at + unit - 1u) / unit * unit : 16u);
    }
    return status == MICROC_OK ? number(MICROC_COMMIT, size) : status;
}

/* The letter of the network that runs, by what the board says of it; 0 for none. */
static char running(void)
{
    return ask(MICROC_MODEL, NULL, 0) == MICROC_OK ? (char)answer[24] : '\0';
}

static void test_a_network_runs(void)
{
    uint8_t blob[BLOB];
    const uint8_t write[8] = {0, 0, 0, 0, 0, 0, 7, 8};
    const uint8_t read[8] = {1, 0, 0, 0, 0, 0, 32, 0};
    const uint8_t whole[8] = {0, 0, 2, 0, 1, 0, 0, 0};
    clear();
    CHECK(running() == '\0' && ask(MICROC_SLOTS, NULL, 0) == MICROC_OK && answer[2] == MICROC_NO_SLOT);
    make(blob, 'a');
    CHECK(send(blob, BLOB) == MICROC_OK && running() == 'a');
    CHECK(microc_get32(answer + 16) == 100 && microc_get16(answer + 20) == TENSORS && microc_get16(answer + 22) == 3);
    CHECK(ask(MICROC_WRITE, write, 8) == MICROC_OK && ask(MICROC_READ, read, 8) == MICROC_OK);
    CHECK(((uint8_t *)memory)[(TENSORS * sizeof(struct microc_tensor) + 15) / 16 * 16 + 1] == 8);
    CHECK(memory_calls == 0); /* nothing of it was executed yet */
    CHECK(ask(MICROC_RUN, whole, 8) == MICROC_OK && memory_calls == 4 && memory_number == 2); /* its state first */
    CHECK(ask(MICROC_RUN, whole, 8) == MICROC_OK && memory_calls == 7);
    CHECK(ask(MICROC_RESET, NULL, 0) == MICROC_OK && memory_calls == 8);
    CHECK(ask(MICROC_SLOTS, NULL, 0) == MICROC_OK && answer[2] == 0 && answer[3] == unit);
    CHECK(microc_get32(answer + 4) == SLOT - MICROC_SLOT_RECORD && microc_get32(answer + 16) == 1);
    make(blob, 'b');
    CHECK(send(blob, BLOB) == MICROC_OK && running() == 'b' && boot() == 1 && running() == 'b');
    make(blob, 'c');
    CHECK(send(blob, BLOB) == MICROC_OK && ask(MICROC_SLOTS, NULL, 0) == MICROC_OK && answer[2] == 0 && boot() == 1 && running() == 'c');
}

static void test_order_of_requests(void)
{
    uint8_t blob[BLOB];
    clear();
    make(blob, 'a');
    CHECK(number(MICROC_COMMIT, BLOB) == MICROC_BAD_RANGE && piece(0, blob, 16) == MICROC_BAD_RANGE);
    CHECK(number(MICROC_ERASE, SLOT) == MICROC_NO_ROOM && number(MICROC_ERASE, 0xFFFFFFFFu) == MICROC_NO_ROOM);
    CHECK(number(MICROC_ERASE, 32) == MICROC_OK && piece(16, blob, 16) == MICROC_BAD_RANGE);
    CHECK(piece(0, blob, 16) == MICROC_OK && piece(0, blob, 16) == MICROC_BAD_RANGE && piece(16, blob, 15) == MICROC_BAD_RANGE);
    CHECK(number(MICROC_COMMIT, 17) == MICROC_BAD_RANGE && piece(16, blob, 16) == MICROC_OK && piece(32, blob, 16) == MICROC_BAD_RANGE);
    CHECK(number(MICROC_COMMIT, 32) == MICROC_BAD_IMAGE && number(MICROC_COMMIT, 32) == MICROC_BAD_RANGE);
    CHECK(ask(MICROC_CALL, blob, 24) == MICROC_BAD_OPERATION && ask(MICROC_FETCH, blob, 6) == MICROC_BAD_OPERATION);
    CHECK(ask(MICROC_REGION, NULL, 0) == MICROC_BAD_OPERATION && ask(MICROC_CHECK, blob, 8) == MICROC_BAD_OPERATION);
    CHECK(send(blob, BLOB) == MICROC_OK && running() == 'a');
}

/* Nothing is taken between a commit, refused or not, and the next erasure. */
static void test_a_commit_ends_the_transfer(void)
{
    uint8_t blob[BLOB];
    unsigned accepted;
    for (accepted = 0; accepted < 2u; accepted++) {
        uint32_t at;
        clear();
        make(blob, 'a');
        CHECK(send(blob, BLOB) == MICROC_OK);
        blob[MICROC_BLOB_HEADER] ^= (uint8_t)(1u - accepted);
        CHECK(send(blob, BLOB) == (accepted ? MICROC_OK : MICROC_BAD_IMAGE));
        for (at = 0; at < 2u * SLOT; at += 4u) {
            CHECK(piece(at, blob, 16) == MICROC_BAD_RANGE && piece(at, blob, 0) == MICROC_BAD_RANGE);
        }
        CHECK(number(MICROC_COMMIT, 0) == MICROC_BAD_RANGE && number(MICROC_COMMIT, BLOB) == MICROC_BAD_RANGE);
        CHECK(number(MICROC_ERASE, 0) == MICROC_OK);
        CHECK(piece(0, blob, 0) == MICROC_BAD_RANGE && piece(0, blob, 4) == MICROC_BAD_RANGE);
        CHECK(running() == 'a' && boot() == 1 && running() == 'a');
    }
}

/* Slots of any size and unit: those that hold no blob are not touched, and the last unit of one is not outside of it. */
static void test_sizes_of_slots(void)
{
    static const struct {
        uint32_t size, unit, room;
    } slots[] = {
        {0, 4, 0},     {1, 1, 0},      {63, 1, 0},     {64, 4, 0},      {191, 1, 0},     {192, 4, 128},  {192, 0, 0},
        {192, 3, 0},   {256, 128, 0},  {192, 64, 128}, {250, 16, 176},  {251, 1, 187},   {255, 64, 128}, {256, 64, 192},
        {256, 12, 0},  {255, 32, 160}, {235, 2, 170},  {SLOT, 4, 192},
    };
    uint8_t blob[BLOB];
    size_t k;
    page = 1;
    for (k = 0; k < sizeof slots / sizeof slots[0]; k++) {
        uint32_t size;
        slot_size = slots[k].size;
        unit = slots[k].unit;
        clear();
        CHECK(ask(MICROC_SLOTS, NULL, 0) == MICROC_OK && microc_get32(answer + 4) == slots[k].room);
        for (size = 0; size < 2u * SLOT; size++) {
            CHECK(number(MICROC_ERASE, size) == (slots[k].room != 0u && size <= slots[k].room ? MICROC_OK : MICROC_NO_ROOM));
        }
        CHECK(number(MICROC_ERASE, 0xFFFFFFFFu) == MICROC_NO_ROOM);
        CHECK(number(MICROC_ERASE, 0u - MICROC_SLOT_RECORD) == MICROC_NO_ROOM);
        make(blob, 'a');
        if (slots[k].unit <= 16u) { /* as much as pieces of this test have */
            CHECK(send(blob, BLOB) == (BLOB <= slots[k].room ? MICROC_OK : MICROC_NO_ROOM));
            CHECK(boot() == (BLOB <= slots[k].room));
        }
    }
    slot_size = SLOT;
    unit = 4;
    page = PAGE;
}

/* A port that fails, even after it did all, or that says that it did what it did not: the network before runs, now and later. */
static void test_ports_that_fail(void)
{
    uint8_t blob[BLOB];
    unsigned how, when;
    for (how = FAILS; how <= FORGETS; how++) {
        for (when = 0; when < 3u; when++) {
            uint8_t padded[BLOB + 8];
            uint32_t at;
            clear();
            make(blob, 'a');
            CHECK(send(blob, BLOB) == MICROC_OK);
            make(blob, 'b');
            CHECK(send(blob, BLOB) == MICROC_OK && running() == 'b');
            make(blob, 'c');
            memcpy(padded, blob, BLOB);
            port = when == 0u ? how : WORKS;
            CHECK((number(MICROC_ERASE, BLOB) == MICROC_OK) == (port == WORKS || port == FORGETS));
            for (at = 0; at < BLOB; at += 8u) {
                port = when == 1u && at == 80u ? how : WORKS;
                if (when == 1u && how != FORGETS && at >= 80u) {
                    CHECK(piece(at, padded + at, 8) == (at == 80u ? MICROC_SLOT_FAILED : MICROC_BAD_RANGE));
                } else if (when != 0u) {
                    CHECK(piece(at, padded + at, 8) == MICROC_OK);
                }
            }
            port = when == 2u ? how : WORKS;
            CHECK(number(MICROC_COMMIT, BLOB) != MICROC_OK && running() == 'b');
            port = WORKS;
            CHECK(boot() == 1 && running() == 'b');
            CHECK(send(blob, BLOB) == MICROC_OK && running() == 'c' && boot() == 1 && running() == 'c');
        }
    }
}

/* What a firmware refuses at boot, and another one takes, is no newer than what came after it. */
static void test_a_commit_is_newer_than_what_was_refused(void)
{
    uint8_t blob[BLOB + SIGNATURE];
    clear();
    make(blob, 'a');
    CHECK(send(blob, BLOB) == MICROC_OK);
    make(blob, 'b');
    CHECK(send(blob, BLOB) == MICROC_OK);
    must_sign = 1;
    CHECK(boot() == 0);
    sign(blob, 's');
    CHECK(send(blob, sizeof blob) == MICROC_OK && running() == 's' && boot() == 1 && running() == 's');
    must_sign = 0;
    CHECK(boot() == 1 && running() == 's');
}

/* A blob with another number at `offset`, `size` bytes wide; sealed again. */
static int changed(uint32_t offset, uint32_t size, uint32_t value)
{
    uint8_t blob[BLOB];
    make(blob, 'x');
    if (size == 1u) {
        blob[offset] = (uint8_t)value;
    } else if (size == 2u) {
        microc_put16(blob + offset, (uint16_t)value);
    } else {
        microc_put32(blob + offset, value);
    }
    seal(blob);
    return send(blob, BLOB);
}

static void test_refusals(void)
{
    static const struct {
        uint32_t offset, size, value;
        int status;
    } wrong[] = {
        {0, 4, 0, MICROC_BAD_IMAGE},
        {4, 4, 2, MICROC_BAD_TARGET},
        {8, 4, BLOB + 1, MICROC_BAD_IMAGE},
        {8, 4, BLOB - 1, MICROC_BAD_IMAGE},
        {8, 4, 0, MICROC_BAD_IMAGE},
        {16, 4, MICROC_SLOT_ABI + 1, MICROC_BAD_TARGET},
        {44, 1, 'z', MICROC_BAD_TARGET},
        {44 + sizeof MICROC_SLOT_CORE - 1, 1, '+', MICROC_BAD_TARGET},
        {20, 4, 99, MICROC_BAD_IMAGE}, /* of which the tensors take 100 */
        {20, 4, sizeof memory, MICROC_NO_ROOM},
        {20, 4, 0xFFFFFFFFu, MICROC_NO_ROOM},
        {24, 4, 501, MICROC_NO_ROOM},
        {28, 4, 0, MICROC_BAD_IMAGE},
        {28, 4, BLOB, MICROC_BAD_IMAGE},
        {32, 4, 5, MICROC_BAD_IMAGE},
        {32, 4, 0xFFFFFFFFu, MICROC_BAD_IMAGE},
        {36, 4, BLOB, MICROC_BAD_IMAGE},
        {36, 4, 0, MICROC_BAD_IMAGE},
        {36, 4, 0xFFFFFFF0u, MICROC_BAD_IMAGE},
        {40, 2, 3, MICROC_BAD_IMAGE},
        {40, 2, 0xFFFF, MICROC_BAD_IMAGE},
        {42, 2, 0, MICROC_BAD_IMAGE},
        {MICROC_BLOB_HEADER - 1, 1, 'n', MICROC_BAD_IMAGE},
        {MICROC_BLOB_HEADER + IMAGE, 4, 41, MICROC_BAD_IMAGE},
        {MICROC_BLOB_HEADER + IMAGE, 4, 0xFFFFFFFFu, MICROC_BAD_IMAGE},
        {MICROC_BLOB_HEADER + IMAGE + 4, 4, 0xFFFFFFFFu, MICROC_BAD_IMAGE},
    };
    uint8_t blob[BLOB + SIGNATURE];
    size_t k;
    clear();
    make(blob, 'a');
    CHECK(send(blob, BLOB) == MICROC_OK);
    for (k = 0; k < sizeof wrong / sizeof wrong[0]; k++) {
        CHECK(changed(wrong[k].offset, wrong[k].size, wrong[k].value) == wrong[k].status);
        CHECK(running() == 'a' && boot() == 1 && running() == 'a');
    }
    CHECK(changed(32, 4, 0) == MICROC_OK && running() == 'x'); /* keeps no state */
    blob[MICROC_BLOB_HEADER] ^= 1u; /* damaged on its way */
    CHECK(send(blob, BLOB) == MICROC_BAD_IMAGE && running() == 'x');
}

static void test_signatures(void)
{
    uint8_t blob[BLOB + SIGNATURE];
    clear();
    sign(blob, 's');
    must_sign = 1;
    CHECK(send(blob, BLOB) == MICROC_BAD_SIGNATURE && running() == '\0');
    CHECK(send(blob, sizeof blob) == MICROC_OK && running() == 's' && boot() == 1);
    blob[BLOB] ^= 1u;
    CHECK(send(blob, sizeof blob) == MICROC_BAD_SIGNATURE && running() == 's');
    must_sign = 0;
    make(blob, 't');
    CHECK(send(blob, BLOB) == MICROC_OK && running() == 't');
    must_sign = 1;
    CHECK(boot() == 1 && running() == 's'); /* what has none does not run at boot either */
}

/* Numbers of commits go round. */
static void test_the_newer_of_two(void)
{
    static const uint32_t numbers[] = {1, 0x7FFFFFFF, 0x80000000u, 0xFFFFFFFFu};
    uint8_t blob[BLOB];
    size_t k;
    for (k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
        clear();
        make(blob, 'a');
        CHECK(send(blob, BLOB) == MICROC_OK);
        microc_put32(flash(0) + 4, numbers[k]);
        microc_put32(flash(0) + 12, microc_crc32(flash(0), 12));
        CHECK(boot() == 1 && running() == 'a');
        make(blob, 'b');
        CHECK(send(blob, BLOB) == MICROC_OK && boot() == 1 && running() == 'b');
        make(blob, 'c');
        CHECK(send(blob, BLOB) == MICROC_OK && boot() == 1 && running() == 'c');
    }
}

/* From `before` networks on, one more is sent while the power goes at every moment that there is. Returns their number. */
static long cut_everywhere(unsigned before)
{
    static uint8_t start[sizeof memory_region];
    uint8_t blob[BLOB];
    char old, now;
    unsigned k;
    long moment;
    clear();
    for (k = 0; k < before; k++) {
        make(blob, (char)('a' + (int)k));
        CHECK(send(blob, BLOB) == MICROC_OK);
    }
    old = running();
    memcpy(start, memory_region, sizeof start);
    make(blob, 'n');
    for (moment = 0;; moment++) {
        static volatile int done;
        memcpy(memory_region, start, sizeof start);
        (void)boot();
        done = 0;
        left = moment;
        if (setjmp(power) == 0) {
            CHECK(send(blob, BLOB) == MICROC_OK);
            done = 1;
        }
        left = -1;
        CHECK(boot() == (old != '\0' || done));
        now = running();
        CHECK(now == (done ? 'n' : old));
        make(blob, 'n');
        CHECK(send(blob, BLOB) == MICROC_OK && running() == 'n' && boot() == 1 && running() == 'n'); /* it can be sent again */
        if (done) {
            return moment;
        }
    }
}

static void test_power_cuts(void)
{
    static const uint32_t units[] = {1, 4, 16};
    size_t k;
    unsigned before, round;
    for (k = 0; k < sizeof units / sizeof units[0]; k++) {
        unit = units[k];
        for (before = 0; before < 4u; before++) {
            for (round = 0; round < 20u; round++) { /* what is under way is left as chance has it */
                CHECK(cut_everywhere(before) == (long)(4u + (BLOB + unit - 1u) / unit + 16u / unit));
            }
        }
    }
    unit = 4;
}

/* Requests whose frames are right and whose contents are anything. */
static void test_storm(void)
{
    uint8_t payload[MICROC_RPC_MAX_PAYLOAD], blob[BLOB];
    long i;
    size_t k;
    clear();
    make(blob, 'a');
    CHECK(send(blob, BLOB) == MICROC_OK);
    for (i = 0; i < 100000; i++) {
        unsigned operation = MICROC_REGION + memory_random() % 9u;
        uint16_t size = (uint16_t)(memory_random() % 2u == 0u ? 4u : memory_random() % 24u);
        uint16_t j;
        for (j = 0; j < size; j++) {
            payload[j] = (uint8_t)(memory_random() % 3u == 0u ? memory_random() & 0xFFu : memory_random() % 4u == 0u ? 16u : 0u);
        }
        (void)ask(operation, payload, size);
    }
    CHECK(running() == 'a' && boot() == 1 && running() == 'a');
    for (k = 0; k < 8; k++) {
        CHECK(memory_region[k] == MEMORY_GUARD && memory_region[8 + 2 * SLOT + k] == MEMORY_GUARD);
    }
}

int main(void)
{
    test_a_network_runs();
    test_order_of_requests();
    test_a_commit_ends_the_transfer();
    test_sizes_of_slots();
    test_ports_that_fail();
    test_a_commit_is_newer_than_what_was_refused();
    test_refusals();
    test_signatures();
    test_the_newer_of_two();
    test_power_cuts();
    test_storm();
    return 0;
}
