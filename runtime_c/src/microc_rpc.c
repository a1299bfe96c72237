/* SPDX-License-Identifier: Apache-2.0 */
#include "microc_rpc.h"

#include <string.h>

#include "microc_load.h"
#include "microc_port.h"
#ifdef MICROC_PORT_CORES
#include "microc_cores.h"
#endif
#ifdef MICROC_RPC_SLOTS
#include "microc_slot.h"
#endif
#ifdef MICROC_RPC_STORE
#include "microc_store.h"
#endif

#if defined(MICROC_RPC_LOAD) && defined(MICROC_RPC_SLOTS)
#error "firmware takes networks or code for tuning: CALL would run what no signature covers"
#endif

/* Offsets in the frame's header; SPEC.md, "Header". */
#define AT_VERSION 0u
#define AT_OPERATION 1u
#define AT_SESSION 2u
#define AT_SEQUENCE 4u
#define AT_MODEL 5u /* in a request; in a reply: */
#define AT_STATUS 5u
#define AT_LENGTH 6u
#define AT_PAYLOAD MICROC_FRAME_HEADER

#define TENSOR_ENTRY 8u
#define WRITE_HEADER 6u

/* Executes a call. Returns the bytes of `answer` it has written, or a negative enum microc_status. */
typedef int (*handler)(const struct microc_call *call);

static int hello(const struct microc_call *call)
{
    microc_put16(call->answer, MICROC_RPC_MAX_PAYLOAD);
    call->answer[2] = call->rpc->model_count;
#ifdef MICROC_SELF_TEST
    call->answer[3] = call->rpc->self_test;
#else
    call->answer[3] = 0;
#endif
    microc_put32(call->answer + 4, MICROC_PORT_TICK_HZ);
    return 8;
}

static int describe_model(const struct microc_call *call)
{
    const struct microc_model *model = call->model;
    int size = 24;
    const char *letter = model->name;
    (void)memcpy(call->answer, model->fingerprint, sizeof model->fingerprint);
    microc_put32(call->answer + 16, model->arena_size);
    microc_put16(call->answer + 20, model->tensor_count);
    microc_put16(call->answer + 22, model->kernel_count);
    while (*letter != '\0' && size < MICROC_RPC_MAX_PAYLOAD) {
        call->answer[size++] = (uint8_t)*letter++;
    }
    return size;
}

static int list_tensors(const struct microc_call *call)
{
    uint32_t index = microc_get16(call->payload);
    uint16_t size = 0;
    if (index > call->model->tensor_count) {
        return MICROC_BAD_TENSOR;
    }
    while (index < call->model->tensor_count && size + TENSOR_ENTRY <= MICROC_RPC_MAX_PAYLOAD) {
        const struct microc_tensor *tensor = &call->model->tensors[index++];
        uint8_t *entry = call->answer + size;
        microc_put32(entry, tensor->size);
        microc_put16(entry + 4, tensor->kernel);
        entry[6] = tensor->dtype;
        entry[7] = tensor->kind;
        size = (uint16_t)(size + TENSOR_ENTRY);
    }
    return (int)size;
}

/* The only place that makes an address of a tensor's bytes: `size` bytes from the offset in the payload on. */
static int find_bytes(const struct microc_call *call, uint16_t size, uint8_t **bytes)
{
    uint16_t index = microc_get16(call->payload);
    uint32_t offset = microc_get32(call->payload + 2);
    const struct microc_tensor *tensor;
    if (index >= call->model->tensor_count) {
        return MICROC_BAD_TENSOR;
    }
    tensor = &call->model->tensors[index];
    if (tensor->data == NULL) {
        return MICROC_UNBOUND;
    }
    if (offset > tensor->size || size > tensor->size - offset) {
        return MICROC_BAD_RANGE;
    }
    *bytes = (uint8_t *)tensor->data + offset;
    return MICROC_OK;
}

static int write_tensor(const struct microc_call *call)
{
    uint16_t size = (uint16_t)(call->size - WRITE_HEADER);
    uint8_t *bytes;
    int status = find_bytes(call, size, &bytes);
    if (status == MICROC_OK) {
        (void)memcpy(bytes, call->payload + WRITE_HEADER, size);
    }
    return status;
}

static int read_tensor(const struct microc_call *call)
{
    uint16_t size = microc_get16(call->payload + 6);
    uint8_t *bytes;
    int status = find_bytes(call, size, &bytes);
    if (status != MICROC_OK) {
        return status;
    }
    if (size > MICROC_RPC_MAX_PAYLOAD) {
        return MICROC_BAD_RANGE;
    }
    (void)memcpy(call->answer, bytes, size);
    return (int)size;
}

static int kernels_exist(const struct microc_call *call)
{
    uint16_t first = microc_get16(call->payload);
    uint16_t last = microc_get16(call->payload + 2);
    return first <= last && last < call->model->kernel_count;
}

static int run(const struct microc_call *call)
{
    uint16_t first = microc_get16(call->payload);
    uint16_t last = microc_get16(call->payload + 2);
    uint32_t repeat = microc_get32(call->payload + 4);
    uint32_t least = 0xFFFFFFFFu;
    uint32_t most = 0;
    uint64_t sum = 0;
    if (!kernels_exist(call)) {
        return MICROC_BAD_RANGE;
    }
    if (repeat == 0) {
        return MICROC_BAD_COUNT;
    }
    while (repeat-- != 0) {
        uint32_t begin = microc_port_ticks();
        int failed = call->model->run(first, last, NULL, NULL);
        uint32_t ticks = microc_port_ticks() - begin;
        if (failed != 0) {
            return MICROC_RUN_FAILED;
        }
        least = ticks < least ? ticks : least;
        most = ticks > most ? ticks : most;
        sum += ticks;
    }
    microc_put32(call->answer, least);
    microc_put32(call->answer + 4, most);
    microc_put32(call->answer + 8, (uint32_t)(sum & 0xFFFFFFFFu));
    microc_put32(call->answer + 12, (uint32_t)(sum >> 32));
    return 16;
}

struct profile {
    uint8_t *entry; /* of the kernel under execution */
    const uint8_t *end;
    uint32_t begin; /* its first tick */
};

static void take_time(void *user, uint32_t kernel)
{
    struct profile *profile = user;
    uint32_t now = microc_port_ticks();
    (void)kernel;
    if (profile->entry != profile->end) {
        microc_put32(profile->entry, now - profile->begin);
        profile->entry += 4;
    }
    profile->begin = microc_port_ticks();
}

static int profile_kernels(const struct microc_call *call)
{
    uint16_t first = microc_get16(call->payload);
    uint16_t last = microc_get16(call->payload + 2);
    uint32_t size = 4u * ((uint32_t)last - first + 1u);
    struct profile profile;
    if (!kernels_exist(call) || size > MICROC_RPC_MAX_PAYLOAD) {
        return MICROC_BAD_RANGE;
    }
    (void)memset(call->answer, 0, (size_t)size);
    profile.entry = call->answer;
    profile.end = call->answer + size;
    profile.begin = microc_port_ticks();
    return call->model->run(first, last, take_time, &profile) ? MICROC_RUN_FAILED : (int)size;
}

static int reset(const struct microc_call *call)
{
    if (call->model->reset != NULL) {
        call->model->reset();
    }
    return 0;
}

static int tell_statistics(const struct microc_call *call)
{
    microc_put32(call->answer, microc_port_stack_used());
    microc_put32(call->answer + 4, call->rpc->frames);
    microc_put32(call->answer + 8, call->rpc->bad_frames);
    microc_put32(call->answer + 12, call->rpc->repeats);
    microc_put32(call->answer + 16, call->rpc->refusals);
#ifdef MICROC_PORT_CORES
    microc_put32(call->answer + 20, microc_port_fork_stack_used());
    return 24;
#else
    return 20;
#endif
}

/* Indexed by operation; the handle of an operation that this firmware lacks is NULL. A payload has `size` bytes, or as many at
 * least when `open`. */
static const struct {
    handler handle;
    uint8_t size;
    uint8_t open;
    uint8_t needs_model;
} operations[] = {
    [MICROC_HELLO] = {hello, 0, 0, 0},
    [MICROC_MODEL] = {describe_model, 0, 0, 1},
    [MICROC_TENSORS] = {list_tensors, 2, 0, 1},
    [MICROC_WRITE] = {write_tensor, WRITE_HEADER, 1, 1},
    [MICROC_READ] = {read_tensor, 8, 0, 1},
    [MICROC_RUN] = {run, 8, 0, 1},
    [MICROC_PROFILE] = {profile_kernels, 4, 0, 1},
    [MICROC_RESET] = {reset, 0, 0, 1},
    [MICROC_STATS] = {tell_statistics, 0, 0, 0},
#ifdef MICROC_RPC_LOAD
    [MICROC_REGION] = {microc_load_region, 0, 0, 0},
    [MICROC_LOAD] = {microc_load_bytes, MICROC_LOAD_HEADER, 1, 0},
    [MICROC_FETCH] = {microc_load_fetch, MICROC_FETCH_REQUEST, 0, 0},
    [MICROC_CALL] = {microc_load_call, MICROC_CALL_HEADER, 1, 0},
    [MICROC_CHECK] = {microc_load_check, MICROC_CHECK_REQUEST, 0, 0},
#endif
#ifdef MICROC_RPC_SLOTS
    [MICROC_LOAD] = {microc_slot_load, MICROC_LOAD_HEADER, 1, 0},
    [MICROC_SLOTS] = {microc_slot_tell, 0, 0, 0},
    [MICROC_ERASE] = {microc_slot_erase, MICROC_ERASE_REQUEST, 0, 0},
    [MICROC_COMMIT] = {microc_slot_commit, MICROC_COMMIT_REQUEST, 0, 0},
#endif
#ifdef MICROC_RPC_STORE
    [MICROC_BANK] = {microc_store_describe_bank, MICROC_BANK_REQUEST, 0, 1},
    [MICROC_BANK_READ] = {microc_store_read_bank, MICROC_BANK_READ_REQUEST, 0, 1},
    [MICROC_SAVE] = {microc_store_save_tensors, MICROC_SAVE_REQUEST, 0, 1},
    [MICROC_RESTORE] = {microc_store_restore_tensors, 0, 0, 1},
    [MICROC_CLEAR] = {microc_store_clear_banks, 0, 0, 1},
#endif
};

static int execute(struct microc_rpc *rpc, uint16_t size)
{
    uint8_t index = rpc->request[AT_OPERATION];
    uint8_t model = rpc->request[AT_MODEL];
    struct microc_call call;
    if (index >= sizeof operations / sizeof operations[0] || operations[index].handle == NULL) {
        return MICROC_BAD_OPERATION;
    }
    if (size < operations[index].size || (size > operations[index].size && !operations[index].open)) {
        return MICROC_BAD_LENGTH;
    }
    if (operations[index].needs_model && model >= rpc->model_count) {
        return MICROC_BAD_MODEL;
    }
    call.rpc = rpc;
    call.model = operations[index].needs_model ? rpc->models[model] : NULL;
    call.payload = rpc->request + AT_PAYLOAD;
    call.size = size;
    call.answer = rpc->reply + AT_PAYLOAD;
    return operations[index].handle(&call);
}

/* Make `frame`, whose payload of `size` bytes is in place, a sealed reply to the request. Returns its size. */
static uint16_t make_reply(const struct microc_rpc *rpc, uint8_t *frame, int status, uint16_t size)
{
    uint16_t whole = (uint16_t)(size + MICROC_FRAME_OVERHEAD);
    (void)memcpy(frame, rpc->request, MICROC_FRAME_HEADER);
    frame[AT_VERSION] = MICROC_RPC_VERSION;
    frame[AT_OPERATION] |= MICROC_REPLY;
    frame[AT_STATUS] = (uint8_t)status;
    microc_put16(frame + AT_LENGTH, size);
    microc_frame_seal(frame, whole);
    return whole;
}

/* Whether the request may be executed: MICROC_OK, or why not. Begins a session on a hello that asks for another one. */
static int admit(struct microc_rpc *rpc)
{
    uint16_t session = microc_get16(rpc->request + AT_SESSION);
    uint8_t sequence = rpc->request[AT_SEQUENCE];
    if (rpc->request[AT_VERSION] != MICROC_RPC_VERSION) {
        return MICROC_BAD_VERSION;
    }
    if (rpc->request[AT_OPERATION] == MICROC_HELLO && session != 0 && session != rpc->session) {
        rpc->session = session;
        rpc->sequence = (uint8_t)(sequence - 1u);
    }
    if (session == 0 || session != rpc->session) {
        return MICROC_BAD_SESSION;
    }
    return sequence == (uint8_t)(rpc->sequence + 1u) ? MICROC_OK : MICROC_BAD_SEQUENCE;
}

static int is_repetition(const struct microc_rpc *rpc)
{
    return rpc->session != 0 && rpc->request[AT_VERSION] == MICROC_RPC_VERSION &&
           microc_get16(rpc->request + AT_SESSION) == rpc->session && rpc->request[AT_SEQUENCE] == rpc->sequence;
}

/* Answer the sealed frame of `size` bytes, if it is a request of whatever version. */
static int answer(struct microc_rpc *rpc, uint16_t size)
{
    uint16_t length = (uint16_t)(size - MICROC_FRAME_OVERHEAD);
    int outcome;
    if ((rpc->request[AT_OPERATION] & MICROC_REPLY) != 0) {
        return 0; /* a reply, perhaps our own by an echo: to answer it would never end */
    }
    rpc->frames++;
    if (is_repetition(rpc) != 0) {
        rpc->repeats++;
        return microc_frame_send(rpc->reply, rpc->reply_size);
    }
    outcome = admit(rpc);
    if (outcome != MICROC_OK) {
        /* Built apart, so that a stray frame cannot replace the kept reply. */
        uint8_t refusal[MICROC_FRAME_OVERHEAD];
        rpc->refusals++;
        return microc_frame_send(refusal, make_reply(rpc, refusal, outcome, 0));
    }
    rpc->sequence++;
    outcome = microc_get16(rpc->request + AT_LENGTH) == length ? execute(rpc, length) : MICROC_BAD_LENGTH;
    if (outcome < 0) {
        rpc->refusals++;
        rpc->reply_size = make_reply(rpc, rpc->reply, outcome, 0);
    } else {
        rpc->reply_size = make_reply(rpc, rpc->reply, MICROC_OK, (uint16_t)outcome);
    }
    return microc_frame_send(rpc->reply, rpc->reply_size);
}

void microc_rpc_init(struct microc_rpc *rpc, const struct microc_model *const *models, uint8_t model_count)
{
    (void)memset(rpc, 0, sizeof *rpc);
    rpc->models = models;
    rpc->model_count = model_count;
    microc_decoder_init(&rpc->decoder, rpc->request, sizeof rpc->request);
}

int microc_rpc_receive(struct microc_rpc *rpc, const uint8_t *data, size_t size)
{
    int lost = 0;
    size_t i;
    for (i = 0; i < size; i++) {
        enum microc_decoded decoded = microc_decoder_take(&rpc->decoder, data[i]);
        if (decoded == MICROC_FRAME_GOOD) {
            lost |= answer(rpc, rpc->decoder.size);
        } else if (decoded == MICROC_FRAME_BAD) {
            rpc->bad_frames++;
        } else {
            /* in the middle of a frame */
        }
    }
    return lost;
}

int microc_rpc_serve(struct microc_rpc *rpc)
{
    uint8_t chunk[16];
    for (;;) {
        int count = microc_port_read(chunk, sizeof chunk);
        if (count < 0 || (count > 0 && microc_rpc_receive(rpc, chunk, (size_t)count) < 0)) {
            return 0;
        }
    }
}
