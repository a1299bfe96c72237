/* SPDX-License-Identifier: Apache-2.0 */
/* The block by which the RP2350's boot ROM knows a program: an image definition of one item, somewhere in its first 4 KiB. */
#include "driver.h"

#define BLOCK_START 0xFFFFDED3u
#define BLOCK_END 0xAB123579u
#define LAST_ITEM 0x000001FFu /* one word of items before it */
#ifdef __riscv
#define EXECUTABLE 0x11010142u /* for RISC-V on an RP2350 */
#else
#define EXECUTABLE 0x10210142u /* secure, for Arm on an RP2350 */
#endif

extern const uint32_t microc_image[5];
__attribute__((section(".image"), used)) const uint32_t microc_image[5] = {BLOCK_START, EXECUTABLE, LAST_ITEM, 0u, BLOCK_END};
