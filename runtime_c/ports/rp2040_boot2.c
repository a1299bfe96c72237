/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second stage of the RP2040's boot: 256 bytes at the start of flash that the ROM copies to RAM, checks by the CRC at their end,
 * and runs. This one lets the core execute from any serial flash by the plain read command 03, at a quarter of 125 MHz, and
 * starts the program behind it:
 *
 *     ldr r3, =0x18000000        // the SSI
 *     movs r1, #0
 *     str r1, [r3, #0x08]        // SSIENR: off
 *     movs r1, #4
 *     str r1, [r3, #0x14]        // BAUDR
 *     ldr r1, =0x001F0300
 *     str r1, [r3, #0x00]        // CTRLR0: words of 32 bits, read after sending
 *     movs r1, #0
 *     str r1, [r3, #0x04]        // CTRLR1: one word at a time
 *     ldr r1, =0x03000218
 *     ldr r0, =0x180000F4
 *     str r1, [r0]               // SPI_CTRLR0: command 03, address of 24 bits, one line
 *     movs r1, #1
 *     str r1, [r3, #0x08]        // SSIENR: on
 *     ldr r0, =0x10000100        // the vectors
 *     ldr r1, =0xE000ED08        // VTOR
 *     str r0, [r1]
 *     ldmia r0!, {r1, r2}
 *     msr msp, r1
 *     bx r2
 */
#include "driver.h"

extern const uint32_t microc_boot2[64];
__attribute__((section(".boot"), used)) const uint32_t microc_boot2[64] = {
    0x21004B0Au, 0x21046099u, 0x49096159u, 0x21006019u, 0x49086059u, 0x60014808u,
    0x60992101u, 0x49084807u, 0xC8066008u, 0x8808F381u, 0x46C04710u, 0x18000000u,
    0x001F0300u, 0x03000218u, 0x180000F4u, 0x10000100u, 0xE000ED08u, 0x00000000u,
    [63] = 0x0A4B45CEu, /* CRC-32, polynomial 04C11DB7, from FFFFFFFF, highest bit first */
};
