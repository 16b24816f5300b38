/* SPDX-License-Identifier: MIT */
/* What --tap says. Loopback stands for the device: it is there on every machine, and has 127.0.0.1/8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bake/vm/tap.h"

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct agent_address address;
    } rows[] = {
        {"lo", {.address = 0x7f000002, .prefix = 8, .gateway = 0x7f000001}},
        {"lo,10.1.2.3/24", {.address = 0x0a010203, .prefix = 24}},
        {"lo,10.1.2.3/24,10.1.2.1", {.address = 0x0a010203, .prefix = 24, .gateway = 0x0a010201}},
        {"lo,10.1.2.3/31,10.1.2.1,9.9.9.9",
         {.address = 0x0a010203, .prefix = 31, .gateway = 0x0a010201, .resolver = 0x09090909}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct tap tap;
        if (tap_open(&tap, rows[i].text, &e) < 0)
            fail_msg("%s", e.text);
        assert_string_equal(tap.name, "lo");
        assert_memory_equal(&tap.address, &rows[i].address, sizeof(tap.address));
    }
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } rows[] = {
        {"", "--tap is NAME"},
        {"a-name-that-is-too-long", "--tap is NAME"},
        {"lo/x", "--tap is NAME"},
        {"lo,", "--tap is NAME"},
        {"lo,10.1.2.3", "--tap is NAME"},
        {"lo,10.1.2.3/0", "--tap is NAME"},
        {"lo,10.1.2.3/32", "--tap is NAME"},
        {"lo,10.1.2.3/2x", "--tap is NAME"},
        {"lo,10.1.2/24", "--tap is NAME"},
        {"lo,10.1.2.3/24,gateway", "--tap is NAME"},
        {"lo,10.1.2.3/24,10.1.2.1,1.1.1.1,2.2.2.2", "--tap is NAME"},
        {"lo,10.1.2.3/24,ifname=x", "--tap is NAME"},
        {"tb2-none", "there is no network device tb2-none"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct tap tap;
        if (tap_open(&tap, rows[i].text, &e) != -ERR_INPUT || !strstr(e.text, rows[i].part))
            fail_msg("%s: %s", rows[i].text, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("tap", tests, NULL, NULL);
}
