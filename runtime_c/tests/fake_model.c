/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_model.h"

#include <string.h>

/* Tensors lie in one block with gaps between them, so that a step outside one shows even within the block. */
static struct {
    uint32_t gap0[4];
    int32_t a[FAKE_ELEMENTS];
    uint32_t gap1[4];
    int32_t b[FAKE_ELEMENTS];
    uint32_t gap2[4];
    int32_t out[FAKE_ELEMENTS];
    uint32_t gap3[4];
    int32_t sum[FAKE_ELEMENTS];
    uint32_t gap4[4];
    int32_t total[FAKE_ELEMENTS];
    uint32_t gap5[4];
    uint8_t flag;
    uint8_t gap6[19];
} block;

const struct microc_tensor fake_tensors[FAKE_TENSORS] = {
    {block.a, FAKE_BYTES, MICROC_NO_KERNEL, MICROC_INT32, MICROC_INPUT},
    {block.b, FAKE_BYTES, MICROC_NO_KERNEL, MICROC_INT32, MICROC_INPUT},
    {block.out, FAKE_BYTES, FAKE_DOUBLE, MICROC_INT32, MICROC_OUTPUT},
    {block.sum, FAKE_BYTES, FAKE_ADD, MICROC_INT32, MICROC_INTERMEDIATE},
    {block.total, FAKE_BYTES, FAKE_ACCUMULATE, MICROC_INT32, MICROC_STATE},
    {&block.flag, 1, MICROC_NO_KERNEL, MICROC_BOOL, MICROC_INPUT},
    {NULL, 16, MICROC_NO_KERNEL, MICROC_FLOAT32, MICROC_INPUT},
};

/* Addition that wraps, since any bytes may be written into the inputs. */
static int32_t add(int32_t a, int32_t b)
{
    uint32_t sum = (uint32_t)a + (uint32_t)b;
    int32_t result;
    memcpy(&result, &sum, sizeof result);
    return result;
}

static void compute(uint32_t kernel)
{
    int i;
    for (i = 0; i < FAKE_ELEMENTS; i++) {
        switch (kernel) {
        case FAKE_ADD:
            block.sum[i] = add(block.a[i], block.b[i]);
            break;
        case FAKE_ACCUMULATE:
            block.total[i] = add(block.total[i], block.sum[i]);
            break;
        default:
            block.out[i] = add(block.total[i], block.total[i]);
            break;
        }
    }
}

int fake_run(uint32_t first, uint32_t last, microc_hook hook, void *user)
{
    uint32_t kernel;
    if (block.a[0] == FAKE_REFUSED) {
        return -1;
    }
    for (kernel = first; kernel <= last; kernel++) {
        compute(kernel);
        if (hook != NULL) {
            hook(user, kernel);
        }
    }
    return 0;
}

void fake_reset(void)
{
    memset(block.total, 0, sizeof block.total);
}

int fake_gaps_intact(void)
{
    static const uint8_t zeros[19];
    return memcmp(block.gap0, zeros, 16) == 0 && memcmp(block.gap1, zeros, 16) == 0 && memcmp(block.gap2, zeros, 16) == 0 &&
           memcmp(block.gap3, zeros, 16) == 0 && memcmp(block.gap4, zeros, 16) == 0 && memcmp(block.gap5, zeros, 16) == 0 &&
           memcmp(block.gap6, zeros, 19) == 0;
}
