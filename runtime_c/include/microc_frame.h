/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames on a byte line: COBS between 0x00 delimiters, closed by the CRC-32 of zlib. SPEC.md, "Frame".
 */
#ifndef MICROC_FRAME_H
#define MICROC_FRAME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a decoded frame besides its payload: header and CRC. */
#define MICROC_FRAME_HEADER 8u
#define MICROC_FRAME_OVERHEAD (MICROC_FRAME_HEADER + 4u)

/* Collects one frame into a buffer of the caller. */
struct microc_decoder {
    uint8_t *data;
    uint16_t capacity;
    uint16_t size;  /* decoded bytes so far */
    uint8_t code;   /* of the current COBS block; 0 before the first */
    uint8_t left;   /* bytes to come in the current block */
    uint8_t failed; /* longer than `capacity`: wait for the delimiter */
};

enum microc_decoded { MICROC_FRAME_BAD = -1, MICROC_FRAME_NONE = 0, MICROC_FRAME_GOOD = 1 };

void microc_decoder_init(struct microc_decoder *decoder, uint8_t *data, uint16_t capacity);

/*
 * Take one byte from the line. GOOD: data[0 .. size - 5] is a frame whose CRC is right (its 4 bytes follow), of at least
 * MICROC_FRAME_OVERHEAD bytes. BAD: a frame ended and is lost. After either, the next byte begins another frame.
 */
enum microc_decoded microc_decoder_take(struct microc_decoder *decoder, uint8_t byte);

/* CRC-32 as zlib computes it (polynomial 0xEDB88320 reflected, initial value and final xor of all ones). */
uint32_t microc_crc32(const uint8_t *data, size_t size);

/* Extend a CRC-32 by more bytes: `crc` is that of the bytes before (0 if there are none). */
uint32_t microc_crc32_extend(uint32_t crc, const uint8_t *data, size_t size);

/* Write the CRC of data[0 .. size - 5] into the last four bytes of data[0 .. size - 1]. */
void microc_frame_seal(uint8_t *data, uint16_t size);

/* Send sealed bytes to the port as one frame, delimiters included. Returns 0, or < 0 when the line is gone. */
int microc_frame_send(const uint8_t *data, uint16_t size);

/* Little-endian fields of any alignment. */
uint16_t microc_get16(const uint8_t *data);
uint32_t microc_get32(const uint8_t *data);
void microc_put16(uint8_t *data, uint16_t value);
void microc_put32(uint8_t *data, uint32_t value);

#ifdef __cplusplus
}
#endif

#endif
