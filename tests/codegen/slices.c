/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads run one network with an arena each, in slices, and must get what whole runs get. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

#define RUNS 200
#define TICKS 3u

struct task {
    uint64_t arena[(DIGITS_ARENA_SIZE + 7) / 8 + 1];
    int8_t image[DIGITS_IMAGE_SIZE];
    int8_t whole[RUNS][DIGITS_PROBABILITIES_SIZE];
    int8_t sliced[RUNS][DIGITS_PROBABILITIES_SIZE];
    unsigned seed;
    unsigned slices;
    int failed;
};

/* A clock of every thread's own: a tick per reading. */
static __thread uint32_t clock_ticks;

static uint32_t now(void)
{
    return clock_ticks++;
}

static void draw(struct task *task)
{
    for (int k = 0; k < DIGITS_IMAGE_SIZE; k++) {
        task->seed = task->seed * 1664525u + 1013904223u;
        task->image[k] = (int8_t)((int)(task->seed >> 24) - 128);
    }
}

static void *work(void *argument)
{
    struct task *task = argument;
    const struct digits_inputs inputs = {.image = task->image};
    uint32_t kernel = 0;
    digits_reset(task->arena);
    for (int run = 0; run < RUNS; run++) {
        const struct digits_outputs whole = {.probabilities = task->whole[run]};
        const struct digits_outputs sliced = {.probabilities = task->sliced[run]};
        int status;
        draw(task);
        task->failed |= digits_run(task->arena, &inputs, &whole) != DIGITS_OK;
        do {
            const uint32_t first = kernel;
            status = digits_run_slice(task->arena, &inputs, &sliced, &kernel, now, TICKS);
            task->slices += 1u;
            task->failed |= status == DIGITS_MORE && kernel - first != TICKS;
        } while (status == DIGITS_MORE);
        task->failed |= status != DIGITS_OK || kernel != 0;
    }
    return NULL;
}

int main(void)
{
    static struct task tasks[2];
    pthread_t threads[2];
    for (unsigned k = 0; k < 2; k++) {
        tasks[k].seed = k + 1u;
        if (pthread_create(&threads[k], NULL, work, &tasks[k]) != 0) {
            return 2;
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        pthread_join(threads[k], NULL);
        if (tasks[k].failed || memcmp(tasks[k].whole, tasks[k].sliced, sizeof tasks[k].whole) != 0) {
            return 1;
        }
        printf("%u slices\n", tasks[k].slices);
    }
    return memcmp(tasks[0].whole, tasks[1].whole, sizeof tasks[0].whole) == 0; /* they saw different images */
}
