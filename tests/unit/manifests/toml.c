/* SPDX-License-Identifier: MIT */
/* TOML: every file of the data set, and where errors are said to be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "manifests/internal.h"
#include "toml_tagged.h"

#define DATA TB2_TEST_DATA "/manifests/toml/"

static void read_file(struct buf *out, const char *path)
{
    struct err e = ERR_INIT;
    buf_init(out, LIMIT_TASK_TOML);
    if (file_read(AT_FDCWD, path, out, &e) < 0)
        fail_msg("%s", e.text);
}

static char *canonical(const struct json *j)
{
    struct err e = ERR_INIT;
    char *text = NULL;
    assert_int_equal(json_print(j, 0, &text, &e), 0);
    return text;
}

static void check_valid(const char *path)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    AUTO_BUF struct buf expected;
    read_file(&text, path);
    AUTO_FREE char *json_path = mem_strdup(path);
    memcpy(json_path + strlen(path) - 4, "json", 4);
    read_file(&expected, json_path);
    AUTO_TOML struct toml *t = NULL;
    if (toml_parse(&t, text.data, text.len, path, &e) < 0)
        fail_msg("should be accepted: %s", e.text);
    AUTO_JSON struct json *ours = toml_tagged(t);
    AUTO_JSON struct json *theirs = NULL;
    if (json_parse(&theirs, expected.data, expected.len, json_path, &e) < 0)
        fail_msg("%s", e.text);
    AUTO_FREE char *ours_text = canonical(ours);
    AUTO_FREE char *theirs_text = canonical(theirs);
    if (strcmp(ours_text, theirs_text) != 0)
        fail_msg("%s: read %s, expected %s", path, ours_text, theirs_text);
}

static void check_invalid(const char *path)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    read_file(&text, path);
    AUTO_TOML struct toml *t = NULL;
    if (toml_parse(&t, text.data, text.len, path, &e) == 0)
        fail_msg("%s should be refused", path);
    assert_null(t);
    assert_int_equal(e.class, ERR_INPUT);
    unsigned line;
    unsigned column;
    size_t len = strlen(path);
    assert_memory_equal(e.text, path, len);
    if (sscanf(e.text + len, ":%u:%u: ", &line, &column) != 2)
        fail_msg("no line and column: %s", e.text);
}

static unsigned each_file(const char *directory, void (*check)(const char *path))
{
    unsigned count = 0;
    DIR *listing = opendir(directory);
    assert_non_null(listing);
    for (struct dirent *entry = readdir(listing); entry; entry = readdir(listing)) {
        size_t len = strlen(entry->d_name);
        if (len < 6 || strcmp(entry->d_name + len - 5, ".toml") != 0)
            continue;
        AUTO_FREE char *path = mem_printf("%s%s", directory, entry->d_name);
        check(path);
        count++;
    }
    closedir(listing);
    return count;
}

static void valid_files(void **state)
{
    (void)state;
    assert_true(each_file(DATA "valid/", check_valid) >= 150);
}

static void invalid_files(void **state)
{
    (void)state;
    assert_true(each_file(DATA "invalid/", check_invalid) >= 300);
}

static void error_places(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *error;
    } rows[] = {
        {"a = 1\nb = yes\n",
         "t.toml:2:5: 'yes' is not a value (strings need quotes; numbers, dates, "
         "true and false have one spelling)"},
        {"a = 1\n  a = 2\n",
         "t.toml:2:3: 'a' cannot be given a value here: it is a value since line 1"},
        {"[t]\n\n[x]\n[ t ]\n",
         "t.toml:4:3: 't' cannot be defined as a table here: it is a table since line 1"},
        {"a = \"\xC3\xA9\xC3\xA9\" x\n", "t.toml:1:10: the end of the line is expected, not 'x'"},
        {"a = [1,\n 2\n 3]\n",
         "t.toml:3:2: ',' is expected between the elements of an array, or ']' "
         "after them, not '3'"},
        {"\xEF\xBB\xBF= 1", "t.toml:1:1: a key is expected, not '='"},
        {"a = \"x", "t.toml:1:5: the string is not closed on its line"},
        {"a = {b = 1\n}",
         "t.toml:1:11: ',' is expected between the members of an inline table, or '}' "
         "after them, not the end of the line"},
        {"a = 1\r\nb = 0x\r\n",
         "t.toml:2:5: '0x' is not a value (strings need quotes; numbers, dates, "
         "true and false have one spelling)"},
        {"a = \"\\q\"", "t.toml:1:6: a backslash followed by 'q' is not an escape"},
        {"a =", "t.toml:1:4: a value is expected, not the end of the file"},
        {"d = 2023-02-29", "t.toml:1:5: '2023-02-29' is not a valid date or time"},
        {"i = 9223372036854775808", "t.toml:1:5: 9223372036854775808 does not fit into 64 bits"},
        {"i = 007", "t.toml:1:5: '007': a number must not start with 0"},
        {"# \x01", "t.toml:1:3: control character U+0001 must be written as an escape"},
        {"a = \"\xFF\"", "t.toml:1:6: byte 0xFF is not valid UTF-8 here"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_TOML struct toml *t = NULL;
        assert_int_equal(toml_parse(&t, rows[i].text, strlen(rows[i].text), "t.toml", &e),
                         -ERR_INPUT);
        assert_string_equal(e.text, rows[i].error);
    }
}

static void looks_up_members(void **state)
{
    (void)state;
    static const char text[] = "a = 1\n[t]\nb = [true, 2.5]\nc = 1979-05-27 07:32:00z\n";
    struct err e = ERR_INIT;
    AUTO_TOML struct toml *t = NULL;
    assert_int_equal(toml_parse(&t, text, strlen(text), "t.toml", &e), 0);
    assert_int_equal(toml_length(t), 2);
    assert_string_equal(toml_key_at(t, 1), "t");
    assert_null(toml_key_at(t, 2));
    assert_null(toml_get(t, "b"));
    const struct toml *table = toml_get(t, "t");
    const struct toml *array = toml_get(table, "b");
    assert_int_equal(toml_type(array), TOML_ARRAY);
    assert_int_equal(toml_line(array), 3);
    assert_int_equal(toml_column(array), 5);
    assert_true(toml_bool(toml_at(array, 0)));
    assert_true(toml_float(toml_at(array, 1)) == 2.5);
    assert_null(toml_at(array, 2));
    assert_null(toml_get(array, "x"));
    assert_string_equal(toml_string(toml_get(table, "c"), NULL), "1979-05-27T07:32:00Z");
}

/* A hundred thousand keys, and as many dotted ones, must not take quadratic time. */
static void large_documents(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TASK_TOML);
    for (unsigned i = 0; i < 100000; i++)
        assert_int_equal(buf_printf(&text, &e, "k%u = 1\nd.k%u = 2\n", i, i), 0);
    AUTO_TOML struct toml *t = NULL;
    assert_int_equal(toml_parse(&t, text.data, text.len, "t.toml", &e), 0);
    assert_int_equal(toml_length(t), 100001);
    assert_int_equal(toml_integer(toml_get(toml_get(t, "d"), "k99999")), 2);
}

static void too_large(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    size_t len = LIMIT_TASK_TOML + 1;
    AUTO_FREE char *text = mem_zalloc(len);
    assert_non_null(text);
    memset(text, '\n', len);
    struct toml *t = NULL;
    assert_int_equal(toml_parse(&t, text, len, "t.toml", &e), -ERR_LIMIT);
    assert_null(t);
}

static void memory_short(void **state)
{
    (void)state;
    static const char text[] = "a.b = [1, 'x', {c = 1979-05-27}]\n[[t.u]]\nv = \"\"\n[w]\n";
    bool done = false;
    for (unsigned long nth = 1; !done && nth < 1000; nth++) {
        struct err e = ERR_INIT;
        AUTO_TOML struct toml *t = NULL;
        mem_fail_nth(nth);
        int rc = toml_parse(&t, text, strlen(text), "t.toml", &e);
        mem_fail_nth(0);
        done = rc == 0;
        assert_true(done || rc == -ERR_NOMEM);
        assert_true(done == (t != NULL));
    }
    assert_true(done);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_files),     cmocka_unit_test(invalid_files),
        cmocka_unit_test(error_places),    cmocka_unit_test(looks_up_members),
        cmocka_unit_test(large_documents), cmocka_unit_test(too_large),
        cmocka_unit_test(memory_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
