/* SPDX-License-Identifier: MIT */
/* Two trees in, their differences out, a line each. Layers are texts (see tarball.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "tarball.h"

#define TIME "1700000000.000000000"

static const struct {
    const char *name;
    const char *a;
    const char *b;
    const char *expected;
} cases[] = {
    {"nothing", "D d\nF d/f 1\nS l d", "D d\nF d/f 1\nS l d", ""},
    {"order_of_the_tar_does_not_show", "F a 1\nF b 2", "F b 2\nF a 1", ""},
    {"added_and_removed", "F a 1\nF c 3", "F b 22\nF c 3",
     "- /a file 0644 0:0 " TIME " size=1\n+ /b file 0644 0:0 " TIME " size=2\n"},
    {"all_below", "D d\nF d/x 1\nF e 2", "F e 2",
     "- /d dir 0755 0:0 " TIME "\n- /d/x file 0644 0:0 " TIME " size=1\n"},
    /* "a/b" comes before "a-b", as in the text form. */
    {"order_of_names", "D a\nF a/b 1\nF a-b 1", "D a\nF a-b 1\nF a-c 1",
     "- /a/b file 0644 0:0 " TIME " size=1\n+ /a-c file 0644 0:0 " TIME " size=1\n"},
    {"content", "F a one", "F a two", "~ /a content\n"},
    {"size", "F a one", "F a three", "~ /a size=3>5\n"},
    {"metadata", "F a 1 mode=0644 uid=0 gid=0", "F a 1 mode=4755 uid=1 gid=2 mtime=7",
     "~ /a mode=0644>4755 owner=0:0>1:2 time=" TIME ">7.000000000\n"},
    {"target", "S l a", "S l b\\x20c", "~ /l target=a>b\\x20c\n"},
    {"device", "C c 1:3", "C c 1:5", "~ /c device=1:3>1:5\n"},
    {"type", "F a 1", "S a b", "~ /a type=file>symlink\n"},
    {"directory_becomes_a_link", "D a\nF a/f 1", "S a b",
     "~ /a type=dir>symlink\n- /a/f file 0644 0:0 " TIME " size=1\n"},
    {"attributes", "F a 1 pax.SCHILY.xattr.user.x=1", "F a 1 pax.SCHILY.xattr.user.x=2",
     "~ /a xattrs\n"},
    {"links", "F a 1\nH b a", "F a 1\nF b 1", "~ /b link=/a>-\n"},
    {"links_to_the_same", "F a 1\nH b a", "F a 2\nH b a", "~ /a content\n"},
    {"names_are_bytes", "F x\\xff 1", "F x\\x0ay 1",
     "+ /x\\x0ay file 0644 0:0 " TIME " size=1\n- /x\\xff file 0644 0:0 " TIME " size=1\n"},
    {"root", "D ./ mode=0755", "D ./ mode=0700", "~ / mode=0755>0700\n"},
};

struct comparison {
    struct test_layer layers[2];
    struct buf out;
};

static int same_content(void *ctx, const struct oci_node *a, const struct oci_node *b, bool *same,
                        struct err *e UNUSED)
{
    struct comparison *c = ctx;
    AUTO_FREE char *x = test_layer_content(&c->layers[0], a->entry);
    AUTO_FREE char *y = test_layer_content(&c->layers[1], b->entry);
    *same = memcmp(x, y, (size_t)a->entry->size) == 0;
    return 0;
}

static int difference(void *ctx, const struct oci_difference *d, struct err *e)
{
    struct comparison *c = ctx;
    assert_true(d->change == OCI_CHANGED ? d->fields[0] != 0 : d->fields[0] == 0);
    assert_int_equal(d->path[0], '/');
    assert_memory_equal(d->line + 2, d->path, strlen(d->path));
    return buf_add_text(&c->out, d->line, e);
}

static void differences(void **state UNUSED)
{
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        struct comparison c = {0};
        struct oci_tree *trees[2] = {NULL, NULL};
        buf_init(&c.out, 1 << 20);
        for (size_t k = 0; k < 2; k++) {
            const char *text = k == 0 ? cases[i].a : cases[i].b;
            int rc = test_layer_read_text(&c.layers[k], text, &e);
            if (rc == 0)
                rc = oci_tree_merge(&trees[k], &c.layers[k].layer, 1, NULL, &e);
            if (rc < 0)
                fail_msg("%s: %s", cases[i].name, e.text);
        }
        const struct oci_diff_ops ops = {same_content, difference, &c};
        assert_int_equal(oci_tree_diff(trees[0], trees[1], &ops, &e), 0);
        if (strcmp(buf_text(&c.out), cases[i].expected) != 0)
            fail_msg("%s:\n%s", cases[i].name, buf_text(&c.out));
        for (size_t k = 0; k < 2; k++) {
            oci_tree_free(trees[k]);
            test_layer_fini(&c.layers[k]);
        }
        buf_fini(&c.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
