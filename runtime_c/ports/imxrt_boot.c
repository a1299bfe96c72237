/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the boot ROM of an i.MX RT10xx reads in the first 8 KiB of a serial flash: how to talk to the flash (a W25Q on four
 * lines, as on the Teensy), and where the program is. The vectors follow.
 */
#include "driver.h"

/* Instructions of the FlexSPI's sequences: operation, lines as a power of two, operand. */
#define STEP(operation, lines, operand) ((uint32_t)(operation) << 10 | (uint32_t)(lines) << 8 | (uint32_t)(operand))
#define PAIR(first, second) ((first) | (second) << 16)
#define COMMAND 1u
#define ADDRESS 2u
#define READ 9u
#define DUMMY 12u

#define FLASH_BASE 0x60000000u
#define FLASH_BYTES 0x00200000u /* that the ROM maps; the rest is reached through the same addresses */

struct flexspi_configuration {
    uint32_t tag;
    uint32_t version;
    uint32_t reserved0;
    uint32_t sampling; /* clock source, hold and set-up time */
    uint32_t reserved1[13];
    uint32_t device; /* serial NOR, four lines, clock, no sequences of its own */
    uint32_t reserved2[2];
    uint32_t bytes;
    uint32_t reserved3[11];
    uint32_t sequences[64];
    uint32_t reserved4[16];
    uint32_t page_bytes;
    uint32_t sector_bytes;
    uint32_t reserved5[14];
};

struct vector_table;
extern const struct vector_table microc_vectors;

struct boot {
    struct flexspi_configuration flexspi;
    uint8_t gap[0x1000 - sizeof(struct flexspi_configuration)];
    struct {
        uint32_t header;
        const void *entry;
        uint32_t reserved0[2];
        const void *image;
        const void *self;
        uint32_t reserved1[2];
    } table; /* image vector table */
    struct {
        uint32_t start;
        uint32_t bytes;
        uint32_t plugin;
        uint32_t reserved;
    } image;
    uint8_t end[0x1000 - 48];
};

extern const struct boot microc_boot;
__attribute__((section(".boot"), used)) const struct boot microc_boot = {
    .flexspi =
        {
            .tag = 0x42464346u, /* FCFB */
            .version = 0x56010000u,
            .sampling = 0x00020101u,
            .device = 0x00030401u,
            .bytes = FLASH_BYTES,
            .sequences =
                {
                    [0] = PAIR(STEP(COMMAND, 0, 0xEB), STEP(ADDRESS, 2, 24)), /* read */
                    [1] = PAIR(STEP(DUMMY, 2, 6), STEP(READ, 2, 4)),
                    [4] = PAIR(STEP(COMMAND, 0, 0x05), STEP(READ, 0, 4)), /* read status */
                },
            .page_bytes = 256u,
            .sector_bytes = 4096u,
        },
    .table = {.header = 0x402000D1u, .entry = &microc_vectors, .image = &microc_boot.image, .self = &microc_boot.table},
    .image = {.start = FLASH_BASE, .bytes = FLASH_BYTES},
};
