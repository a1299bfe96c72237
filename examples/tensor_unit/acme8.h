/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions of acme8 by its registers, for firmware that is compiled with -DMICROC_TENSOR_UNIT='"acme8.h"'. An instruction is
 * its operands and a number; the unit reads them in order, and puts them into the queue that they are for.
 */
#ifndef ACME8_H
#define ACME8_H

#include <stdint.h>

#define ACME8_OPERAND (*(volatile uint32_t *)0x50000000) /* the next operand */
#define ACME8_START (*(volatile uint32_t *)0x50000004)   /* the instruction that the operands are for */
#define ACME8_BUSY (*(volatile uint32_t *)0x50000008)    /* instructions that are not done */

enum { acme8_load_input, acme8_load_weight, acme8_load_sums, acme8_set, acme8_matmul, acme8_store, acme8_signal, acme8_wait };

static inline uint32_t acme8_address(const void *place)
{
    return (uint32_t)(uintptr_t)place;
}

static inline void acme8_issue(uint32_t instruction, const uint32_t *operands, int32_t count)
{
    for (int32_t n = 0; n < count; ++n) {
        ACME8_OPERAND = operands[n];
    }
    ACME8_START = instruction;
}

#define ACME8_ISSUE(instruction, count, ...) \
    do { \
        const uint32_t acme8_operands[] = {__VA_ARGS__}; \
        acme8_issue((instruction), acme8_operands, (count)); \
    } while (0)

static inline void unit_load_input(int32_t to, const int8_t *source, int32_t rows, int32_t columns, int32_t stride_to, int32_t stride_source)
{
    ACME8_ISSUE(acme8_load_input, 6, (uint32_t)to, acme8_address(source), (uint32_t)rows, (uint32_t)columns, (uint32_t)stride_to,
        (uint32_t)stride_source);
}

static inline void unit_load_weight(int32_t to, const int8_t *source, int32_t rows, int32_t columns, int32_t stride_to, int32_t stride_source)
{
    ACME8_ISSUE(acme8_load_weight, 6, (uint32_t)to, acme8_address(source), (uint32_t)rows, (uint32_t)columns, (uint32_t)stride_to,
        (uint32_t)stride_source);
}

static inline void unit_load_sums(int32_t to, const int32_t *source, int32_t rows, int32_t columns, int32_t stride_to, int32_t stride_source)
{
    ACME8_ISSUE(acme8_load_sums, 6, (uint32_t)to, acme8_address(source), (uint32_t)rows, (uint32_t)columns, (uint32_t)stride_to,
        (uint32_t)stride_source);
}

static inline void unit_set(int32_t to, int32_t value, int32_t rows, int32_t columns, int32_t stride_to)
{
    ACME8_ISSUE(acme8_set, 5, (uint32_t)to, (uint32_t)value, (uint32_t)rows, (uint32_t)columns, (uint32_t)stride_to);
}

static inline void unit_matmul(int32_t sums, int32_t input, int32_t weight, int32_t rows, int32_t columns, int32_t depth,
    int32_t stride_sums, int32_t stride_input, int32_t stride_weight)
{
    ACME8_ISSUE(acme8_matmul, 9, (uint32_t)sums, (uint32_t)input, (uint32_t)weight, (uint32_t)rows, (uint32_t)columns, (uint32_t)depth,
        (uint32_t)stride_sums, (uint32_t)stride_input, (uint32_t)stride_weight);
}

static inline void unit_store_sums(int32_t *to, int32_t source, int32_t rows, int32_t columns, int32_t stride_to, int32_t stride_source)
{
    ACME8_ISSUE(acme8_store, 6, acme8_address(to), (uint32_t)source, (uint32_t)rows, (uint32_t)columns, (uint32_t)stride_to,
        (uint32_t)stride_source);
}

static inline void unit_signal(int32_t before, int32_t after, int32_t event, int32_t count)
{
    ACME8_ISSUE(acme8_signal, 4, (uint32_t)before, (uint32_t)after, (uint32_t)event, (uint32_t)count);
}

static inline void unit_wait(int32_t before, int32_t after, int32_t event, int32_t count)
{
    ACME8_ISSUE(acme8_wait, 4, (uint32_t)before, (uint32_t)after, (uint32_t)event, (uint32_t)count);
}

static inline void unit_barrier(void)
{
    while (ACME8_BUSY != 0U) {
    }
    __asm__ volatile("" ::: "memory"); /* what it stored is read anew */
}

#endif
