/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Firmware for the host around the fake network. a[0] steers its misbehaviour: 1000000001 ends the process in the middle of
 * a run, 1000000002 makes the run take 0.4 s. Exits with 9 if a byte between the tensors changed.
 */
#define _POSIX_C_SOURCE 199309L

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_model.h"
#include "microc_port.h"

#define DIE 1000000001
#define DAWDLE 1000000002

static int run(uint32_t first, uint32_t last, microc_hook hook, void *user)
{
    int32_t order;
    memcpy(&order, fake_tensors[FAKE_A].data, sizeof order);
    if (order == DIE) {
        exit(3);
    }
    if (order == DAWDLE) {
        struct timespec pause = {0, 400000000};
        nanosleep(&pause, NULL);
    }
    return fake_run(first, last, hook, user);
}

int main(void)
{
    static const struct microc_model model = {
        "fake", fake_tensors, FAKE_TENSORS, FAKE_KERNELS, 1280, "0123456789abcde", run, fake_reset};
    static const struct microc_model *const models[] = {&model};
    static struct microc_rpc rpc;
    microc_port_init();
    microc_port_stack_paint();
    microc_rpc_init(&rpc, models, 1);
    microc_rpc_serve(&rpc);
    return fake_gaps_intact() ? 0 : 9;
}
