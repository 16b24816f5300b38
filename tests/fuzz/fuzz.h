/* SPDX-License-Identifier: MIT */
/*
 * A fuzz target is one function that takes hostile bytes. libFuzzer calls it with inputs of its own
 * making (./dev fuzz TARGET); replay.c calls it with the files in seeds/TARGET and found/TARGET, in
 * every test run and with any compiler. A target aborts where a promise is broken.
 */
#ifndef TB2_FUZZ_FUZZ_H
#define TB2_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* libFuzzer's name for it; always returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the code under test. */
#define PROMISE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A call either succeeds, or has set an error whose class it returns. */
#define PROMISE_ERROR(rc, e)                                                                       \
    PROMISE((rc) == 0 ? (e)->class == ERR_NONE : (rc) == -(int)(e)->class && (e)->text[0] != '\0')

#endif
