/* SPDX-License-Identifier: MIT */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/channel/console.h"
#include "base/file.h"
#include "base/mem.h"

struct fixture {
    char path[64];
    int dir;
    int writer;
    struct console *console;
};

static void start(struct fixture *f)
{
    struct err e = ERR_INIT;
    int fds[2];
    snprintf(f->path, sizeof(f->path), "/tmp/tb2-console-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    assert_int_equal(file_open(&f->dir, AT_FDCWD, f->path, O_RDONLY | O_DIRECTORY, 0, &e), 0);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    f->writer = fds[1];
    assert_int_equal(console_start(&f->console, fds[0], f->dir, "log", &e), 0);
}

/* Ends the input and takes the log in. */
static void finish(struct fixture *f, struct buf *log, char *tail, size_t tail_len)
{
    struct err e = ERR_INIT;
    file_close(&f->writer);
    console_drain(f->console, 10000);
    (void)console_tail(f->console, tail, tail_len);
    console_free(f->console);
    buf_init(log, CONSOLE_FILE_MAX);
    assert_int_equal(file_read(f->dir, "log", log, &e), 0);
    file_close(&f->dir);
    assert_int_equal(file_remove_tree(AT_FDCWD, f->path, &e), 0);
}

static void test_copies(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = ERR_INIT;
    char tail[64];
    AUTO_BUF struct buf log;
    start(&f);
    assert_int_equal(file_write_full(f.writer, "one\ntw\0o\n", 9, &e), 0);
    finish(&f, &log, tail, sizeof(tail));
    assert_int_equal(log.len, 9);
    assert_string_equal(tail, "one\ntw?o\n");
}

static void test_bounded(void **state)
{
    (void)state;
    struct fixture f;
    struct err e = ERR_INIT;
    static char tail[CONSOLE_TAIL_LEN + 1];
    AUTO_BUF struct buf log;
    start(&f);
    char line[101];
    for (unsigned i = 0; i < 3 * CONSOLE_FILE_MAX / 100; i++) {
        snprintf(line, sizeof(line), "%099u\n", i);
        assert_int_equal(file_write_full(f.writer, line, 100, &e), 0);
    }
    finish(&f, &log, tail, sizeof(tail));
    assert_in_range(log.len, CONSOLE_TAIL_LEN, CONSOLE_FILE_MAX);
    assert_int_equal(strlen(tail), CONSOLE_TAIL_LEN);
    assert_memory_equal(log.data + log.len - CONSOLE_TAIL_LEN, tail, CONSOLE_TAIL_LEN);
    assert_memory_equal(tail + CONSOLE_TAIL_LEN - 100, line, 100);
}

static void test_summary(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned lines;
        const char *expected;
    } cases[] = {
        {"", 3, ""},
        {"\n\n", 3, ""},
        {"one", 3, "one"},
        {"one\r\ntwo\r\n", 3, "one | two"},
        {"one\ntwo\nthree\nfour\n\n", 2, "three | four"},
        {"a\tb\x1b[2Jc\xff\n", 1, "a?b?[2Jc?"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char out[64];
        console_summary(cases[i].text, cases[i].lines, out, sizeof(out));
        assert_string_equal(out, cases[i].expected);
    }
    char small[6];
    console_summary("ab\ncdef", 2, small, sizeof(small));
    assert_string_equal(small, "ab");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_bounded),
                                       cmocka_unit_test(test_summary)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
