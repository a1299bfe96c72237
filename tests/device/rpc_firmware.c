/* SPDX-License-Identifier: Apache-2.0 */
/* Firmware that serves the fake network of runtime_c/tests on a board. */
#include "fake_model.h"
#include "microc_port.h"

int main(void)
{
    static const struct microc_model model = {
        "fake", fake_tensors, FAKE_TENSORS, FAKE_KERNELS, 1280, "0123456789abcde", fake_run, fake_reset};
    static const struct microc_model *const models[] = {&model};
    static struct microc_rpc rpc;
    microc_port_init();
    microc_port_stack_paint();
    microc_rpc_init(&rpc, models, 1);
    return microc_rpc_serve(&rpc);
}
