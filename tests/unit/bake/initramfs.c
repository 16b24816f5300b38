/* SPDX-License-Identifier: MIT */
/* The archive, read back by a small reader of the format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "bake/kernel/internal.h"
#include "base/digest.h"
#include "base/mem.h"

static const struct initramfs_module modules[] = {
    {"b.ko", "module b", 8}, {"a.ko", "module a, longer", 16}, {"empty.ko", "", 0}};

static void build(struct buf *out)
{
    struct err e = ERR_INIT;
    buf_init(out, LIMIT_INITRAMFS);
    assert_int_equal(initramfs_build(out, "agent", 5, modules, ARRAY_LEN(modules), &e), 0);
}

struct entry {
    uint32_t inode, mode, links, size, rdev_major, rdev_minor;
    const char *name;
    const uint8_t *data;
};

static uint32_t field(const uint8_t *header, unsigned index)
{
    char text[9];
    memcpy(text, header + 6 + 8 * index, 8);
    text[8] = 0;
    return (uint32_t)strtoul(text, NULL, 16);
}

/* Reads the member at *off and moves past it; false at the trailer. */
static bool next(const struct buf *b, size_t *off, struct entry *out)
{
    const uint8_t *header = b->data + *off;
    assert_in_range(*off + 110, 0, b->len);
    assert_memory_equal(header, "070701", 6);
    uint32_t name_len = field(header, 11);
    *out = (struct entry){.inode = field(header, 0),
                          .mode = field(header, 1),
                          .links = field(header, 4),
                          .size = field(header, 6),
                          .rdev_major = field(header, 9),
                          .rdev_minor = field(header, 10),
                          .name = (const char *)header + 110};
    assert_int_equal(strlen(out->name) + 1, name_len);
    for (unsigned zero = 2; zero <= 5; zero++) /* uid, gid, mtime; links is no zero */
        assert_true(zero == 4 || field(header, zero) == 0);
    size_t data = (size_t)mem_round_up(*off + 110 + name_len, 4);
    out->data = b->data + data;
    *off = (size_t)mem_round_up(data + out->size, 4);
    assert_in_range(*off, 0, b->len);
    return strcmp(out->name, "TRAILER!!!") != 0;
}

static void test_members(void **state)
{
    (void)state;
    static const struct {
        const char *name, *data;
        uint32_t mode;
    } expected[] = {
        {"dev", "", S_IFDIR | 0755},
        {"dev/console", "", S_IFCHR | 0600},
        {"init", "agent", S_IFREG | 0755},
        {"modules", "", S_IFDIR | 0755},
        {"modules/b.ko", "module b", S_IFREG | 0644},
        {"modules/a.ko", "module a, longer", S_IFREG | 0644},
        {"modules/empty.ko", "", S_IFREG | 0644},
        {"modules/order", "b.ko\na.ko\nempty.ko\n", S_IFREG | 0644},
    };
    AUTO_BUF struct buf b;
    build(&b);
    assert_int_equal(b.len % 512, 0);
    size_t off = 0;
    struct entry m;
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_true(next(&b, &off, &m));
        assert_string_equal(m.name, expected[i].name);
        assert_int_equal(m.mode, expected[i].mode);
        assert_int_equal(m.inode, i + 1);
        assert_int_equal(m.size, strlen(expected[i].data));
        assert_memory_equal(m.data, expected[i].data, m.size);
        bool console = strcmp(m.name, "dev/console") == 0;
        assert_int_equal(m.rdev_major, console ? 5 : 0);
        assert_int_equal(m.rdev_minor, console ? 1 : 0);
    }
    assert_false(next(&b, &off, &m));
}

static void test_same_bytes(void **state)
{
    (void)state;
    AUTO_BUF struct buf one;
    AUTO_BUF struct buf two;
    build(&one);
    build(&two);
    assert_int_equal(one.len, two.len);
    assert_memory_equal(one.data, two.data, one.len);
    char hex[DIGEST_TEXT_MAX];
    struct digest d;
    digest_bytes(&d, one.data, one.len);
    assert_string_equal(digest_hex(&d, hex),
                        "a144ee6a3fec765e9959cba187b58f4ecdd28660b88427e863256ad2191a3138");
}

/* Where the tree was built must not show in the agent: it is part of every template's key. */
static void test_agent_names_no_place(void **state)
{
    (void)state;
    static const char data[] = TB2_TEST_DATA;
    static const char below[] = "/tests/data";
    size_t len = sizeof(data) - sizeof(below); /* the source directory */
    size_t agent_len = (size_t)(tb2_agent_end - tb2_agent_start);
    assert_true(agent_len > 4096);
    assert_null(memmem(tb2_agent_start, agent_len, data, len));
}

static void test_limits(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf b;
    buf_init(&b, 600);
    assert_int_equal(initramfs_build(&b, "agent", 5, modules, ARRAY_LEN(modules), &e), -ERR_LIMIT);
    char name[200];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    struct initramfs_module bad = {name, "", 0};
    AUTO_BUF struct buf other;
    buf_init(&other, LIMIT_INITRAMFS);
    assert_int_equal(initramfs_build(&other, "", 0, &bad, 1, &e), -ERR_LIMIT);
}

/* Every allocation fails once: an error each time, never a short archive that claims success. */
static void test_no_memory(void **state)
{
    (void)state;
    for (unsigned long nth = 1;; nth++) {
        struct err e = ERR_INIT;
        AUTO_BUF struct buf b;
        buf_init(&b, LIMIT_INITRAMFS);
        mem_fail_nth(nth);
        int rc = initramfs_build(&b, "agent", 5, modules, ARRAY_LEN(modules), &e);
        mem_fail_nth(0);
        if (rc == 0)
            break;
        assert_int_equal(rc, -ERR_NOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members), cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_agent_names_no_place), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
