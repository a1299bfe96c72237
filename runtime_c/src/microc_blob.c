/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_blob.h"

#include <string.h>

/* Offsets in the header; SPEC.md, "Blob". */
#define MAGIC 0x4E52434Du
#define AT_VERSION 4u
#define AT_SIZE 8u
#define AT_CRC 12u
#define AT_COVERED 16u /* what the CRC is of begins here */
#define AT_ABI 16u
#define AT_MEMORY 20u
#define AT_STACK 24u
#define AT_RUN 28u
#define AT_RESET 32u
#define AT_TABLE 36u
#define AT_TENSORS 40u
#define AT_KERNELS 42u
#define AT_CORE 44u
#define CORE 20u
#define AT_FINGERPRINT 64u
#define AT_NAME 80u
#define NAME (MICROC_BLOB_HEADER - AT_NAME)

/* An entry of the table of tensors. */
#define ENTRY 12u
#define MEMORY_ALIGN 16u

/* Bytes of the table that a board makes of it. */
static uint32_t table_bytes(const uint8_t *bytes)
{
    uint32_t size = microc_get16(bytes + AT_TENSORS) * (uint32_t)sizeof(struct microc_tensor);
    return (size + MEMORY_ALIGN - 1u) / MEMORY_ALIGN * MEMORY_ALIGN;
}

static int for_this_core(const uint8_t *bytes)
{
    static const char core[CORE] = MICROC_SLOT_CORE;
    return memcmp(bytes + AT_CORE, core, CORE) == 0 && microc_get32(bytes + AT_ABI) == MICROC_SLOT_ABI;
}

/* Whether an entry lies in the blob. */
static int enters(uint32_t entry, uint32_t size)
{
    return entry >= MICROC_BLOB_HEADER && entry < size;
}

/* Whether every tensor lies in the memory that the blob asks for, and the table in the blob. */
static int tensors_fit(const uint8_t *bytes, uint32_t size)
{
    uint32_t table = microc_get32(bytes + AT_TABLE);
    uint32_t count = microc_get16(bytes + AT_TENSORS);
    uint32_t memory = microc_get32(bytes + AT_MEMORY);
    uint32_t k;
    if (table < MICROC_BLOB_HEADER || table > size || count * ENTRY > size - table) {
        return 0;
    }
    for (k = 0; k < count; k++) {
        const uint8_t *entry = bytes + table + k * ENTRY;
        uint32_t offset = microc_get32(entry);
        if (offset > memory || microc_get32(entry + 4) > memory - offset) {
            return 0;
        }
    }
    return 1;
}

int microc_blob_read(const uint8_t *bytes, uint32_t size, const struct microc_slots *slots, struct microc_blob *blob)
{
    uint32_t whole, run, reset, table;
    if (size < MICROC_BLOB_HEADER || microc_get32(bytes) != MAGIC) {
        return MICROC_BAD_IMAGE;
    }
    if (microc_get32(bytes + AT_VERSION) != MICROC_BLOB_VERSION) {
        return MICROC_BAD_TARGET;
    }
    whole = microc_get32(bytes + AT_SIZE);
    if (whole < MICROC_BLOB_HEADER || whole > size) {
        return MICROC_BAD_IMAGE;
    }
    size = whole;
    if (microc_get32(bytes + AT_CRC) != microc_crc32(bytes + AT_COVERED, size - AT_COVERED)) {
        return MICROC_BAD_IMAGE;
    }
    if (!for_this_core(bytes)) {
        return MICROC_BAD_TARGET;
    }
    run = microc_get32(bytes + AT_RUN);
    reset = microc_get32(bytes + AT_RESET);
    if (!enters(run, size) || (reset != 0u && !enters(reset, size)) || !tensors_fit(bytes, size) ||
        bytes[MICROC_BLOB_HEADER - 1u] != 0u || microc_get16(bytes + AT_KERNELS) == 0u) {
        return MICROC_BAD_IMAGE;
    }
    table = table_bytes(bytes);
    if (table > slots->memory_size || microc_get32(bytes + AT_MEMORY) > slots->memory_size - table ||
        microc_get32(bytes + AT_STACK) > slots->stack_size) {
        return MICROC_NO_ROOM;
    }
    blob->bytes = bytes;
    blob->size = size;
    blob->table = table;
    blob->run = microc_port_entry(bytes + run);
    blob->reset = reset != 0u ? microc_port_entry(bytes + reset) : NULL;
    return MICROC_OK;
}

void microc_blob_describe(const struct microc_blob *blob, uint8_t *memory, struct microc_model *model)
{
    const uint8_t *bytes = blob->bytes;
    const uint8_t *entry = bytes + microc_get32(bytes + AT_TABLE);
    struct microc_tensor *tensors = (struct microc_tensor *)(void *)memory;
    uint16_t k;
    model->name = (const char *)bytes + AT_NAME;
    model->tensors = tensors;
    model->tensor_count = microc_get16(bytes + AT_TENSORS);
    model->kernel_count = microc_get16(bytes + AT_KERNELS);
    model->arena_size = microc_get32(bytes + AT_MEMORY);
    (void)memcpy(model->fingerprint, bytes + AT_FINGERPRINT, sizeof model->fingerprint);
    for (k = 0; k < model->tensor_count; k++) {
        tensors[k].data = memory + blob->table + microc_get32(entry);
        tensors[k].size = microc_get32(entry + 4);
        tensors[k].kernel = microc_get16(entry + 8);
        tensors[k].dtype = entry[10];
        tensors[k].kind = entry[11];
        entry += ENTRY;
    }
}
