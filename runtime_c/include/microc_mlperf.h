/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text protocol of MLPerf Tiny's runner, for one network: lines out, commands that end with '%' in. The runner loads the
 * input as hexadecimal digits, asks for inferences, and reads times in microseconds and results as decimal fractions. There
 * are no commands for measuring energy, which need a pin.
 *
 *     int main(void) {
 *         microc_port_init();
 *         return microc_mlperf_serve(&benchmark);
 *     }
 */
#ifndef MICROC_MLPERF_H
#define MICROC_MLPERF_H

#include "microc_rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is measured. The bytes that are loaded become the input as they are; nothing may overwrite it during a run. */
struct microc_mlperf {
    const struct microc_model *model; /* tensor 0 is the input, tensor 1 the output */
    const char *vendor;
    float scale; /* of the output: real = scale * (stored - zero_point) */
    int32_t zero_point;
    uint8_t error; /* 1: the result is the mean squared difference of output and input (both float32), not the output */
};

/* Answer commands until the line is gone. Returns 0. */
int microc_mlperf_serve(const struct microc_mlperf *benchmark);

#ifdef __cplusplus
}
#endif

#endif
