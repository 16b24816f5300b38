/* SPDX-License-Identifier: MIT */
/* Requests to stop, and time limits of threads beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/proc.h"

enum { LONG_MS = 600000 };

static void nothing_stops_nobody(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel never;
    assert_false(cancel_is_set(NULL));
    assert_int_equal(cancel_fd(NULL), -1);
    assert_int_equal(cancel_wait_ms(NULL, 5), 5);
    assert_int_equal(cancel_wait_ms(NULL, -5), 0);
    assert_int_equal(cancel_wait_ms(NULL, INT64_MAX), 60000);
    assert_int_equal(cancel_sleep_ms(NULL, 1, &e), 0);
    assert_int_equal(cancel_limit_set(NULL, 1, &e), 0); /* nothing to hold it */
    assert_false(cancel_limit_passed(NULL));
    assert_int_equal(cancel_limited_init(&never, NULL, &e), 0);
    assert_int_equal(cancel_fd(&never), -1);
    assert_int_equal(cancel_check(&never, &e), 0);
    assert_int_equal(cancel_sleep_ms(&never, 1, &e), 0);
    cancel_limited_fini(&never);
}

static void a_request_reaches_all_of_it(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel c;
    struct cancel limited;
    assert_int_equal(cancel_init(&c, &e), 0);
    assert_int_equal(cancel_limited_init(&limited, &c, &e), 0);
    assert_int_equal(cancel_limit_set(&limited, 1, &e), 0);
    assert_int_equal(cancel_sleep_ms(&limited, LONG_MS, &e), -ERR_TIMEOUT);
    cancel_set(&c); /* counts before a limit that has passed */
    assert_int_equal(cancel_sleep_ms(&limited, LONG_MS, &e), -ERR_CANCELLED);
    assert_int_equal(cancel_check(&limited, &e), -ERR_CANCELLED);
    cancel_limited_fini(&limited);
    assert_true(cancel_is_set(&c));
    cancel_fini(&c);
}

static void a_limit_ends_what_is_waited_for(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel limited;
    assert_int_equal(cancel_limited_init(&limited, NULL, &e), 0);
    assert_int_equal(cancel_limit_set(&limited, LONG_MS, &e), 0);
    assert_int_equal(cancel_check(&limited, &e), 0);
    assert_false(cancel_limit_passed(&limited));
    assert_int_equal(cancel_limit_set(&limited, 20, &e), 0); /* instead of the first */
    assert_in_range(cancel_wait_ms(&limited, LONG_MS), 0, 20);
    const char *const hang[] = {"sleep", "1000", NULL};
    int status = 0;
    const struct proc_io io = {.timeout_ms = LONG_MS, .cancel = &limited};
    assert_int_equal(proc_run(hang, &io, &status, &e), -ERR_TIMEOUT);
    assert_true(cancel_limit_passed(&limited));
    assert_int_equal(cancel_wait_ms(&limited, LONG_MS), 0);
    assert_int_equal(cancel_limit_set(&limited, 0, &e), 0);
    assert_int_equal(cancel_check(&limited, &e), 0);
    assert_int_equal(cancel_wait_ms(&limited, 7), 7);
    cancel_limited_fini(&limited);
}

struct thread {
    const struct cancel *cancel;
    struct cancel_limit *limit; /* NULL: its own, none */
    int before;
    int after;
};

static void *look(void *self)
{
    struct thread *t = self;
    struct err e = ERR_INIT;
    t->before = cancel_check(t->cancel, &e);
    if (t->limit)
        cancel_limit_share(t->cancel, t->limit);
    t->after = cancel_sleep_ms(t->cancel, t->limit ? LONG_MS : 1, &e);
    return NULL;
}

static void limits_belong_to_threads(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel limited;
    assert_int_equal(cancel_limited_init(&limited, NULL, &e), 0);
    assert_null(cancel_limit_get(&limited));
    assert_int_equal(cancel_limit_set(&limited, 1, &e), 0);
    assert_int_equal(cancel_sleep_ms(&limited, LONG_MS, &e), -ERR_TIMEOUT);
    struct thread threads[2] = {{.cancel = &limited},
                                {.cancel = &limited, .limit = cancel_limit_get(&limited)}};
    for (size_t i = 0; i < 2; i++) {
        pthread_t id;
        assert_int_equal(pthread_create(&id, NULL, look, &threads[i]), 0);
        pthread_join(id, NULL);
        assert_int_equal(threads[i].before, 0);
        assert_int_equal(threads[i].after, i == 0 ? 0 : -ERR_TIMEOUT);
    }
    cancel_limited_fini(&limited);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_stops_nobody),
        cmocka_unit_test(a_request_reaches_all_of_it),
        cmocka_unit_test(a_limit_ends_what_is_waited_for),
        cmocka_unit_test(limits_belong_to_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
