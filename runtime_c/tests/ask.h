/* SPDX-License-Identifier: Apache-2.0 */
/* A board in memory that is asked: one request, and the status of its only reply. For a test's one file. */
#ifndef ASK_H
#define ASK_H

#include <string.h>

#include "check.h"
#include "memory_port.h"
#include "microc_rpc.h"

static struct microc_rpc rpc;
static uint8_t sequence;
static uint8_t reply[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
static const uint8_t *const answer = reply + MICROC_FRAME_HEADER;

/* A request of session 5; returns the status of its only reply. */
static int ask(unsigned operation, const uint8_t *payload, uint16_t size)
{
    uint8_t frame[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
    static uint8_t line[1u << 12];
    uint16_t whole = (uint16_t)(size + MICROC_FRAME_OVERHEAD);
    struct microc_decoder decoder;
    size_t line_size, i;
    int replies = 0;
    frame[0] = MICROC_RPC_VERSION;
    frame[1] = (uint8_t)operation;
    microc_put16(frame + 2, 5);
    frame[4] = ++sequence;
    frame[5] = 0;
    microc_put16(frame + 6, size);
    if (size != 0) {
        memcpy(frame + MICROC_FRAME_HEADER, payload, size);
    }
    microc_frame_seal(frame, whole);
    memory_sent_size = 0;
    CHECK(microc_frame_send(frame, whole) == 0);
    line_size = memory_sent_size;
    memcpy(line, memory_sent, line_size);
    memory_sent_size = 0;
    CHECK(microc_rpc_receive(&rpc, line, line_size) == 0);
    microc_decoder_init(&decoder, reply, sizeof reply);
    for (i = 0; i < memory_sent_size; i++) {
        replies += microc_decoder_take(&decoder, memory_sent[i]) == MICROC_FRAME_GOOD;
    }
    CHECK(replies == 1);
    return reply[5] > 127 ? reply[5] - 256 : reply[5];
}

#endif
