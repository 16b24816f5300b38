/* SPDX-License-Identifier: MIT */
/* Text of a guest on a terminal: made harmless, cut to a width. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "cli/cmd.h"

static void harmless(void **state)
{
    (void)state;
    static const struct {
        const char *text, *wanted;
    } cases[] = {
        {"plain", "plain"},
        {"a\x1b[2Jb\tc\x7f", "a [2Jb c "},
        {"\xc2\x9b"
         "31m",
         " 31m"}, /* CSI as one character */
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x9c\x93 ok \xf0\x9f\x8d\x9e", "\xe2\x9c\x93 ok \xf0\x9f\x8d\x9e"},
        {"\x9b\xff|\xe2\x9c", "  |  "}, /* no UTF-8; cut short */
        {"\xc0\xaf\xf5\x80\x80\x80", "      "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char out[64];
        text_harmless(out, sizeof(out), cases[i].text);
        assert_string_equal(out, cases[i].wanted);
    }
    char small[5];
    text_harmless(small, sizeof(small), "abc\xe2\x9c\x93");
    assert_string_equal(small, "abc");
}

static void fit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t columns, len, width;
    } cases[] = {
        {"abc", 5, 3, 3},
        {"abc", 3, 3, 3},
        {"abcd", 3, 3, 3},
        {"abc", 0, 0, 0},
        {"\xc3\xbc\xc3\xbc", 1, 2, 1},
        {"a\xe5\x9b\xbd", 2, 1, 1}, /* takes two columns */
        {"a\xe5\x9b\xbd", 3, 4, 3},
        {"\xff\xff", 1, 1, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t width = 99;
        assert_int_equal(text_fit(cases[i].text, cases[i].columns, &width), cases[i].len);
        assert_int_equal(width, cases[i].width);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(harmless),
        cmocka_unit_test(fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
