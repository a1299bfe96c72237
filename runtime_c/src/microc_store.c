/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_store.h"

#include <stddef.h>
#include <string.h>

#include "microc_frame.h"

/* The record, written last: until it is there whole, a bank holds nothing. SPEC.md, "Stored weights". */
#define RECORD_MAGIC 0x574D4301u
#define AT_SEQUENCE 4u
#define AT_IDENTITY 8u
#define AT_SIZE 12u
#define AT_DATA_CHECK 16u
#define AT_CHECK 20u
#define RECORD 24u
#define LARGEST 0x7FFFFFFFu

/* Bytes in whole units. */
static uint32_t whole_units(uint32_t size)
{
    return (size + MICROC_STORE_UNIT - 1u) & ~(MICROC_STORE_UNIT - 1u);
}

uint32_t microc_store_size(const struct microc_piece *pieces, uint32_t count)
{
    uint32_t total = MICROC_STORE_RECORD, k;
    for (k = 0; k < count; k++) {
        if (pieces[k].size > LARGEST - MICROC_STORE_UNIT || total > LARGEST - whole_units(pieces[k].size)) {
            return 0;
        }
        total += whole_units(pieces[k].size);
    }
    return total;
}

/* Extend the check of the pieces before by a piece: the CRC-32 of the check and of the piece's own CRC-32. */
static uint32_t extend(uint32_t check, const struct microc_piece *piece)
{
    uint8_t both[8];
    microc_put32(both, check);
    microc_put32(both + 4, microc_crc32(piece->data, piece->size));
    return microc_crc32(both, sizeof both);
}

/* Whether a bank has a whole record of this identity and size; and its sequence number and the check of its pieces. */
static int committed(uint32_t bank, uint32_t identity, uint32_t size, uint32_t *sequence, uint32_t *check)
{
    uint8_t record[RECORD];
    if (microc_port_bank_read(bank, 0, record, RECORD) != 0) {
        return 0;
    }
    *sequence = microc_get32(record + AT_SEQUENCE);
    *check = microc_get32(record + AT_DATA_CHECK);
    return microc_get32(record) == RECORD_MAGIC && microc_get32(record + AT_CHECK) == microc_crc32(record, AT_CHECK) &&
           microc_get32(record + AT_IDENTITY) == identity && microc_get32(record + AT_SIZE) == size;
}

/* The bank with the newest record, or 2 if none has one. Numbers go round: the newer is less than half of them ahead. */
static uint32_t newest(uint32_t identity, uint32_t size, uint32_t *sequence)
{
    uint32_t found = 2u, number, check, bank;
    *sequence = 0;
    for (bank = 0; bank < 2u; bank++) {
        if (committed(bank, identity, size, &number, &check) && (found == 2u || number - *sequence < 0x80000000u)) {
            found = bank;
            *sequence = number;
        }
    }
    return found;
}

/* Write a piece in whole units: the last one is filled with 0xFF. */
static int write_piece(uint32_t bank, uint32_t offset, const struct microc_piece *piece)
{
    const uint8_t *const bytes = piece->data;
    const uint32_t even = piece->size & ~(MICROC_STORE_UNIT - 1u);
    uint8_t unit[MICROC_STORE_UNIT];
    if (even != 0u && microc_port_bank_write(bank, offset, bytes, even) != 0) {
        return MICROC_STORE_FAILED;
    }
    if (even == piece->size) {
        return MICROC_STORE_OK;
    }
    (void)memset(unit, 0xFF, sizeof unit);
    (void)memcpy(unit, bytes + even, piece->size - even);
    return microc_port_bank_write(bank, offset + even, unit, MICROC_STORE_UNIT) == 0 ? MICROC_STORE_OK : MICROC_STORE_FAILED;
}

/* Whether the bytes of a bank are those of a piece. */
static int reads_back(uint32_t bank, uint32_t offset, const struct microc_piece *piece)
{
    const uint8_t *const bytes = piece->data;
    uint8_t chunk[MICROC_STORE_UNIT];
    uint32_t at, size;
    for (at = 0; at < piece->size; at += size) {
        size = piece->size - at < MICROC_STORE_UNIT ? piece->size - at : MICROC_STORE_UNIT;
        if (microc_port_bank_read(bank, offset + at, chunk, size) != 0 || memcmp(chunk, bytes + at, size) != 0) {
            return 0;
        }
    }
    return 1;
}

int microc_store_save(uint32_t identity, const struct microc_piece *pieces, uint32_t count)
{
    uint8_t record[MICROC_STORE_RECORD];
    uint32_t sequence, k, check = 0, offset = MICROC_STORE_RECORD;
    const uint32_t size = microc_store_size(pieces, count);
    const uint32_t bank = newest(identity, size, &sequence) == 0u ? 1u : 0u;
    struct microc_piece whole;
    if (size == 0u || microc_port_bank_write(bank, 0, NULL, size) != 0) {
        return MICROC_STORE_FAILED;
    }
    for (k = 0; k < count; k++) {
        if (write_piece(bank, offset, &pieces[k]) != MICROC_STORE_OK || reads_back(bank, offset, &pieces[k]) == 0) {
            return MICROC_STORE_FAILED;
        }
        check = extend(check, &pieces[k]);
        offset += whole_units(pieces[k].size);
    }
    (void)memset(record, 0xFF, sizeof record);
    microc_put32(record, RECORD_MAGIC);
    microc_put32(record + AT_SEQUENCE, sequence + 1u);
    microc_put32(record + AT_IDENTITY, identity);
    microc_put32(record + AT_SIZE, size);
    microc_put32(record + AT_DATA_CHECK, check);
    microc_put32(record + AT_CHECK, microc_crc32(record, AT_CHECK));
    whole.data = record;
    whole.size = sizeof record;
    if (write_piece(bank, 0, &whole) != MICROC_STORE_OK || reads_back(bank, 0, &whole) == 0) {
        (void)microc_port_bank_write(bank, 0, NULL, MICROC_STORE_RECORD);
        return MICROC_STORE_FAILED;
    }
    return MICROC_STORE_OK;
}

/* Read the pieces of a bank; whether they are those that its record tells of. */
static int read_pieces(uint32_t bank, uint32_t expected, const struct microc_piece *pieces, uint32_t count)
{
    uint32_t k, check = 0, offset = MICROC_STORE_RECORD;
    for (k = 0; k < count; k++) {
        if (microc_port_bank_read(bank, offset, pieces[k].data, pieces[k].size) != 0) {
            return 0;
        }
        check = extend(check, &pieces[k]);
        offset += whole_units(pieces[k].size);
    }
    return check == expected;
}

int microc_store_restore(uint32_t identity, const struct microc_piece *pieces, uint32_t count)
{
    const uint32_t size = microc_store_size(pieces, count);
    uint32_t sequence, check, k, bank = newest(identity, size, &sequence);
    for (k = 0; k < 2u && bank < 2u && size != 0u; k++) {
        if (committed(bank, identity, size, &sequence, &check) && read_pieces(bank, check, pieces, count)) {
            return MICROC_STORE_OK;
        }
        bank = 1u - bank;
    }
    return MICROC_STORE_EMPTY;
}
