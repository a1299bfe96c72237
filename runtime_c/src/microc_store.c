/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_store.h"

#include <stddef.h>
#include <string.h>

#include "microc_frame.h"
#ifdef MICROC_RPC_STORE
#include "microc_load.h"
#endif

/* The record, written last: until it is there whole, a bank holds nothing. SPEC.md, "Stored weights". */
#define RECORD_MAGIC 0x574D4301u
#define AT_SEQUENCE 4u
#define AT_IDENTITY 8u
#define AT_SIZE 12u
#define AT_DATA_CHECK 16u
#define AT_CHECK 20u
#define RECORD 24u
#define LARGEST 0x7FFFFFFFu
#define NO_BANK 2u
#define UNKNOWN_BANK 3u

/* Bytes in whole units. */
static uint32_t whole_units(uint32_t size)
{
    return (size + MICROC_STORE_UNIT - 1u) & ~(MICROC_STORE_UNIT - 1u);
}

uint32_t microc_store_size(const struct microc_store *store)
{
    uint32_t total = MICROC_STORE_RECORD, k;
    for (k = 0; k < store->count; k++) {
        const uint32_t size = store->pieces[k].size;
        if (size > LARGEST - MICROC_STORE_UNIT || total > LARGEST - whole_units(size)) {
            return 0;
        }
        total += whole_units(size);
    }
    return total;
}

/* Extend the check by a piece: the CRC-32 of the check and of the piece's CRC-32 `crc`. */
static uint32_t extend_check(uint32_t check, uint32_t crc)
{
    uint8_t both[8];
    microc_put32(both, check);
    microc_put32(both + 4, crc);
    return microc_crc32(both, sizeof both);
}

uint32_t microc_store_check(const struct microc_store *store)
{
    uint32_t k, check = 0;
    for (k = 0; k < store->count; k++) {
        check = extend_check(check, microc_crc32(store->pieces[k].data, (size_t)store->pieces[k].size));
    }
    return check;
}

static int read_bank(const struct microc_store *store, uint32_t bank, uint32_t offset, uint8_t *data, uint32_t size)
{
    return microc_port_bank_read(store->bank + bank, offset, data, size);
}

/* Write or, with data NULL, erase; a MICROC_STORE status. */
static int write_bank(const struct microc_store *store, uint32_t bank, uint32_t offset, const uint8_t *data, uint32_t size)
{
    return microc_port_bank_write(store->bank + bank, offset, data, size) == 0 ? MICROC_STORE_OK : MICROC_STORE_FAILED;
}

/* Read a bank's record alone: its state is MICROC_BANK_WHOLE if the record is, and of this network. */
static void read_record(const struct microc_store *store, uint32_t bank, struct microc_bank *found)
{
    uint8_t record[RECORD];
    uint32_t k;
    (void)memset(found, 0, sizeof *found);
    if (read_bank(store, bank, 0, record, RECORD) != 0) {
        found->state = MICROC_BANK_UNREADABLE;
        return;
    }
    if (microc_get32(record) != RECORD_MAGIC || microc_get32(record + AT_CHECK) != microc_crc32(record, AT_CHECK)) {
        /* Erased memory has equal bytes: ones in most kinds of flash, zeros in some. */
        for (k = 0; k < RECORD && record[k] == record[0]; k++) {
        }
        found->state = k == RECORD ? MICROC_BANK_EMPTY : MICROC_BANK_DAMAGED;
        return;
    }
    found->sequence = microc_get32(record + AT_SEQUENCE);
    found->identity = microc_get32(record + AT_IDENTITY);
    found->size = microc_get32(record + AT_SIZE);
    found->check = microc_get32(record + AT_DATA_CHECK);
    found->state = found->identity == store->identity && found->size == microc_store_size(store) ? MICROC_BANK_WHOLE
                                                                                               : MICROC_BANK_FOREIGN;
}

void microc_store_inspect(const struct microc_store *store, uint32_t bank, struct microc_bank *found)
{
    uint8_t chunk[MICROC_STORE_UNIT];
    uint32_t k, at, size, crc, check = 0, offset = MICROC_STORE_RECORD;
    read_record(store, bank, found);
    if (found->state != MICROC_BANK_WHOLE) {
        return;
    }
    for (k = 0; k < store->count; k++) {
        crc = 0;
        for (at = 0; at < store->pieces[k].size; at += size) {
            size = store->pieces[k].size - at < MICROC_STORE_UNIT ? store->pieces[k].size - at : MICROC_STORE_UNIT;
            if (read_bank(store, bank, offset + at, chunk, size) != 0) {
                found->state = MICROC_BANK_UNREADABLE;
                return;
            }
            crc = microc_crc32_extend(crc, chunk, (size_t)size);
        }
        check = extend_check(check, crc);
        offset += whole_units(store->pieces[k].size);
    }
    found->state = check == found->check ? MICROC_BANK_WHOLE : MICROC_BANK_DAMAGED;
}

/* The bank with the newest whole save, and its sequence number: 0 without one. It wraps: the newer is less than 2^31 ahead. */
static uint32_t find_newest(const struct microc_store *store, uint32_t *sequence)
{
    uint32_t newest = NO_BANK, bank;
    struct microc_bank found;
    *sequence = 0;
    for (bank = 0; bank < NO_BANK; bank++) {
        microc_store_inspect(store, bank, &found);
        if (found.state == MICROC_BANK_UNREADABLE) {
            return UNKNOWN_BANK; /* it may contain the newest */
        }
        if (found.state == MICROC_BANK_WHOLE && (newest == NO_BANK || found.sequence - *sequence < 0x80000000u)) {
            newest = bank;
            *sequence = found.sequence;
        }
    }
    return newest;
}

uint32_t microc_store_newest(const struct microc_store *store)
{
    uint32_t sequence;
    return find_newest(store, &sequence);
}

/* Write a piece in whole units: the last one is filled with 0xFF. */
static int write_piece(const struct microc_store *store, uint32_t bank, uint32_t offset, const struct microc_piece *piece)
{
    const uint8_t *const bytes = piece->data;
    const uint32_t even = piece->size & ~(MICROC_STORE_UNIT - 1u);
    uint8_t unit[MICROC_STORE_UNIT];
    if (even != 0u && write_bank(store, bank, offset, bytes, even) != MICROC_STORE_OK) {
        return MICROC_STORE_FAILED;
    }
    if (even == piece->size) {
        return MICROC_STORE_OK;
    }
    (void)memset(unit, 0xFF, sizeof unit);
    (void)memcpy(unit, bytes + even, (size_t)(piece->size - even));
    return write_bank(store, bank, offset + even, unit, MICROC_STORE_UNIT);
}

/* Test whether a bank contains the bytes of a piece. */
static int reads_back(const struct microc_store *store, uint32_t bank, uint32_t offset, const struct microc_piece *piece)
{
    const uint8_t *const bytes = piece->data;
    uint8_t chunk[MICROC_STORE_UNIT];
    uint32_t at, size;
    for (at = 0; at < piece->size; at += size) {
        size = piece->size - at < MICROC_STORE_UNIT ? piece->size - at : MICROC_STORE_UNIT;
        if (read_bank(store, bank, offset + at, chunk, size) != 0 || memcmp(chunk, bytes + at, (size_t)size) != 0) {
            return 0;
        }
    }
    return 1;
}

int microc_store_save(const struct microc_store *store)
{
    uint8_t record[MICROC_STORE_RECORD];
    uint32_t sequence, k, offset = MICROC_STORE_RECORD;
    const uint32_t size = microc_store_size(store);
    const uint32_t newest = find_newest(store, &sequence), bank = newest == 0u ? 1u : 0u;
    struct microc_piece whole;
    if (size == 0u || newest == UNKNOWN_BANK || write_bank(store, bank, 0, NULL, size) != MICROC_STORE_OK) {
        return MICROC_STORE_FAILED;
    }
    for (k = 0; k < store->count; k++) {
        const struct microc_piece *const piece = &store->pieces[k];
        if (write_piece(store, bank, offset, piece) != MICROC_STORE_OK || reads_back(store, bank, offset, piece) == 0) {
            return MICROC_STORE_FAILED;
        }
        offset += whole_units(piece->size);
    }
    (void)memset(record, 0xFF, sizeof record);
    microc_put32(record, RECORD_MAGIC);
    microc_put32(record + AT_SEQUENCE, sequence + 1u);
    microc_put32(record + AT_IDENTITY, store->identity);
    microc_put32(record + AT_SIZE, size);
    microc_put32(record + AT_DATA_CHECK, microc_store_check(store));
    microc_put32(record + AT_CHECK, microc_crc32(record, AT_CHECK));
    whole.data = record;
    whole.size = sizeof record;
    if (write_piece(store, bank, 0, &whole) != MICROC_STORE_OK || reads_back(store, bank, 0, &whole) == 0) {
        (void)write_bank(store, bank, 0, NULL, MICROC_STORE_RECORD);
        return MICROC_STORE_FAILED;
    }
    return MICROC_STORE_OK;
}

int microc_store_restore(const struct microc_store *store)
{
    const uint32_t bank = microc_store_newest(store);
    uint32_t k, offset = MICROC_STORE_RECORD;
    struct microc_bank found;
    if (bank >= NO_BANK) {
        return bank == NO_BANK ? MICROC_STORE_EMPTY : MICROC_STORE_FAILED;
    }
    read_record(store, bank, &found);
    for (k = 0; k < store->count; k++) {
        if (read_bank(store, bank, offset, store->pieces[k].data, store->pieces[k].size) != 0) {
            return MICROC_STORE_FAILED;
        }
        offset += whole_units(store->pieces[k].size);
    }
    return microc_store_check(store) == found.check ? MICROC_STORE_OK : MICROC_STORE_FAILED;
}

int microc_store_clear(const struct microc_store *store)
{
    const uint32_t last = microc_store_newest(store) == 0u ? 0u : 1u;
    return write_bank(store, 1u - last, 0, NULL, MICROC_STORE_RECORD) == MICROC_STORE_OK
               ? write_bank(store, last, 0, NULL, MICROC_STORE_RECORD)
               : MICROC_STORE_FAILED;
}

#ifdef MICROC_RPC_STORE

/* ---- Operations; each returns the bytes of `answer` it has written, or a negative enum microc_status. */

int microc_store_describe_bank(const struct microc_call *call)
{
    const uint32_t bank = call->payload[0];
    struct microc_bank found;
    if (call->model->store == NULL) {
        return MICROC_BAD_OPERATION;
    }
    if (bank >= NO_BANK) {
        return MICROC_BAD_RANGE;
    }
    microc_store_inspect(call->model->store, bank, &found);
    (void)memset(call->answer, 0, 4);
    call->answer[0] = (uint8_t)found.state;
    call->answer[1] = microc_store_newest(call->model->store) == bank ? 1u : 0u;
    microc_put32(call->answer + 4, found.sequence);
    microc_put32(call->answer + 8, found.identity);
    microc_put32(call->answer + 12, found.size);
    microc_put32(call->answer + 16, found.check);
    return 20;
}

int microc_store_read_bank(const struct microc_call *call)
{
    const uint32_t bank = call->payload[0];
    const uint32_t offset = microc_get32(call->payload + 1);
    const uint16_t size = microc_get16(call->payload + 5);
    uint32_t room;
    if (call->model->store == NULL) {
        return MICROC_BAD_OPERATION;
    }
    room = microc_store_size(call->model->store);
    if (bank >= NO_BANK || offset > room || size > room - offset || size > MICROC_RPC_MAX_PAYLOAD) {
        return MICROC_BAD_RANGE;
    }
    return read_bank(call->model->store, bank, offset, call->answer, size) == 0 ? (int)size : MICROC_SLOT_FAILED;
}

int microc_store_save_tensors(const struct microc_call *call)
{
    const struct microc_store *const store = call->model->store;
    if (store == NULL) {
        return MICROC_BAD_OPERATION;
    }
    if (microc_get32(call->payload) != store->identity || microc_get32(call->payload + 4) != microc_store_size(store)) {
        return MICROC_BAD_TARGET;
    }
    if (microc_get32(call->payload + 8) != microc_store_check(store)) {
        return MICROC_BAD_IMAGE;
    }
    return microc_store_save(store) == MICROC_STORE_OK ? MICROC_OK : MICROC_SLOT_FAILED;
}

int microc_store_restore_tensors(const struct microc_call *call)
{
    int status;
    if (call->model->store == NULL) {
        return MICROC_BAD_OPERATION;
    }
    status = microc_store_restore(call->model->store);
    if (status == MICROC_STORE_FAILED && call->model->reset != NULL) {
        call->model->reset();
    }
    return status == MICROC_STORE_OK ? MICROC_OK : status == MICROC_STORE_EMPTY ? MICROC_BAD_IMAGE : MICROC_SLOT_FAILED;
}

int microc_store_clear_banks(const struct microc_call *call)
{
    if (call->model->store == NULL) {
        return MICROC_BAD_OPERATION;
    }
    return microc_store_clear(call->model->store) == MICROC_STORE_OK ? MICROC_OK : MICROC_SLOT_FAILED;
}

#endif
