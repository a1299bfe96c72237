/* SPDX-License-Identifier: Apache-2.0 */
/* A network in miniature: sum = a + b; total += sum (state); out = 2 * total. */
#ifndef FAKE_MODEL_H
#define FAKE_MODEL_H

#include "microc_rpc.h"

#define FAKE_ELEMENTS 150
#define FAKE_BYTES (4u * FAKE_ELEMENTS)
#define FAKE_REFUSED (-2147483647 - 1) /* as a[0] it makes the run fail */

enum { FAKE_A, FAKE_B, FAKE_OUT, FAKE_SUM, FAKE_TOTAL, FAKE_FLAG, FAKE_UNBOUND, FAKE_TENSORS };
enum { FAKE_ADD, FAKE_ACCUMULATE, FAKE_DOUBLE, FAKE_KERNELS };

extern const struct microc_tensor fake_tensors[FAKE_TENSORS];

int fake_run(uint32_t first, uint32_t last, microc_hook hook, void *user);
void fake_reset(void);
/* Whether the bytes between the tensors are as they were. */
int fake_gaps_intact(void);

#endif
