/* SPDX-License-Identifier: MIT */
/* The front door: ranges, read-only devices, counters, one log line for each kind of error. */
#include "fixture.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "memdev.h"

enum { SIZE = 64 << 10 };

static void refuses_bad_ranges(void **state)
{
    (void)state;
    static const struct {
        uint64_t off;
        size_t len;
        int rc;
    } cases[] = {
        {0, SIZE, 0},
        {SIZE - 1, 1, 0},
        {1, SIZE - 1, 0},
        {SIZE, 0, 0},
        {SIZE, 1, -EINVAL},
        {SIZE - 1, 2, -EINVAL},
        {UINT64_MAX, 1, -EINVAL},
        {UINT64_MAX - 3, 8, -EINVAL},
        {1, SIZE_MAX, -EINVAL},
    };
    AUTO_BDEV struct bdev *d = memdev_new(SIZE, true);
    static uint8_t data[SIZE];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(bdev_read(d, data, cases[i].len, cases[i].off), cases[i].rc);
        assert_int_equal(bdev_write(d, data, cases[i].len, cases[i].off), cases[i].rc);
        assert_int_equal(bdev_discard(d, cases[i].len, cases[i].off), cases[i].rc);
    }
}

static void refuses_writes_without_write(void **state)
{
    (void)state;
    AUTO_BDEV struct bdev *d = memdev_new(SIZE, false);
    assert_int_equal(bdev_write(d, "x", 1, 0), -EROFS);
    assert_int_equal(bdev_discard(d, 1, 0), -EROFS);
    assert_int_equal(bdev_flush(d), 0);
}

static void discards_by_writing_zeros(void **state)
{
    (void)state;
    AUTO_BDEV struct bdev *d = memdev_new(300 << 10, true);
    uint8_t *bytes = memdev_bytes(d);
    memset(bytes, 7, 300 << 10);
    assert_int_equal(bdev_discard(d, (300 << 10) - 2, 1), 0);
    assert_int_equal(bytes[0], 7);
    assert_int_equal(bytes[(300 << 10) - 1], 7);
    for (size_t i = 1; i < (300 << 10) - 1; i++)
        assert_int_equal(bytes[i], 0);
    uint64_t run;
    assert_int_equal(bdev_content(d, 100, 5, &run), BDEV_DATA);
    assert_int_equal(run, 100);
}

static void count_line(void *ctx, enum log_level level, const char *module, const char *message)
{
    (void)level;
    (void)module;
    assert_non_null(strstr(message, "Input/output error"));
    ++*(int *)ctx;
}

static void counts_all_and_logs_once(void **state)
{
    (void)state;
    int lines = 0;
    log_set_sink(count_line, &lines, LOG_DEBUG);
    AUTO_BDEV struct bdev *d = memdev_new(SIZE, true);
    uint8_t data[512] = {0};
    assert_int_equal(bdev_read(d, data, 512, 0), 0);
    assert_int_equal(bdev_write(d, data, 100, 0), 0);
    memdev_fail(d, EIO);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(bdev_read(d, data, 512, 0), -EIO);
        assert_int_equal(bdev_write(d, data, 512, 0), -EIO);
        assert_int_equal(bdev_flush(d), -EIO);
    }
    assert_int_equal(lines, 3);
    d->nested = true;
    assert_int_equal(bdev_discard(d, 512, 0), -EIO);
    assert_int_equal(lines, 3);
    log_set_sink(NULL, NULL, LOG_ERROR);

    struct bdev_stats stats = bdev_stats(d);
    assert_int_equal(stats.reads, 4);
    assert_int_equal(stats.writes, 4);
    assert_int_equal(stats.flushes, 3);
    assert_int_equal(stats.discards, 1);
    assert_int_equal(stats.bytes_read, 512);
    assert_int_equal(stats.bytes_written, 100);
    assert_int_equal(stats.errors, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_bad_ranges),
        cmocka_unit_test(refuses_writes_without_write),
        cmocka_unit_test(discards_by_writing_zeros),
        cmocka_unit_test(counts_all_and_logs_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
