/* SPDX-License-Identifier: MIT */
/* File systems that mke2fs and debugfs made, read; damaged ones, which must end in an error or a tree. What
 * our own writer makes is read back by the writer's test. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/ext4_read.h"
#include "memdev.h"

enum { LARGE = 300000, HOLE = 5000000 };

static void run(const char *const argv[])
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf said;
    int status = 0;
    buf_init(&said, 1 << 20);
    if (proc_run(argv, &(struct proc_io){.out = &said, .err_out = &said, .timeout_ms = 60000},
                 &status, &e) < 0) {
        if (e.class == ERR_NOTFOUND)
            skip();
        fail_msg("%s", e.text);
    }
    if (status != 0)
        fail_msg("%s: %s", argv[0], buf_text(&said));
}

static void put(const char *directory, const char *name, const void *data, size_t len, uint64_t off)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    AUTO_FREE char *path = mem_printf("%s/%s", directory, name);
    assert_ok(file_open(&fd, AT_FDCWD, path, O_RDWR | O_CREAT, 0640, &e));
    assert_ok(file_pwrite_full(fd, data, len, off, &e));
}

static void put_socket(const char *directory)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/socket", directory);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)(void *)&at, sizeof(at)), 0);
    close(fd);
}

/* What the file systems of this test hold. */
static char *make_tree(struct fixture *f)
{
    char *top = mem_printf("%s/tree", f->path);
    AUTO_FREE char *sub = mem_printf("%s/sub", top);
    AUTO_FREE char *link = mem_printf("%s/link", top);
    AUTO_FREE char *far = mem_printf("%s/far", top);
    AUTO_FREE char *from = mem_printf("%s/large", top);
    AUTO_FREE char *to = mem_printf("%s/sub/second", top);
    AUTO_FREE uint8_t *data = mem_zalloc(LARGE);
    char target[200];
    memset(target, 't', sizeof(target) - 1);
    target[sizeof(target) - 1] = 0;
    fixture_fill(data, LARGE, 1);
    assert_int_equal(mkdir(top, 0755), 0);
    assert_int_equal(mkdir(sub, 0711), 0);
    put(top, "large", data, LARGE, 0);
    put(top, "hole", "end", 3, HOLE);
    put(top, "empty", "", 0, 0);
    assert_int_equal(symlink("short", link), 0);
    assert_int_equal(symlink(target, far), 0);
    assert_int_equal(linkat(AT_FDCWD, from, AT_FDCWD, to, 0), 0);
    put_socket(top);
    return top;
}

static struct bdev *load(const char *path)
{
    struct err e = ERR_INIT;
    uint64_t size = 0;
    AUTO_FD int fd = -1;
    assert_ok(file_size(AT_FDCWD, path, &size, &e));
    struct bdev *d = memdev_new(size, true);
    assert_ok(file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, &e));
    assert_ok(file_pread_full(fd, memdev_bytes(d), size, 0, &e));
    return d;
}

static size_t find(const struct ext4_reader *r, const char *path)
{
    struct err e = ERR_INIT;
    for (size_t i = 0; i < ext4_reader_count(r); i++) {
        AUTO_BUF struct buf at;
        buf_init(&at, LIMIT_PATH);
        assert_ok(ext4_reader_path(r, i, &at, &e));
        if (strcmp(buf_text(&at), path) == 0)
            return i;
    }
    return SIZE_MAX;
}

static uint64_t held(const struct ext4_node *n)
{
    uint64_t size = 0;
    for (size_t i = 0; i < n->extent_count; i++)
        size += n->extents[i].len;
    return size;
}

static void check_large(struct ext4_reader *r, struct bdev *d, size_t index)
{
    struct err e = ERR_INIT;
    struct ext4_node n;
    AUTO_FREE uint8_t *want = mem_zalloc(LARGE);
    fixture_fill(want, LARGE, 1);
    assert_ok(ext4_reader_node(r, index, &n, &e));
    assert_int_equal(n.size, LARGE);
    assert_int_equal(held(&n), LARGE);
    for (size_t i = 0; i < n.extent_count; i++) {
        const struct ext4_extent *x = &n.extents[i];
        assert_memory_equal(memdev_bytes(d) + x->disk_off, want + x->file_off, x->len);
    }
}

static void check_tree(struct bdev *d)
{
    struct err e = ERR_INIT;
    struct ext4_node n;
    AUTO_EXT4_READER struct ext4_reader *r = NULL;
    assert_ok(ext4_reader_open(&r, d, NULL, &e));
    /* The root, lost+found, and all but the socket. */
    assert_int_equal(ext4_reader_count(r), 2 + 7);
    assert_int_equal(find(r, "socket"), SIZE_MAX);
    check_large(r, d, find(r, "large"));
    assert_ok(ext4_reader_node(r, find(r, "sub/second"), &n, &e));
    assert_int_equal(n.link_of, find(r, "large"));
    assert_int_equal(n.size, LARGE);
    assert_ok(ext4_reader_node(r, find(r, "hole"), &n, &e));
    assert_int_equal(n.size, HOLE + 3);
    assert_true(held(&n) <= 4096 && n.extent_count == 1);
    assert_int_equal(n.mode, 0640);
    assert_ok(ext4_reader_node(r, find(r, "empty"), &n, &e));
    assert_int_equal(n.size + n.extent_count, 0);
    assert_ok(ext4_reader_node(r, find(r, "link"), &n, &e));
    assert_string_equal(n.target, "short");
    assert_ok(ext4_reader_node(r, find(r, "far"), &n, &e));
    assert_int_equal(strlen(n.target), 199);
    assert_ok(ext4_reader_node(r, find(r, "sub"), &n, &e));
    assert_int_equal(n.mode, 0711);
}

/* As many kinds as mke2fs makes: block lists and extents, blocks of 1 to 64 KiB, with and without checksums
 * and journal. */
static void test_kinds(void **state)
{
    struct fixture *f = *state;
    AUTO_FREE char *tree = make_tree(f);
    AUTO_FREE char *image = mem_printf("%s/image", f->path);
    static const char *const kinds[][2] = {
        {"-text2", "-b1024"},
        {"-text3", "-b4096"},
        {"-text4", "-b1024"},
        {"-text4", "-b4096"},
        {"-text4", "-Ometadata_csum,64bit,^has_journal"},
        {"-text4", "-I128"},
        {"-text4", "-O^dir_index,^resize_inode"},
    };
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        unlink(image);
        run((const char *[]){"mke2fs", "-q", "-F", kinds[i][0], kinds[i][1], "-d", tree, image,
                             "16m", NULL});
        AUTO_BDEV struct bdev *d = load(image);
        check_tree(d);
    }
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct ext4_reader *r = NULL;
    AUTO_FREE char *tree = make_tree(f);
    AUTO_FREE char *image = mem_printf("%s/image", f->path);
    AUTO_BDEV struct bdev *nothing = memdev_new(1 << 20, true);
    AUTO_BDEV struct bdev *small = memdev_new(1000, true);
    assert_class(ext4_reader_open(&r, nothing, NULL, &e), ERR_CORRUPT);
    assert_class(ext4_reader_open(&r, small, NULL, &e), ERR_CORRUPT);
    run((const char *[]){"mke2fs", "-q", "-F", "-text4", "-O^metadata_csum", "-d", tree, image,
                         "16m", NULL});
    AUTO_BDEV struct bdev *d = load(image);
    uint8_t *super = memdev_bytes(d) + 1024;
    super[0x60] |= 4; /* its journal is to be replayed */
    assert_class(ext4_reader_open(&r, d, NULL, &e), ERR_UNSUPPORTED);
    super[0x60] = (uint8_t)(super[0x60] & ~4);
    super[0x62] = 0x80; /* a feature of tomorrow */
    assert_class(ext4_reader_open(&r, d, NULL, &e), ERR_UNSUPPORTED);
    super[0x62] = 0;
    super[0x07] = 0x10; /* 268 million blocks */
    assert_class(ext4_reader_open(&r, d, NULL, &e), ERR_CORRUPT);
    super[0x07] = 0;
    memdev_fail(d, 5);
    assert_class(ext4_reader_open(&r, d, NULL, &e), ERR_CORRUPT);
    memdev_fail(d, 0);
    uint8_t *name = memmem(memdev_bytes(d), d->size, "empty", 5);
    memcpy(name, "large", 5); /* a name twice */
    assert_class(ext4_reader_open(&r, d, NULL, &e), ERR_CORRUPT);
    memcpy(name, "empty", 5);
    struct cancel c;
    assert_ok(cancel_init(&c, &e));
    cancel_set(&c);
    assert_class(ext4_reader_open(&r, d, &c, &e), ERR_CANCELLED);
    cancel_fini(&c);
    check_tree(d);
}

/* Changes that debugfs makes, and what comes of them. */
static void test_contradictions(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *tree = make_tree(f);
    AUTO_FREE char *image = mem_printf("%s/image", f->path);
    static const char *const commands[] = {
        "link sub sub/again",                 /* a directory below itself */
        "link sub twice",                     /* a directory of two names */
        "set_inode_field large mode 0160644", /* a type that is none */
        "set_inode_field large links_count 0",
        "set_inode_field link size 70000",
        "set_inode_field large size 0x7fffffffffff",
        "set_inode_field sub flags 0x10000800", /* inline, or encrypted */
    };
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        struct ext4_reader *r = NULL;
        unlink(image);
        run((const char *[]){"mke2fs", "-q", "-F", "-text4", "-d", tree, image, "16m", NULL});
        run((const char *[]){"debugfs", "-w", "-R", commands[i], image, NULL});
        AUTO_BDEV struct bdev *d = load(image);
        int rc = ext4_reader_open(&r, d, NULL, &e);
        for (size_t n = 0; rc == 0 && n < ext4_reader_count(r); n++) {
            struct ext4_node node;
            rc = ext4_reader_node(r, n, &node, &e);
        }
        if (rc == 0 || !strchr(e.text, '/'))
            fail_msg("%s: %s", commands[i], rc == 0 ? "it was read" : e.text);
        ext4_reader_close(r);
        err_clear(&e);
    }
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Bytes of metadata changed at random: an error or a tree, and nothing goes on for ever. */
static void test_damage(void **state)
{
    struct fixture *f = *state;
    AUTO_FREE char *tree = make_tree(f);
    AUTO_FREE char *image = mem_printf("%s/image", f->path);
    const char *rounds = getenv("TB2_TEST_ROUNDS");
    size_t count = rounds ? (size_t)strtoul(rounds, NULL, 10) : 1500;
    run((const char *[]){"mke2fs", "-q", "-F", "-text4", "-b1024", "-N32",
                         "-O^metadata_csum,^has_journal", "-d", tree, image, "1m", NULL});
    AUTO_BDEV struct bdev *d = load(image);
    uint8_t *bytes = memdev_bytes(d);
    AUTO_FREE uint8_t *good = mem_dup(bytes, (size_t)d->size);
    uint64_t seed = 20251031;
    size_t read = 0;
    for (size_t i = 0; i < count; i++) {
        struct err e = ERR_INIT;
        struct ext4_reader *r = NULL;
        for (size_t n = 1 + next_random(&seed) % 6; n > 0; n--)
            bytes[1024 + next_random(&seed) % (48 << 10)] = (uint8_t)next_random(&seed);
        int rc = ext4_reader_open(&r, d, NULL, &e);
        for (size_t n = 0; rc == 0 && n < ext4_reader_count(r); n++) {
            struct ext4_node node;
            rc = ext4_reader_node(r, n, &node, &e);
        }
        assert_true(rc == 0 || e.class != 0);
        read += rc == 0;
        ext4_reader_close(r);
        memcpy(bytes, good, (size_t)d->size);
    }
    assert_true(read > 0 && read < count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kinds, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_refused, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_contradictions, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(test_damage, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
