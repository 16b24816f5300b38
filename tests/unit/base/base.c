/* SPDX-License-Identifier: MIT */
/* The small parts of base: errors, buffers, digests, JSON, files, processes, the pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/io.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/proc.h"
#include "base/text.h"

static void error_text_grows_in_front(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    assert_int_equal(err_set(&e, ERR_CORRUPT, "byte %d", 7), -ERR_CORRUPT);
    assert_int_equal(err_in(&e, "layer %s", "x"), -ERR_CORRUPT);
    assert_string_equal(e.text, "layer x: byte 7");
    errno = ENOSPC;
    assert_int_equal(err_sys(&e, "writing"), -ERR_SYS);
    assert_string_equal(e.text, "writing: No space left on device");
    assert_non_null(strstr(e.hint, "free some space"));
    err_set(&e, ERR_INPUT,
            "a\x1b[2J\x07\xc2\x9b"
            "b\tc\nd\xc3\xa9");
    assert_string_equal(e.text, "a?[2J???b\tc\nd\xc3\xa9");
    err_in(&e, "\x1b");
    assert_int_equal(e.text[0], '?');
    char longer[2 * ERR_TEXT_MAX];
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = 0;
    err_in(&e, "%s", longer);
    assert_int_equal(strlen(e.text), ERR_TEXT_MAX - 1);
}

static void buffer_stops_at_its_ceiling(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_add(&b, "12345678", 8, &e), 0);
    assert_int_equal(buf_add(&b, "123", 3, &e), -ERR_LIMIT);
    assert_int_equal(buf_printf(&b, &e, "%s", "ab"), 0);
    assert_string_equal(buf_text(&b), "12345678ab");
    buf_drop(&b, 8);
    assert_string_equal(buf_text(&b), "ab");
}

static void integers_survive_encoding(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf b;
    buf_init(&b, 100);
    assert_int_equal(buf_add_u8(&b, 0xfe, &e), 0);
    assert_int_equal(buf_add_u32(&b, 0xfedcba98U, &e), 0);
    assert_int_equal(buf_add_u64(&b, 0xfedcba9876543210U, &e), 0);
    struct cursor c = {.at = b.data, .left = b.len};
    uint8_t u8;
    uint32_t u32;
    uint64_t u64;
    assert_int_equal(cursor_u8(&c, &u8, &e), 0);
    assert_int_equal(cursor_u32(&c, &u32, &e), 0);
    assert_int_equal(cursor_u64(&c, &u64, &e), 0);
    assert_int_equal(u8, 0xfe);
    assert_int_equal(u32, 0xfedcba98U);
    assert_true(u64 == 0xfedcba9876543210U);
    assert_int_equal(cursor_u8(&c, &u8, &e), -ERR_CORRUPT);
}

static void digests_parse_and_print(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
    } rows[] = {
        {"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 0},
        {"sha256:E3B0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", -ERR_CORRUPT},
        {"sha256:e3b0", -ERR_CORRUPT},
        {"sha256:", -ERR_CORRUPT},
        {"md5:d41d8cd98f00b204e9800998ecf8427e", -ERR_UNSUPPORTED},
        {"e3b0", -ERR_CORRUPT},
        {"", -ERR_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct digest d;
        assert_int_equal(digest_parse(&d, rows[i].text, &e), rows[i].rc);
        char text[DIGEST_TEXT_MAX];
        if (rows[i].rc == 0)
            assert_string_equal(digest_print(&d, text), rows[i].text);
    }
    struct digest empty;
    struct digest streamed;
    struct err e = ERR_INIT;
    AUTO_HASHER struct hasher *h = NULL;
    digest_bytes(&empty, "", 0);
    assert_int_equal(hasher_new(&h, DIGEST_SHA256, &e), 0);
    hasher_add(h, "x", 1);
    hasher_finish(h, &streamed);
    assert_false(digest_equal(&empty, &streamed));
    hasher_finish(h, &streamed);
    assert_true(digest_equal(&empty, &streamed));
    assert_int_equal(digest_check(&empty, "", 0, &e), 0);
    assert_int_equal(digest_check(&empty, "x", 1, &e), -ERR_DIGEST);
    assert_string_equal(e.text, "its bytes hash to sha256:"
                                "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
}

static void json_names_what_is_wrong(void **state)
{
    (void)state;
    static const char text[] = "{\"b\":[1,\"x\"],\"a\":{\"n\":-1},\"s\":\"t\",\"z\":null}";
    struct err e = ERR_INIT;
    AUTO_JSON struct json *j = NULL;
    assert_int_equal(json_parse(&j, text, strlen(text), "reply", &e), 0);
    const char *s;
    uint64_t n;
    assert_int_equal(json_get_string(j, "b", &s, &e), -ERR_CORRUPT);
    assert_string_equal(e.text, "'b' is an array, not a string");
    assert_int_equal(json_get_string(j, "none", &s, &e), -ERR_CORRUPT);
    assert_string_equal(e.text, "'none' is missing");
    assert_int_equal(json_get_string_opt(j, "z", &s, &e), 0);
    assert_null(s);
    assert_int_equal(json_get_u64(json_member(j, "a"), "n", &n, &e), -ERR_CORRUPT);
    assert_int_equal(json_get_u64(NULL, "n", &n, &e), -ERR_CORRUPT);
    char *printed;
    assert_int_equal(json_print(j, 0, &printed, &e), 0);
    assert_string_equal(printed, "{\"a\":{\"n\":-1},\"b\":[1,\"x\"],\"s\":\"t\",\"z\":null}");
    free(printed);
    struct json *bad = NULL;
    assert_int_equal(json_parse(&bad, "{\"a\":1,\"a\":2}", 13, "reply", &e), -ERR_CORRUPT);
    assert_int_equal(json_parse(&bad, "{", 1, "reply", &e), -ERR_CORRUPT);
    assert_null(bad);
}

static void json_keeps_bytes_reversibly(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char *printed;
    AUTO_JSON struct json *raw = json_bytes("a\\\xc0\xffz\n\xc3\xad", 8);
    assert_int_equal(json_print(raw, 0, &printed, &e), 0);
    assert_string_equal(printed, "\"a\\\\x5c\\\\xc0\\\\xffz\\\\x0a\xc3\xad\"");
    free(printed);
    AUTO_JSON struct json *text = json_new_string("a\xff");
    assert_string_equal(json_as_string(text), "a\xef\xbf\xbd");
}

/* A value that memory was short for spoils what it was put into; no text from outside does. */
static void json_reports_what_is_incomplete(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char *printed;
    AUTO_JSON struct json *object = json_new_object();
    json_set(object, "a", json_new_integer(1));
    json_set(object, "b", NULL);
    assert_int_equal(json_print(object, 0, &printed, &e), -ERR_NOMEM);
    AUTO_JSON struct json *array = json_new_array();
    json_append(array, NULL);
    assert_int_equal(json_print(array, 0, &printed, &e), -ERR_NOMEM);
    static const char text[] = "{\"\\u0001out of memory\":[\"\\u0001out of memory\"]}";
    AUTO_JSON struct json *parsed = NULL;
    assert_int_equal(json_parse(&parsed, text, strlen(text), "reply", &e), 0);
    assert_int_equal(json_print(parsed, 0, &printed, &e), 0);
    assert_string_equal(printed, text);
    free(printed);
}

static int open_temporary_directory(char path[64])
{
    snprintf(path, 64, "/tmp/tb2-base-XXXXXX");
    assert_non_null(mkdtemp(path));
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void files_appear_whole(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char path[64];
    AUTO_FD int dir = open_temporary_directory(path);
    struct file_tmp t = {.fd = -1};
    assert_int_equal(file_tmp_open(&t, dir, &e), 0);
    assert_int_equal(file_write_full(t.fd, "half", 4, &e), 0);
    assert_false(file_exists(dir, "name"));
    assert_int_equal(file_tmp_commit(&t, dir, "name", true, &e), 0);
    file_tmp_abort(&t);
    AUTO_BUF struct buf b;
    buf_init(&b, 3);
    assert_int_equal(file_read(dir, "name", &b, &e), -ERR_LIMIT);
    buf_fini(&b);
    buf_init(&b, 4);
    assert_int_equal(file_read(dir, "name", &b, &e), 0);
    assert_string_equal(buf_text(&b), "half");
    assert_int_equal(file_read(dir, "absent", &b, &e), -ERR_NOTFOUND);
    assert_int_equal(file_make_dirs(dir, "a/b/c", &e), 0);
    assert_int_equal(file_put(dir, dir, "a/b/c/d", "x", 1, &e), 0);
    assert_int_equal(symlinkat("/etc", dir, "a/link"), 0);
    assert_int_equal(file_remove_tree(AT_FDCWD, path, &e), 0);
    assert_false(file_exists(AT_FDCWD, path));
    assert_true(file_exists(AT_FDCWD, "/etc/passwd"));
}

static void locks_exclude(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char path[64];
    AUTO_FD int dir = open_temporary_directory(path);
    AUTO_FD int first = -1;
    AUTO_FD int second = -1;
    assert_int_equal(file_lock(&first, dir, "lock", true, false, &e), 0);
    assert_int_equal(file_lock(&second, dir, "lock", true, false, &e), -ERR_BUSY);
    struct cancel stop = {.fd = -1};
    assert_int_equal(cancel_init(&stop, &e), 0);
    cancel_set(&stop);
    assert_int_equal(file_lock_wait(&second, dir, "lock", &stop, &e), -ERR_CANCELLED);
    cancel_fini(&stop);
    file_close(&first);
    assert_int_equal(file_lock_wait(&second, dir, "lock", NULL, &e), 0);
    file_close(&second);
    assert_int_equal(file_lock(&second, dir, "lock", true, false, &e), 0);
    assert_int_equal(file_remove_tree(AT_FDCWD, path, &e), 0);
}

static void processes_end_as_told(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf out;
    AUTO_BUF struct buf err_out;
    buf_init(&out, 100);
    buf_init(&err_out, 100);
    int status = -1;
    const char *const echo[] = {"sh", "-c", "cat; echo no >&2; exit 3", NULL};
    assert_int_equal(
        proc_run(
            echo,
            &(struct proc_io){.input = "in", .out = &out, .err_out = &err_out, .timeout_ms = 10000},
            &status, &e),
        0);
    assert_string_equal(buf_text(&out), "in");
    assert_string_equal(buf_text(&err_out), "no\n");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    const char *const missing[] = {"tb2-no-such-program", NULL};
    assert_int_equal(proc_run(missing, &(struct proc_io){.timeout_ms = 10000}, &status, &e),
                     -ERR_NOTFOUND);
    struct proc p = {.pid = -1};
    assert_int_equal(proc_start(&p, echo,
                                &(struct proc_setup){.cwd = "/nonexistent/directory",
                                                     .stdin_fd = -1,
                                                     .stdout_fd = -1,
                                                     .stderr_fd = -1},
                                &e),
                     -ERR_SYS);
    assert_string_equal(e.text, "starting sh in /nonexistent/directory: No such file or directory");
    const char *const hang[] = {"sh", "-c", "sleep 1000 & sleep 1000", NULL};
    assert_int_equal(proc_run(hang, &(struct proc_io){.timeout_ms = 50}, &status, &e),
                     -ERR_TIMEOUT);
    struct cancel c;
    assert_int_equal(cancel_init(&c, &e), 0);
    cancel_set(&c);
    assert_int_equal(
        proc_run(hang, &(struct proc_io){.timeout_ms = 60000, .cancel = &c}, &status, &e),
        -ERR_CANCELLED);
    cancel_fini(&c);
    const char *const flood[] = {"sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x", NULL};
    buf_fini(&out);
    assert_int_equal(
        proc_run(flood, &(struct proc_io){.out = &out, .timeout_ms = 10000}, &status, &e), 0);
    assert_int_equal(out.len, 100);
}

struct pool_test {
    size_t next;
    size_t dropped;
    size_t fail_at;
};

static int pool_work(void *ctx, void *item, struct err *e)
{
    const struct pool_test *t = ctx;
    size_t *number = item;
    if (*number == t->fail_at)
        return err_set(e, ERR_INPUT, "item %zu", *number);
    return 0;
}

static int pool_done(void *ctx, void *item, struct err *e)
{
    struct pool_test *t = ctx;
    AUTO_FREE size_t *number = item;
    if (*number != t->next)
        return err_set(e, ERR_CORRUPT, "out of order");
    t->next++;
    return 0;
}

static void pool_drop(void *ctx, void *item)
{
    struct pool_test *t = ctx;
    t->dropped++;
    free(item);
}

static int run_pool(struct pool_test *t, size_t workers, size_t items, struct err *e)
{
    static const struct pool_ops ops = {pool_work, pool_done, pool_drop};
    AUTO_POOL struct pool *p = NULL;
    int rc = pool_new(&p, &ops, t, workers, e);
    for (size_t i = 0; rc == 0 && i < items; i++)
        rc = pool_submit(p, mem_dup(&i, sizeof(i)), e);
    return rc < 0 ? rc : pool_finish(p, e);
}

static void pool_keeps_order_and_first_error(void **state)
{
    (void)state;
    for (size_t workers = 1; workers <= 4; workers++) {
        struct err e = ERR_INIT;
        struct pool_test good = {.fail_at = SIZE_MAX};
        assert_int_equal(run_pool(&good, workers, 500, &e), 0);
        assert_int_equal(good.next, 500);
        struct pool_test bad = {.fail_at = 100};
        assert_int_equal(run_pool(&bad, workers, 500, &e), -ERR_INPUT);
        assert_string_equal(e.text, "item 100");
        assert_int_equal(bad.next, 100);
        assert_true(bad.dropped >= 1);
    }
}

static void text_cannot_drive_a_terminal(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"plain\ttext\n", "plain\ttext\n"},
        {"\x1b[31mred\x07\x7f", "?[31mred??"},
        {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac"},
        {"\xc2\x9b"
         "31m\xc2\xa0",
         "??31m\xc2\xa0"},
        {"\x9b"
         "31m\xff\xc3",
         "?31m??"},
        {"", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", rows[i][0]);
        assert_string_equal(text_make_harmless(text), rows[i][1]);
    }
}

static void words_are_cut(void **state)
{
    (void)state;
    char line[] = "\t one  two\r";
    char *at = line;
    assert_string_equal(text_cut_word(&at), "one");
    assert_string_equal(text_cut_word(&at), "two");
    assert_string_equal(text_cut_word(&at), "");
    assert_string_equal(text_cut_word(&at), "");
}

static void clock_text_round_trips(void **state)
{
    (void)state;
    char text[CLOCK_TEXT_MAX];
    assert_string_equal(clock_print(1761868800, text), "2025-10-31T00:00:00Z");
    assert_true(clock_parse(text) == 1761868800);
    assert_true(clock_parse("yesterday") == -1);
}

static void hashes_depend_on_all_their_input(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct hash_key key;
    struct hash_key other;
    assert_int_equal(hash_key_draw(&key, &e), 0);
    assert_int_equal(hash_key_draw(&other, &e), 0);
    uint64_t hash = hash_bytes(&key, 7, "some name", 9);
    assert_true(hash == hash_bytes(&key, 7, "some name", 9));
    assert_true(hash != hash_bytes(&other, 7, "some name", 9));
    assert_true(hash != hash_bytes(&key, 8, "some name", 9));
    assert_true(hash != hash_bytes(&key, 7, "some name", 10)); /* the NUL too */
    assert_true(hash != hash_bytes(&key, 7, "some_name", 9));
    assert_true(hash_bytes(&key, 0, NULL, 0) == hash_bytes(&key, 0, "", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_text_grows_in_front),
        cmocka_unit_test(buffer_stops_at_its_ceiling),
        cmocka_unit_test(integers_survive_encoding),
        cmocka_unit_test(digests_parse_and_print),
        cmocka_unit_test(json_names_what_is_wrong),
        cmocka_unit_test(json_keeps_bytes_reversibly),
        cmocka_unit_test(json_reports_what_is_incomplete),
        cmocka_unit_test(files_appear_whole),
        cmocka_unit_test(locks_exclude),
        cmocka_unit_test(processes_end_as_told),
        cmocka_unit_test(hashes_depend_on_all_their_input),
        cmocka_unit_test(pool_keeps_order_and_first_error),
        cmocka_unit_test(text_cannot_drive_a_terminal),
        cmocka_unit_test(words_are_cut),
        cmocka_unit_test(clock_text_round_trips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
