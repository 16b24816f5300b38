/* SPDX-License-Identifier: MIT */
/*
 * Layers in, merged tree out. Layers are texts (see tarball.h); the expected tree is one line a
 * name: "d/", "f=content", "l -> target", "h == first/name", "x|fifo".
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tarball.h"

enum { MAX_LAYERS = 4 };

struct tree_case {
    const char *name;
    const char *layers[MAX_LAYERS];
    const char *expected; /* NULL when it must be refused */
    const char *error;    /* part of the text then */
};

static struct tree_case cases[] = {
    {"opaque_last",
     {"D a\nD a/b\nD a/b/c\nF a/b/c/bar 1", "D a\nD a/b\nD a/b/c\nF a/b/c/foo 2\nW a/.wh..wh..opq"},
     "a/\na/b/\na/b/c/\na/b/c/foo=2\n",
     NULL},
    {"opaque_second",
     {"D a\nD a/b\nD a/b/c\nF a/b/c/bar 1", "D a\nW a/.wh..wh..opq\nD a/b\nD a/b/c\nF a/b/c/foo 2"},
     "a/\na/b/\na/b/c/\na/b/c/foo=2\n",
     NULL},
    {"opaque_root", {"F old 1\nD d", "F new 2\nW .wh..wh..opq"}, "new=2\n", NULL},
    {"layer_by_layer",
     {"F x/keep A\nF x/old 1", "W x/.wh.keep\nW x/.wh..wh..opq", "F x/keep B\nF x/new 2"},
     "x/\nx/keep=B\nx/new=2\n",
     NULL},
    {"whiteout_spares_its_own_layer",
     {"F a 1\nF b 1", "W .wh.a\nF a 2\nF b 2\nW .wh.b"},
     "a=2\nb=2\n",
     NULL},
    {"whiteout_of_a_tree",
     {"D d\nF d/x 1\nD d/s\nF d/s/y 2\nF z 3", "F d/new 4\nW .wh.d"},
     "d/\nd/new=4\nz=3\n",
     NULL},
    {"nothing_to_remove",
     {"D etc", "W var/cache/apt/archives/.wh..wh..opq\nW opt/.wh.nothing"},
     "etc/\nvar/\nvar/cache/\nvar/cache/apt/\nvar/cache/apt/archives/\n",
     NULL},
    {"whiteout_below_a_file",
     {"D foo\nF foo/bar 1\nF foo/baz 2", "F foo plain\nW foo/.wh.bar"},
     "foo=plain\n",
     NULL},
    {"whiteout_below_a_file_of_another_layer",
     {"D foo\nF foo/bar 1\nF foo/baz 2", "F foo plain", "W foo/.wh.bar"},
     "foo=plain\n",
     NULL},
    {"opaque_marker_below_a_file", {"F foo plain", "W foo/.wh..wh..opq"}, "foo=plain\n", NULL},
    {"whiteout_of_dotdot",
     {"D a\nD a/b\nF a/b/f 1", "W .wh..."},
     NULL,
     "entry .wh...: a whiteout that names no file"},
    {"whiteout_of_dot",
     {"D a\nD a/b\nF a/b/f 1", "W a/.wh.."},
     NULL,
     "entry a/.wh..: a whiteout that names no file"},
    {"whiteout_of_dotdot_below",
     {"D a\nD a/b\nF a/b/f 1", "W a/b/.wh..."},
     NULL,
     "a whiteout that names no file"},
    {"whiteout_of_nothing", {"W a/.wh."}, NULL, "a whiteout that names no file"},
    {"whiteout_of_a_link",
     {"F usr/share/zoneinfo/Etc/UTC z\nS etc/localtime /usr/share/zoneinfo/Etc/UTC",
      "W etc/.wh.localtime"},
     "etc/\nusr/\nusr/share/\nusr/share/zoneinfo/\nusr/share/zoneinfo/Etc/\n"
     "usr/share/zoneinfo/Etc/UTC=z\n",
     NULL},
    {"overlay_device_is_a_device", {"F gone 1", "C gone 0:0"}, "gone|char 0:0\n", NULL},
    {"marker_below_a_marker",
     {"D a\nF a/b 1", "W a/.wh.b/.wh.c"},
     NULL,
     "an entry below a whiteout"},
    {"aufs_files_are_dropped",
     {"F f 1", "W .wh..wh.aufs\nD .wh..wh.plnk\nF .wh..wh.plnk/1.2 x\nF g 2"},
     "f=1\ng=2\n",
     NULL},
    {"parent_is_a_link_of_the_same_layer",
     {"D app/nm/.pnpm/pkg@1/nm/pkg\nS app/nm/pkg .pnpm/pkg@1/nm/pkg\nF app/nm/pkg/src/index.js 1"},
     "app/\napp/nm/\napp/nm/.pnpm/\napp/nm/.pnpm/pkg@1/\napp/nm/.pnpm/pkg@1/nm/\n"
     "app/nm/.pnpm/pkg@1/nm/pkg/\napp/nm/.pnpm/pkg@1/nm/pkg/src/\n"
     "app/nm/.pnpm/pkg@1/nm/pkg/src/index.js=1\napp/nm/pkg -> .pnpm/pkg@1/nm/pkg\n",
     NULL},
    {"whiteout_through_a_link",
     {"D usr/lib\nF usr/lib/old 1\nS lib usr/lib", "W lib/.wh.old\nF lib/new 2"},
     "lib -> usr/lib\nusr/\nusr/lib/\nusr/lib/new=2\n",
     NULL},
    {"opaque_through_a_link",
     {"D usr/lib\nF usr/lib/old 1\nS lib usr/lib", "W lib/.wh..wh..opq\nF lib/new 2"},
     "lib -> usr/lib\nusr/\nusr/lib/\nusr/lib/new=2\n",
     NULL},
    {"links_in_a_loop",
     {"S a b\nS b a\nF a/f 1"},
     NULL,
     "layer 1: entry a/f: more than 40 symbolic links"},
    {"symbolic_link_to_itself", {"S a a/x\nF a/f 1"}, NULL, "more than 40 symbolic links"},
    {"parent_is_a_file",
     {"F a 1", "F a/b 2"},
     NULL,
     "layer 2: entry a/b: a on its way is not a directory"},
    {"full_directory_becomes_a_link",
     {"D srv/gitlab/log\nF srv/gitlab/log/.gitkeep k\nD var/log/gitlab",
      "S srv/gitlab/log /var/log/gitlab"},
     "srv/\nsrv/gitlab/\nsrv/gitlab/log -> /var/log/gitlab\nvar/\nvar/log/\nvar/log/gitlab/\n",
     NULL},
    {"entries_then_go_through_the_link",
     {"D d\nF d/a 1\nD e", "S d e\nF d/b 2"},
     "d -> e\ne/\ne/b=2\n",
     NULL},
    {"link_survives_its_first_name", {"F f1 data", "H f2 f1", "W .wh.f1"}, "f2=data\n", NULL},
    {"target_in_a_lower_layer",
     {"F usr/bin/a 1", "H usr/bin/b usr/bin/a"},
     "usr/\nusr/bin/\nusr/bin/a=1\nusr/bin/b == usr/bin/a\n",
     NULL},
    {"target_replaced_later", {"F a old", "H b a", "F a new"}, "a=new\nb=old\n", NULL},
    {"link_to_a_link", {"S s t\nH h s"}, "h -> t\ns == h\n", NULL},
    {"hard_link_to_itself", {"F a 1\nH a a"}, "a=1\n", NULL},
    {"link_to_a_directory", {"D d\nH h d"}, NULL, "a hard link to the directory d"},
    {"link_replaces_the_directory_of_its_target", {"F d/f 1\nH d d/f"}, "d=1\n", NULL},
    {"parents_of_links",
     {"F data.txt 1\nH x/y/z/l data.txt\nS p/q/s /data.txt\nF r/t/f 2"},
     "data.txt=1\np/\np/q/\np/q/s -> /data.txt\nr/\nr/t/\nr/t/f=2\nx/\nx/y/\nx/y/z/\n"
     "x/y/z/l == data.txt\n",
     NULL},
    {"link_before_its_target", {"H b a\nF a data"}, "a=data\nb == a\n", NULL},
    {"chain_before_its_target",
     {"H d c\nH c b\nH b a\nF a data"},
     "a=data\nb == a\nc == a\nd == a\n",
     NULL},
    {"early_link_is_superseded", {"H b a\nF b own\nF a data"}, "a=data\nb=own\n", NULL},
    {"lower_target_comes_first", {"F a old", "H b a\nF a new"}, "a=new\nb=old\n", NULL},
    {"no_target",
     {"F x 1", "H b missing"},
     NULL,
     "layer 2: entry b: a hard link to missing, which neither"},
    {"link_target_climbs_out",
     {"H loot ../../../../etc/shadow"},
     NULL,
     "entry loot: hard link target: the name leads out of the image"},
    {"absolute_target_is_the_images_own",
     {"F etc/shadow mine\nH loot2 /etc/shadow"},
     "etc/\netc/shadow=mine\nloot2 == etc/shadow\n",
     NULL},
    {"absolute_target_is_absent", {"H loot2 /etc/shadow"}, NULL, "a hard link to etc/shadow"},
    {"target_through_a_link", {"S out /etc\nH h out/passwd"}, NULL, "a hard link to out/passwd"},
    {"write_through_an_absolute_link",
     {"S esc /tmp\nF esc/pwn 1"},
     "esc -> /tmp\ntmp/\ntmp/pwn=1\n",
     NULL},
    {"write_through_a_climbing_link",
     {"D d\nS d/esc2 ../../../../tmp\nF d/esc2/pwn 1"},
     "d/\nd/esc2 -> ../../../../tmp\ntmp/\ntmp/pwn=1\n",
     NULL},
    {"name_climbs_out", {"F ../../etc/x 1"}, NULL, "the name leads out of the image"},
    {"name_that_stays_inside", {"F a/../b/./c//d 1"}, "b/\nb/c/\nb/c/d=1\n", NULL},
    {"names_of_the_root", {"D ./\nF ./a 1", "D / mode=0700\nF /b 2"}, "a=1\nb=2\n", NULL},
    {"root_is_a_file", {"F . 1"}, NULL, "the root of the image is not a directory"},
    {"last_one_counts",
     {"D inc\nF inc/x 1\nD inc mode=2755\nF etc/hosts 1\nH etc/h2 etc/hosts\nF etc/hosts 2\n"
      "F etc/hosts 3"},
     "etc/\netc/h2=1\netc/hosts=3\ninc/\ninc/x=1\n",
     NULL},
    {"layer_without_entries", {"", "F a 1", ""}, "a=1\n", NULL},
};

/* ---- The short form ---- */

static void add_full_path(const struct oci_tree *t, size_t index, struct buf *out)
{
    struct err e = ERR_INIT;
    struct oci_node node = oci_tree_node(t, index);
    if (node.parent != 0) {
        add_full_path(t, node.parent, out);
        assert_int_equal(buf_add_text(out, "/", &e), 0);
    }
    assert_int_equal(buf_add_text(out, node.name, &e), 0);
}

static void add_node(const struct oci_tree *t, size_t index, const struct test_layer *layers,
                     struct buf *out)
{
    struct err e = ERR_INIT;
    struct oci_node node = oci_tree_node(t, index);
    const struct oci_entry *entry = node.entry;
    int rc = 0;
    add_full_path(t, index, out);
    if (node.link_of != SIZE_MAX) {
        assert_int_equal(buf_add_text(out, " == ", &e), 0);
        add_full_path(t, node.link_of, out);
    } else if (entry->type == OCI_DIRECTORY) {
        rc = buf_add_text(out, "/", &e);
    } else if (entry->type == OCI_FILE) {
        char *content = test_layer_content(&layers[node.layer], entry);
        rc = buf_printf(out, &e, "=%s", content);
        free(content);
    } else if (entry->type == OCI_SYMLINK) {
        rc = buf_printf(out, &e, " -> %s", entry->target);
    } else if (entry->type == OCI_CHARACTER_DEVICE) {
        rc = buf_printf(out, &e, "|char %u:%u", entry->device_major, entry->device_minor);
    } else {
        assert_int_equal(entry->type, OCI_FIFO);
        rc = buf_add_text(out, "|fifo", &e);
    }
    assert_int_equal(rc, 0);
    assert_int_equal(buf_add_text(out, "\n", &e), 0);
}

/* Reads and merges; 0 and the tree in short form, or the error. */
static int merge_texts(const char *const *texts, struct buf *out, struct err *e)
{
    struct test_layer layers[MAX_LAYERS] = {0};
    struct oci_layer *list[MAX_LAYERS];
    size_t count = 0;
    int rc = 0;
    for (; rc == 0 && count < MAX_LAYERS && texts[count]; count++) {
        rc = test_layer_read_text(&layers[count], texts[count], e);
        list[count] = layers[count].layer;
    }
    struct oci_tree *t = NULL;
    if (rc == 0)
        rc = oci_tree_merge(&t, list, count, NULL, e);
    for (size_t i = 1; rc == 0 && i < oci_tree_count(t); i++)
        add_node(t, i, layers, out);
    oci_tree_free(t);
    for (size_t i = 0; i < MAX_LAYERS; i++)
        test_layer_fini(&layers[i]);
    return rc;
}

static void test_case(void **state)
{
    const struct tree_case *c = *state;
    struct buf got;
    buf_init(&got, 1 << 20);
    struct err e = ERR_INIT;
    int rc = merge_texts(c->layers, &got, &e);
    if (c->expected) {
        assert_string_equal(e.text, "");
        assert_int_equal(rc, 0);
        assert_string_equal(buf_text(&got), c->expected);
    } else {
        assert_true(rc < 0);
        if (!strstr(e.text, c->error))
            fail_msg("\"%s\" does not say \"%s\"", e.text, c->error);
    }
    buf_fini(&got);
}

/* ---- Types in place of each other ---- */

struct type_case {
    const char *name;
    const char *entries; /* of the path "x" */
    const char *result;
};

static const struct type_case types[] = {
    {"file", "F x 1", "x=1\n"},
    {"empty directory", "D x", "x/\n"},
    {"full directory", "D x\nF x/in 2", "x/\nx/in=2\n"},
    {"link", "S x t", "x -> t\n"},
    {"dangling link", "S x /no/where", "x -> /no/where\n"},
    {"hard link", "H x t", "x == t\n"},
    {"fifo", "P x", "x|fifo\n"},
    {"device", "C x 1:3", "x|char 1:3\n"},
};

static void check_pair(const struct type_case *first, const struct type_case *second,
                       bool one_layer)
{
    struct err e = ERR_INIT;
    struct buf got;
    struct buf text;
    struct buf want;
    buf_init(&got, 1 << 16);
    buf_init(&text, 1 << 16);
    buf_init(&want, 1 << 16);
    assert_int_equal(buf_printf(&text, &e, "F t target\n%s\n%s", first->entries,
                                one_layer ? second->entries : ""),
                     0);
    const char *layers[MAX_LAYERS] = {buf_text(&text), one_layer ? NULL : second->entries};
    assert_int_equal(merge_texts(layers, &got, &e), 0);
    bool merges =
        strcmp(first->name, "full directory") == 0 && strcmp(second->name, "empty directory") == 0;
    assert_int_equal(buf_printf(&want, &e, "t=target\n%s", merges ? first->result : second->result),
                     0);
    if (strcmp(buf_text(&got), buf_text(&want)) != 0)
        fail_msg("%s then %s: %s", first->name, second->name, buf_text(&got));
    buf_fini(&got);
    buf_fini(&text);
    buf_fini(&want);
}

static void type_matrix(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        for (size_t j = 0; j < ARRAY_LEN(types); j++) {
            check_pair(&types[i], &types[j], true);
            check_pair(&types[i], &types[j], false);
        }
    }
}

/* ---- Metadata, through the dump ---- */

static int write_buf(void *self, const void *data, size_t len, struct err *e)
{
    return buf_add(self, data, len, e);
}

static void dump_texts(const char *const *texts, struct buf *out)
{
    struct err e = ERR_INIT;
    struct test_layer layers[MAX_LAYERS] = {0};
    struct oci_layer *list[MAX_LAYERS];
    size_t count = 0;
    for (; count < MAX_LAYERS && texts[count]; count++) {
        assert_int_equal(test_layer_read_text(&layers[count], texts[count], &e), 0);
        list[count] = layers[count].layer;
    }
    struct oci_tree *t = NULL;
    assert_int_equal(oci_tree_merge(&t, list, count, NULL, &e), 0);
    struct sink sink = {.write = write_buf, .self = out};
    assert_int_equal(oci_tree_dump(t, &sink, &e), 0);
    oci_tree_free(t);
    for (size_t i = 0; i < MAX_LAYERS; i++)
        test_layer_fini(&layers[i]);
}

struct dump_case {
    const char *name;
    const char *layers[MAX_LAYERS];
    const char *expected;
};

static struct dump_case dumps[] = {
    {"directories_merge_metadata",
     {"D d mode=0700\nF d/x 1\nD e mode=0750 uid=3 gid=4\nF e/x 1",
      "D d mode=1777 uid=5 gid=6 mtime=9\nF e/y 2"},
     "/ dir 0755 0:0 0.000000000\n"
     "/d dir 1777 5:6 9.000000000\n"
     "/d/x file 0644 0:0 1700000000.000000000 size=1\n"
     "/e dir 0750 3:4 1700000000.000000000\n"
     "/e/x file 0644 0:0 1700000000.000000000 size=1\n"
     "/e/y file 0644 0:0 1700000000.000000000 size=1\n"},
    {"implied_directories",
     {"F opt/ruby/bin/ruby x mode=0755"},
     "/ dir 0755 0:0 0.000000000\n"
     "/opt dir 0755 0:0 0.000000000\n"
     "/opt/ruby dir 0755 0:0 0.000000000\n"
     "/opt/ruby/bin dir 0755 0:0 0.000000000\n"
     "/opt/ruby/bin/ruby file 0755 0:0 1700000000.000000000 size=1\n"},
    {"implied_then_listed",
     {"F d/f 1\nD d mode=0700 uid=7"},
     "/ dir 0755 0:0 0.000000000\n"
     "/d dir 0700 7:0 1700000000.000000000\n"
     "/d/f file 0644 0:0 1700000000.000000000 size=1\n"},
    {"newest_root_counts",
     {"D ./", "D / mode=0700 uid=1000 gid=1000 mtime=7", "F f"},
     "/ dir 0700 1000:1000 7.000000000\n"
     "/f file 0644 0:0 1700000000.000000000 size=0\n"},
    {"no_root_entry", {""}, "/ dir 0755 0:0 0.000000000\n"},
    {"newest_directory_counts",
     {"D inc\nD inc mode=2755"},
     "/ dir 0755 0:0 0.000000000\n/inc dir 2755 0:0 1700000000.000000000\n"},
    {"dump_is_printable_and_sorted_by_bytes",
     {"F b\\x0ac\nF a\\x20b\nF a\\x5cb\nF kde4\\xc0\\xff\nD a\nF a.b\nF a/x\nF \\x01"},
     "/ dir 0755 0:0 0.000000000\n"
     "/\\x01 file 0644 0:0 1700000000.000000000 size=0\n"
     "/a dir 0755 0:0 1700000000.000000000\n"
     "/a/x file 0644 0:0 1700000000.000000000 size=0\n"
     "/a\\x20b file 0644 0:0 1700000000.000000000 size=0\n"
     "/a.b file 0644 0:0 1700000000.000000000 size=0\n"
     "/a\\x5cb file 0644 0:0 1700000000.000000000 size=0\n"
     "/b\\x0ac file 0644 0:0 1700000000.000000000 size=0\n"
     "/kde4\\xc0\\xff file 0644 0:0 1700000000.000000000 size=0\n"},
    {"dump_of_every_type",
     {"F f 1 pax.SCHILY.xattr.user.b=\\x00\\x3d\\x0a pax.SCHILY.xattr.user.a=v\nH h f\nS s t/u\n"
      "C c 5:1 mode=0600\nB b 259:7\nP p mode=0622"},
     "/ dir 0755 0:0 0.000000000\n"
     "/b block 0644 0:0 1700000000.000000000 device=259:7\n"
     "/c char 0600 0:0 1700000000.000000000 device=5:1\n"
     "/f file 0644 0:0 1700000000.000000000 size=1 xattr=user.a:76 xattr=user.b:003d0a\n"
     "/h link /f\n"
     "/p fifo 0622 0:0 1700000000.000000000\n"
     "/s symlink 0777 0:0 1700000000.000000000 target=t/u\n"},
};

static void test_dump(void **state)
{
    const struct dump_case *c = *state;
    struct buf got;
    buf_init(&got, 1 << 20);
    dump_texts(c->layers, &got);
    assert_string_equal(buf_text(&got), c->expected);
    buf_fini(&got);
}

static void order_does_not_show(void **state)
{
    (void)state;
    const char *below = "D a\nD a/b\nF a/b/bar 1\nF top 1";
    const char *last[MAX_LAYERS] = {below, "F a/b/foo 2\nF top 2\nW .wh.top\nW a/.wh..wh..opq"};
    const char *first[MAX_LAYERS] = {below, "W a/.wh..wh..opq\nW .wh.top\nF top 2\nF a/b/foo 2"};
    struct buf x;
    struct buf y;
    buf_init(&x, 1 << 16);
    buf_init(&y, 1 << 16);
    dump_texts(last, &x);
    dump_texts(first, &y);
    assert_string_equal(buf_text(&x), buf_text(&y));
    buf_fini(&x);
    buf_fini(&y);
}

/* ---- Size ---- */

static char *many_files(size_t directories, size_t files)
{
    struct err e = ERR_INIT;
    struct buf text;
    buf_init(&text, (size_t)64 << 20);
    for (size_t d = 0; d < directories; d++)
        for (size_t f = 0; f < files; f++)
            assert_int_equal(buf_printf(&text, &e, "F usr/lib/d%zu/%zu\n", d, f), 0);
    return buf_take(&text);
}

static void many_names_in_one_directory(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct test_layer layers[2];
    char *text = many_files(1, 100000);
    assert_int_equal(test_layer_read_text(&layers[0], text, &e), 0);
    assert_int_equal(test_layer_read_text(&layers[1], text, &e), 0);
    free(text);
    struct oci_layer *list[] = {layers[0].layer, layers[1].layer, layers[0].layer, layers[1].layer};
    struct timespec before;
    struct timespec after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    struct oci_tree *t = NULL;
    assert_int_equal(oci_tree_merge(&t, list, 4, NULL, &e), 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    assert_int_equal(oci_tree_count(t), 100000 + 4);
    assert_int_equal(oci_tree_node(t, 100003).layer, 3);
    assert_string_equal(oci_tree_node(t, 100003).name, "99999");
    /* Far above what it takes, far below anything quadratic. */
    assert_true(after.tv_sec - before.tv_sec < 10);
    oci_tree_free(t);
    test_layer_fini(&layers[0]);
    test_layer_fini(&layers[1]);
}

static void a_merge_can_be_cancelled(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel cancel;
    struct test_layer layer;
    struct oci_tree *t = NULL;
    assert_int_equal(test_layer_read_text(&layer, "F a 1", &e), 0);
    assert_int_equal(cancel_init(&cancel, &e), 0);
    assert_int_equal(oci_tree_merge(&t, &layer.layer, 1, &cancel, &e), 0);
    oci_tree_free(t);
    cancel_set(&cancel);
    assert_int_equal(oci_tree_merge(&t, &layer.layer, 1, &cancel, &e), -ERR_CANCELLED);
    cancel_fini(&cancel);
    test_layer_fini(&layer);
}

static void add_components(struct buf *text, int count)
{
    struct err e = ERR_INIT;
    for (int i = 0; i < count; i++)
        assert_int_equal(buf_printf(text, &e, "/%0100d", i), 0);
}

static void path_through_links_has_a_limit(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct buf text;
    struct buf got;
    buf_init(&text, 1 << 20);
    buf_init(&got, 1 << 20);
    assert_int_equal(buf_add_text(&text, "S l ", &e), 0);
    add_components(&text, 30);
    assert_int_equal(buf_add_text(&text, "\nF l", &e), 0);
    add_components(&text, 12);
    const char *layers[MAX_LAYERS] = {buf_text(&text)};
    assert_int_equal(merge_texts(layers, &got, &e), -ERR_LIMIT);
    assert_non_null(strstr(e.text, "its path in the image has 4140 bytes"));
    buf_fini(&got);
    buf_fini(&text);
}

int main(void)
{
    struct CMUnitTest tests[ARRAY_LEN(cases) + ARRAY_LEN(dumps) + 8];
    size_t count = 0;
    memset(tests, 0, sizeof(tests));
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        tests[count++] = (struct CMUnitTest){cases[i].name, test_case, NULL, NULL, &cases[i]};
    for (size_t i = 0; i < ARRAY_LEN(dumps); i++)
        tests[count++] = (struct CMUnitTest){dumps[i].name, test_dump, NULL, NULL, &dumps[i]};
    const struct CMUnitTest more[] = {
        cmocka_unit_test(order_does_not_show),
        cmocka_unit_test(type_matrix),
        cmocka_unit_test(many_names_in_one_directory),
        cmocka_unit_test(a_merge_can_be_cancelled),
        cmocka_unit_test(path_through_links_has_a_limit),
    };
    for (size_t i = 0; i < ARRAY_LEN(more); i++)
        tests[count++] = more[i];
    return _cmocka_run_group_tests("oci tree", tests, count, NULL, NULL);
}
