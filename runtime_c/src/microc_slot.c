/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_slot.h"

#include <string.h>

#include "microc_blob.h"
#include "microc_port.h"

/* The commit record, written last: until it is there whole, a slot holds nothing. SPEC.md, "Slots". */
#define RECORD_MAGIC 0x53434D01u
#define AT_SEQUENCE 4u
#define AT_SIZE 8u
#define AT_CHECK 12u
#define RECORD 16u

/* The slots are the board's, of which there is one: so is what is known of them. */
static struct {
    struct microc_slots at;
    struct microc_blob blob;
    uint32_t room;     /* bytes of a slot behind its record, in whole units; 0: no slot can hold a blob, and none is touched */
    uint32_t sequence; /* of the active slot */
    uint32_t erased;   /* bytes behind the spare slot's record that take the blob that comes; 0 if none does */
    uint32_t written;  /* those of them that have come, never more */
    uint8_t active;
    uint8_t ready; /* the network's state has its initial content */
} state;

struct microc_model microc_slot_model;

#if defined(__GNUC__)
__attribute__((weak))
#endif
int microc_slot_verify(const uint8_t *blob, uint32_t size, const uint8_t *signature, uint32_t signature_size)
{
    (void)blob;
    (void)size;
    (void)signature;
    (void)signature_size;
    return 0;
}

/* Whether the bytes of a slot are a network that may run here: MICROC_OK and what it says of itself, or why not. */
static int inspect(uint32_t slot, uint32_t size, struct microc_blob *blob)
{
    const uint8_t *bytes = state.at.slot[slot] + MICROC_SLOT_RECORD;
    int status = microc_blob_read(bytes, size, &state.at, blob);
    if (status == MICROC_OK && microc_slot_verify(bytes, blob->size, bytes + blob->size, size - blob->size) != 0) {
        status = MICROC_BAD_SIGNATURE;
    }
    return status;
}

/* The room of slots as a board tells of them. Whoever asks for bytes of a slot compares with it, so that no later sum wraps. */
static uint32_t measure(const struct microc_slots *at)
{
    if (at->unit == 0u || at->unit > MICROC_SLOT_RECORD || (at->unit & (at->unit - 1u)) != 0u ||
        at->size < MICROC_SLOT_RECORD + MICROC_BLOB_HEADER) {
        return 0;
    }
    return (at->size & ~(at->unit - 1u)) - MICROC_SLOT_RECORD;
}

/* Bytes in whole units; at most the room if the bytes are. */
static uint32_t whole_units(uint32_t size)
{
    return (size + state.at.unit - 1u) & ~(state.at.unit - 1u);
}

/* Whether a slot has its commit record, and what it says. */
static int committed(uint32_t slot, uint32_t *sequence, uint32_t *size)
{
    const uint8_t *record = state.at.slot[slot];
    *sequence = microc_get32(record + AT_SEQUENCE);
    *size = microc_get32(record + AT_SIZE);
    return microc_get32(record) == RECORD_MAGIC && microc_get32(record + AT_CHECK) == microc_crc32(record, AT_CHECK) &&
           *size <= state.room;
}

/* Enter the network: its memory lies behind the board's table of its tensors. */
static int enter(microc_entry entry, uint32_t kernel)
{
    void *const places[1] = {state.at.memory + state.blob.table};
    return entry(places, kernel);
}

static void reset(void)
{
    (void)enter(state.blob.reset, 0);
    state.ready = 1;
}

static int run(uint32_t first, uint32_t last, microc_hook hook, void *user)
{
    uint32_t kernel;
    if (state.ready == 0u && state.blob.reset != NULL) {
        reset();
    }
    for (kernel = first; kernel <= last; kernel++) {
        int status = enter(state.blob.run, kernel);
        if (status != 0) {
            return status;
        }
        if (hook != NULL) {
            hook(user, kernel);
        }
    }
    return 0;
}

/* Have the network of a slot run from now on. Nothing of it is executed before it is asked to: a board answers in any case. */
static void activate(uint32_t slot, uint32_t sequence, const struct microc_blob *blob)
{
    state.blob = *blob;
    state.active = (uint8_t)slot;
    state.sequence = sequence;
    state.ready = 0;
    microc_port_code_changed(blob->bytes, blob->size);
    microc_blob_describe(blob, state.at.memory, &microc_slot_model);
    microc_slot_model.run = run;
    microc_slot_model.reset = blob->reset != NULL ? reset : NULL;
}

uint8_t microc_slot_open(void)
{
    struct microc_blob blob;
    uint32_t slot, sequence, size;
    (void)memset(&state, 0, sizeof state);
    state.active = MICROC_NO_SLOT;
    microc_port_slots(&state.at);
    state.room = measure(&state.at);
    for (slot = 0; state.room != 0u && slot < 2u; slot++) {
        /* Numbers go round: the newer is less than half of them ahead. */
        if (committed(slot, &sequence, &size) &&
            (state.active == MICROC_NO_SLOT || sequence - state.sequence < 0x80000000u) && inspect(slot, size, &blob) == MICROC_OK) {
            activate(slot, sequence, &blob);
        }
    }
    return state.active == MICROC_NO_SLOT ? 0 : 1;
}

/* The slot that does not run takes what comes. */
static uint32_t spare(void)
{
    return state.active == 0u ? 1u : 0u;
}

/* The only place that writes to a slot: never to the one that runs, nor past its end, whatever is believed elsewhere. */
static int put(uint32_t offset, const uint8_t *data, uint32_t size)
{
    const uint32_t end = state.room + MICROC_SLOT_RECORD;
    if (size > end || offset > end - size || microc_port_slot_write(spare(), offset, data, size) != 0) {
        return MICROC_SLOT_FAILED;
    }
    return MICROC_OK;
}

/* Whatever comes now begins with an erasure. */
static void abandon(void)
{
    state.erased = 0;
    state.written = 0;
}

int microc_slot_tell(const struct microc_call *call)
{
    int size = 24;
    const char *letter = MICROC_SLOT_CORE;
    microc_put16(call->answer, MICROC_BLOB_VERSION);
    call->answer[2] = state.active;
    call->answer[3] = (uint8_t)state.at.unit;
    microc_put32(call->answer + 4, state.room);
    microc_put32(call->answer + 8, state.at.memory_size);
    microc_put32(call->answer + 12, state.at.stack_size);
    microc_put32(call->answer + 16, state.sequence);
    microc_put32(call->answer + 20, MICROC_SLOT_ABI);
    while (*letter != '\0' && size < MICROC_RPC_MAX_PAYLOAD) {
        call->answer[size++] = (uint8_t)*letter++;
    }
    return size;
}

int microc_slot_erase(const struct microc_call *call)
{
    uint32_t size = microc_get32(call->payload);
    abandon();
    if (state.room == 0u || size > state.room) {
        return MICROC_NO_ROOM;
    }
    size = whole_units(size); /* the last unit is written as a whole: so it is erased */
    if (microc_port_slot_erase(spare(), MICROC_SLOT_RECORD + size) != 0) {
        return MICROC_SLOT_FAILED;
    }
    state.erased = size;
    return MICROC_OK;
}

/* Flash takes every byte once: pieces come in order, and in whole units. */
int microc_slot_load(const struct microc_call *call)
{
    uint32_t offset = microc_get32(call->payload);
    uint32_t size = (uint32_t)call->size - MICROC_LOAD_HEADER;
    int status;
    if (state.erased == 0u || offset != state.written || size > state.erased || offset > state.erased - size ||
        whole_units(size) != size) {
        return MICROC_BAD_RANGE;
    }
    status = put(MICROC_SLOT_RECORD + offset, call->payload + MICROC_LOAD_HEADER, size);
    if (status == MICROC_OK) {
        state.written += size;
    } else {
        abandon();
    }
    return status;
}

/* Write the record that makes the spare slot count. One that was refused must not count at the next boot: it is erased. */
static int write_record(uint32_t sequence, uint32_t size)
{
    uint8_t record[MICROC_SLOT_RECORD];
    int status;
    (void)memset(record, 0xFF, sizeof record);
    microc_put32(record, RECORD_MAGIC);
    microc_put32(record + AT_SEQUENCE, sequence);
    microc_put32(record + AT_SIZE, size);
    microc_put32(record + AT_CHECK, microc_crc32(record, AT_CHECK));
    status = put(0, record, whole_units(RECORD));
    if (status == MICROC_OK && memcmp(state.at.slot[spare()], record, RECORD) != 0) {
        status = MICROC_SLOT_FAILED;
    }
    if (status != MICROC_OK) {
        (void)microc_port_slot_erase(spare(), MICROC_SLOT_RECORD);
    }
    return status;
}

/* The number that makes a commit newer than what the other slot holds, even if this firmware did not accept that at boot. */
static uint32_t next_sequence(void)
{
    uint32_t sequence, size;
    return committed(1u - spare(), &sequence, &size) ? sequence + 1u : 1u;
}

int microc_slot_commit(const struct microc_call *call)
{
    uint32_t size = microc_get32(call->payload);
    uint32_t sequence;
    struct microc_blob blob;
    int status;
    if (state.erased == 0u || size > state.written) {
        return MICROC_BAD_RANGE;
    }
    abandon();
    status = inspect(spare(), size, &blob);
    sequence = next_sequence();
    if (status == MICROC_OK) {
        status = write_record(sequence, size);
    }
    if (status == MICROC_OK) {
        activate(spare(), sequence, &blob);
        call->rpc->model_count = 1;
    }
    return status;
}
