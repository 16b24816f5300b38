/* SPDX-License-Identifier: MIT */
/* A store in a directory of its own, removed afterwards. */
#ifndef TB2_TESTS_BLOCKDEV_FIXTURE_H
#define TB2_TESTS_BLOCKDEV_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"
#include "blockdev/blockdev.h"

/* Fails the test with the error's text. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s", e.text);                                                                \
    } while (0)
#define assert_class(call, wanted)                                                                 \
    do {                                                                                           \
        err_clear(&e);                                                                             \
        assert_int_equal((call), -(int)(wanted));                                                  \
        assert_int_equal(e.class, (wanted));                                                       \
        err_clear(&e);                                                                             \
    } while (0)

struct fixture {
    char path[64]; /* a fresh directory */
    struct store *store;
};

/* cmocka set-up and tear-down: *state is a struct fixture. */
int fixture_setup(void **state);
int fixture_teardown(void **state);

/* Bytes that depend on `seed` alone and do not compress. */
void fixture_fill(uint8_t *data, size_t len, uint64_t seed);

/* A fresh file of the store's temporary directory, without a name. */
int fixture_file(struct fixture *f);

#endif
