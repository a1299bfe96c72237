/* SPDX-License-Identifier: Apache-2.0 */
/* A program that calls functions for whom it talks to: it reads which one, how many bytes and where in them the parameters lie,
 * then the bytes, and answers with what they are after the call. */
#include <stdint.h>
#include <unistd.h>

#define MOST_PARAMETERS 64
#define MOST_BYTES (1 << 24)

void call_entry(int32_t number, uint8_t *const *p);

static uint8_t memory[MOST_BYTES] __attribute__((aligned(64)));

static int take(void *to, uint32_t count)
{
    for (uint32_t k = 0; k < count;) {
        const ssize_t got = read(0, (uint8_t *)to + k, count - k);
        if (got <= 0) {
            return 0;
        }
        k += (uint32_t)got;
    }
    return 1;
}

int main(void)
{
    struct {
        int32_t number;
        uint32_t bytes;
        uint32_t places[MOST_PARAMETERS];
    } asked;
    while (take(&asked, sizeof asked) && asked.bytes <= MOST_BYTES && take(memory, asked.bytes)) {
        uint8_t *p[MOST_PARAMETERS];
        for (int k = 0; k < MOST_PARAMETERS; ++k) {
            p[k] = &memory[asked.places[k]];
        }
        call_entry(asked.number, p);
        for (uint32_t k = 0; k < asked.bytes;) {
            const ssize_t given = write(1, &memory[k], asked.bytes - k);
            if (given <= 0) {
                return 1;
            }
            k += (uint32_t)given;
        }
    }
    return 0;
}
