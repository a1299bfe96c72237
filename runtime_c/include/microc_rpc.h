/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Remote control of compiled networks over a serial line. SPEC.md defines every byte; this header holds the limits,
 * the descriptor that generated code fills in, and the state that the firmware owns.
 *
 *     static struct microc_rpc rpc;
 *     int main(void) {
 *         microc_port_init();
 *         microc_port_stack_paint();
 *         microc_rpc_init(&rpc, models, 1);
 *         return microc_rpc_serve(&rpc);
 *     }
 */
#ifndef MICROC_RPC_H
#define MICROC_RPC_H

#include <stddef.h>
#include <stdint.h>

#include "microc_frame.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Largest payload in bytes, both ways; RAM is 2 * (this + 12). Small boards take 64. */
#ifndef MICROC_RPC_MAX_PAYLOAD
#define MICROC_RPC_MAX_PAYLOAD 256
#endif

#if MICROC_RPC_MAX_PAYLOAD < 32 || MICROC_RPC_MAX_PAYLOAD > 4096
#error "MICROC_RPC_MAX_PAYLOAD must lie in 32..4096"
#endif

#define MICROC_RPC_VERSION 1

enum microc_operation {
    MICROC_HELLO = 1,
    MICROC_MODEL = 2,
    MICROC_TENSORS = 3,
    MICROC_WRITE = 4,
    MICROC_READ = 5,
    MICROC_RUN = 6,
    MICROC_PROFILE = 7,
    MICROC_RESET = 8,
    MICROC_STATS = 9,
    MICROC_REGION = 10, /* this and the next four: firmware for tuning alone, microc_load.h */
    MICROC_LOAD = 11,   /* and firmware with slots, microc_slot.h */
    MICROC_FETCH = 12,
    MICROC_CALL = 13,
    MICROC_CHECK = 14,
    MICROC_SLOTS = 15, /* this and the next two: firmware with slots alone */
    MICROC_ERASE = 16,
    MICROC_COMMIT = 17,
    MICROC_BANK = 18, /* this and what follows: firmware that learns alone, microc_store.h */
    MICROC_BANK_READ = 19,
    MICROC_SAVE = 20,
    MICROC_RESTORE = 21,
    MICROC_CLEAR = 22,
    MICROC_REPLY = 0x80 /* or-ed to the operation in its reply */
};

enum microc_status {
    MICROC_OK = 0,
    MICROC_BAD_VERSION = -1,   /* the request speaks another protocol version */
    MICROC_BAD_SESSION = -2,   /* no hello has begun this session (the board restarted) */
    MICROC_BAD_SEQUENCE = -3,  /* neither the next request nor a repetition of the last */
    MICROC_BAD_OPERATION = -4, /* unknown operation */
    MICROC_BAD_LENGTH = -5,    /* the payload's length does not suit the operation */
    MICROC_BAD_MODEL = -6,     /* no such model */
    MICROC_BAD_TENSOR = -7,    /* no such tensor */
    MICROC_BAD_RANGE = -8,     /* bytes outside the tensor, kernels outside the model, or a reply that cannot fit */
    MICROC_BAD_COUNT = -9,     /* a repeat count of zero */
    MICROC_UNBOUND = -10,      /* the tensor has no memory yet */
    MICROC_RUN_FAILED = -11,   /* the model's run returned an error, or what was called */
    MICROC_BAD_IMAGE = -12,    /* what is to be called, or saved, is not there whole, or was overwritten; no bank holds a whole save */
    MICROC_BAD_TARGET = -13,   /* the network is of another format, core or ABI; the weights are of another network */
    MICROC_NO_ROOM = -14,      /* the network needs more flash, memory or stack than the board has for it */
    MICROC_BAD_SIGNATURE = -15, /* the firmware does not accept the network's signature */
    MICROC_SLOT_FAILED = -16   /* a slot or bank could not be read, erased or written */
};

enum microc_kind { MICROC_INPUT = 0, MICROC_OUTPUT = 1, MICROC_INTERMEDIATE = 2, MICROC_STATE = 3 };

enum microc_dtype {
    MICROC_BOOL = 0,
    MICROC_INT8 = 1,
    MICROC_UINT8 = 2,
    MICROC_INT16 = 3,
    MICROC_UINT16 = 4,
    MICROC_INT32 = 5,
    MICROC_UINT32 = 6,
    MICROC_INT64 = 7,
    MICROC_UINT64 = 8,
    MICROC_FLOAT32 = 9,
    MICROC_FLOAT64 = 10,
    MICROC_FLOAT16 = 11,
    MICROC_BFLOAT16 = 12
};

/* `kernel` of a tensor that no kernel writes. */
#define MICROC_NO_KERNEL 0xFFFFu

/* A tensor that the host may read and write. Names, shapes and scales stay on the host, in the project's manifest. */
struct microc_tensor {
    void *data;      /* first byte; NULL until the firmware binds it */
    uint32_t size;   /* in bytes */
    uint16_t kernel; /* index of the kernel after which the value is complete, or MICROC_NO_KERNEL */
    uint8_t dtype;   /* enum microc_dtype */
    uint8_t kind;    /* enum microc_kind */
};

#ifdef MICROC_RPC_STORE
struct microc_store;
#endif

/* Called after each kernel; `kernel` is its index. */
typedef void (*microc_hook)(void *user, uint32_t kernel);

/* One compiled network. Generated code defines it; everything in it may lie in flash. */
struct microc_model {
    const char *name;
    const struct microc_tensor *tensors; /* inputs, outputs, then the others, in the manifest's order */
    uint16_t tensor_count;
    uint16_t kernel_count;
    uint32_t arena_size;
    uint8_t fingerprint[16];
    /* Execute kernels first..last (both included), calling `hook` (may be NULL) after each. 0, or non-zero on failure. */
    int (*run)(uint32_t first, uint32_t last, microc_hook hook, void *user);
    /* Put state tensors back to their initial values; NULL when the network has none. */
    void (*reset)(void);
#ifdef MICROC_SELF_TEST
    /* Run samples whose outputs are known: 0 if they are as they must be. NULL when the network has none. */
    int (*self_test)(void);
#endif
#ifdef MICROC_RPC_STORE
    /* The tensors that learning changes, and their banks; NULL when the network does not learn. */
    const struct microc_store *store;
#endif
};

/* All the memory of the runtime; its members are private. */
struct microc_rpc {
    const struct microc_model *const *models;
    uint32_t frames;
    uint32_t bad_frames;
    uint32_t repeats;
    uint32_t refusals;
    struct microc_decoder decoder;
    uint16_t session;
    uint16_t reply_size;
    uint8_t sequence;
    uint8_t model_count;
#ifdef MICROC_SELF_TEST
    uint8_t self_test; /* for HELLO: 0, not run; 1, passed; 1 + k, the k-th model failed */
#endif
    uint8_t request[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
    uint8_t reply[MICROC_RPC_MAX_PAYLOAD + MICROC_FRAME_OVERHEAD];
};

#ifdef MICROC_SELF_TEST
/* Called at boot: 0 if all models passed their self-tests, else the number, from 1 on, of the first that failed. Firmware has
 * a weak one that does nothing. */
void microc_self_test_result(int result);
#endif

/* Begin without a session. `models` must outlive `rpc`. */
void microc_rpc_init(struct microc_rpc *rpc, const struct microc_model *const *models, uint8_t model_count);

/* Take bytes from the line; each complete request is executed and answered. Returns 0, or < 0 when the line is gone. */
int microc_rpc_receive(struct microc_rpc *rpc, const uint8_t *data, size_t size);

/* Serve the port until its line closes; on an MCU, for ever. Returns 0. */
int microc_rpc_serve(struct microc_rpc *rpc);

#ifdef __cplusplus
}
#endif

#endif
