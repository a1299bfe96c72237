/* SPDX-License-Identifier: Apache-2.0 */
/* Checks for the C tests, and a port in memory. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                     \
    do {                                                                     \
        if (!(condition)) {                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

#endif
