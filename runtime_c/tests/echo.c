/* SPDX-License-Identifier: Apache-2.0 */
/* Sends every good frame back, so that another implementation can compare; the exit code says whether any was bad. */
#include "microc_frame.h"
#include "microc_port.h"

int main(void)
{
    static uint8_t data[4096 + MICROC_FRAME_OVERHEAD];
    struct microc_decoder decoder;
    uint8_t byte;
    int bad = 0;
    microc_port_init();
    microc_decoder_init(&decoder, data, sizeof data);
    while (microc_port_read(&byte, 1) >= 0) {
        enum microc_decoded decoded = microc_decoder_take(&decoder, byte);
        if (decoded == MICROC_FRAME_BAD) {
            bad = 1;
        } else if (decoded == MICROC_FRAME_GOOD) {
            microc_frame_seal(data, decoder.size);
            (void)microc_frame_send(data, decoder.size);
        }
    }
    return bad;
}
