/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A firmware that was there before the network: it samples a sensor, filters, drives a lamp. Three lines of it are new: the
 * arena, the call of reset, and the call of run. (On an emulator, printf reaches the screen by semihosting.)
 */
#include <stdint.h>
#include <stdio.h>

#include "model.h"

#define IMAGES 4

/* What the camera would give: 8 x 8 pixels from 0 to 16. */
static const char *const camera[IMAGES][8] = {
    {"..5de1..", "..dffe..", "..3.4f2.", "....2f1.", "...4f9..", "..2ff2..", "..8fffd.", "..4ccc2."},
    {"...4f2..", "...cf1..", "..4f8...", "..cf2...", ".4f8.3..", ".afdffc.", ".afd8cf.", "..8cfe6."},
    {"..7fff8.", "..fa8f8.", "..4..f4.", "....7f..", "..9ffff.", "..5fe85.", "...fa...", "..8f3..."},
    {"...5f1..", "...ff2..", "..4ff1..", "..9fe...", "..7ff...", "...ff1..", "...ff2..", "...6fb.."},
};

static uint64_t arena[(DIGITS_ARENA_SIZE + 7) / 8 + 1];

static int8_t pixel_of(char letter)
{
    int value = letter == '.' ? 0 : letter <= '9' ? letter - '0' : letter - 'a' + 10;
    return (int8_t)((value * 255 + 8) / 16 - 128);
}

/* The digit in an image, or -1 when the network is not sure. */
static int recognise(const char *const *rows)
{
    int8_t image[DIGITS_IMAGE_SIZE];
    int8_t probabilities[DIGITS_PROBABILITIES_SIZE];
    const struct digits_inputs inputs = {.image = image};
    const struct digits_outputs outputs = {.probabilities = probabilities};
    int best = 0;
    for (int k = 0; k < DIGITS_IMAGE_SIZE; k++) {
        image[k] = pixel_of(rows[k / 8][k % 8]);
    }
    if (digits_run(arena, &inputs, &outputs) != DIGITS_OK) {
        return -1;
    }
    for (int k = 1; k < DIGITS_PROBABILITIES_SIZE; k++) {
        best = probabilities[k] > probabilities[best] ? k : best;
    }
    return probabilities[best] > 0 ? best : -1;
}

int main(void)
{
    digits_reset(arena);
    for (int k = 0; k < IMAGES; k++) {
        printf("image %d: %d\n", k, recognise(camera[k]));
    }
    return 0;
}
