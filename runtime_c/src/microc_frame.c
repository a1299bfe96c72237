/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_frame.h"

#include "microc_port.h"

uint16_t microc_get16(const uint8_t *data)
{
    return (uint16_t)((unsigned)data[0] | (unsigned)data[1] << 8);
}

uint32_t microc_get32(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

void microc_put16(uint8_t *data, uint16_t value)
{
    data[0] = (uint8_t)(value & 0xFFu);
    data[1] = (uint8_t)(value >> 8);
}

void microc_put32(uint8_t *data, uint32_t value)
{
    microc_put16(data, (uint16_t)(value & 0xFFFFu));
    microc_put16(data + 2, (uint16_t)(value >> 16));
}

uint32_t microc_crc32_extend(uint32_t crc, const uint8_t *data, size_t size)
{
    /* Four bits a step: 64 bytes of table instead of 1024, half the time of single bits. */
    static const uint32_t table[16] = {0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u,
                                       0x4DB26158u, 0x5005713Cu, 0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu,
                                       0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu};
    size_t i;
    crc = ~crc;
    for (i = 0; i < size; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ table[crc & 15u];
        crc = crc >> 4 ^ table[crc & 15u];
    }
    return ~crc;
}

uint32_t microc_crc32(const uint8_t *data, size_t size)
{
    return microc_crc32_extend(0, data, size);
}

void microc_decoder_init(struct microc_decoder *decoder, uint8_t *data, uint16_t capacity)
{
    decoder->data = data;
    decoder->capacity = capacity;
    decoder->size = 0;
    decoder->code = 0;
    decoder->left = 0;
    decoder->failed = 0;
}

static void append(struct microc_decoder *decoder, uint8_t byte)
{
    if (decoder->size < decoder->capacity) {
        decoder->data[decoder->size++] = byte;
    } else {
        decoder->failed = 1;
    }
}

static enum microc_decoded finish(const struct microc_decoder *decoder)
{
    uint16_t size = decoder->size;
    if (decoder->code == 0) {
        return MICROC_FRAME_NONE; /* two delimiters in a row */
    }
    if (decoder->failed || decoder->left != 0 || size < MICROC_FRAME_OVERHEAD) {
        return MICROC_FRAME_BAD;
    }
    size = (uint16_t)(size - 4u);
    return microc_crc32(decoder->data, size) == microc_get32(decoder->data + size) ? MICROC_FRAME_GOOD : MICROC_FRAME_BAD;
}

enum microc_decoded microc_decoder_take(struct microc_decoder *decoder, uint8_t byte)
{
    enum microc_decoded outcome = MICROC_FRAME_NONE;
    if (byte == 0) {
        uint16_t size = decoder->size;
        outcome = finish(decoder);
        microc_decoder_init(decoder, decoder->data, decoder->capacity);
        if (outcome == MICROC_FRAME_GOOD) {
            decoder->size = size;
        }
        return outcome;
    }
    if (decoder->code == 0) {
        decoder->size = 0;
    }
    if (decoder->left != 0) {
        append(decoder, byte);
        decoder->left--;
        return outcome;
    }
    if (decoder->code != 0 && decoder->code != 0xFFu) {
        append(decoder, 0); /* the zero that the block before stood for */
    }
    decoder->code = byte;
    decoder->left = (uint8_t)(byte - 1u);
    return outcome;
}

void microc_frame_seal(uint8_t *data, uint16_t size)
{
    uint16_t covered = (uint16_t)(size - 4u);
    microc_put32(data + covered, microc_crc32(data, covered));
}

/* Bytes before the next zero, at most the 254 that one block may hold. */
static size_t block_length(const uint8_t *data, size_t size)
{
    size_t length = 0;
    while (length < size && length < 254u && data[length] != 0) {
        length++;
    }
    return length;
}

int microc_frame_send(const uint8_t *data, uint16_t size)
{
    static const uint8_t delimiter = 0;
    size_t left = size;
    int lost = microc_port_write(&delimiter, 1); /* ends whatever noise came before */
    for (;;) {
        size_t length = block_length(data, left);
        uint8_t code = (uint8_t)(length + 1u);
        lost |= microc_port_write(&code, 1);
        lost |= microc_port_write(data, length);
        data += length;
        left -= length;
        if (left == 0) {
            break;
        }
        if (length < 254u) { /* a zero ended the block; a last zero leaves an empty block to send */
            data++;
            left--;
        }
    }
    lost |= microc_port_write(&delimiter, 1);
    return lost;
}
