/* SPDX-License-Identifier: MIT */
/* The ext4 writer, judged by e2fsck and read back by debugfs. */
#include "ext4_tree.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"

/* ---- Disks ----------------------------------------------------------------------------- */

static uint64_t mapped(const struct block_map *m)
{
    uint64_t size = 0;
    for (size_t i = 0; i < block_map_count(m); i++)
        size += block_map_extent(m, i)->size;
    return size;
}

static void make_disk(struct tree *t, struct fixture *f, uint64_t free_size, struct disk *d)
{
    struct err e = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    assert_ok(tree_write(t, f, free_size, d, &m, &e));
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    assert_ok(block_map_encode(m, &bytes, &e));
    digest_bytes(&d->digest, bytes.data, bytes.len);
    snprintf(d->path, sizeof(d->path), "%s/disk", store_tmp_path(f->store));
    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, AT_FDCWD, d->path, O_RDWR | O_CREAT | O_TRUNC, 0600, &e));
    assert_ok(store_export_map(f->store, m, fd, 2, NULL, &e));
    assert_true(mapped(m) > 0);
    tree_check(t, f, m);
}

/* Runs a program; its output replaces what `out` holds. Skips the test if there is no such
 * program. */
static int run(const char *const argv[], struct buf *out)
{
    struct err e = ERR_INIT;
    int status = 0;
    buf_fini(out);
    buf_init(out, 64 * MIB);
    if (proc_run(argv, &(struct proc_io){.out = out, .timeout_ms = 60000}, &status, &e) < 0) {
        if (e.class == ERR_NOTFOUND)
            skip();
        fail_msg("%s", e.text);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check(const struct disk *d)
{
    AUTO_BUF struct buf out;
    buf_init(&out, 64 * MIB);
    int status = run((const char *[]){"e2fsck", "-fn", d->path, NULL}, &out);
    /* A complaint that e2fsck forgives is one all the same. */
    if (status != 0 || strstr(buf_text(&out), "Fix?") || strstr(buf_text(&out), "Clear?") ||
        strstr(buf_text(&out), "Optimize?"))
        fail_msg("e2fsck ended with %d: %s", status, buf_text(&out));
}

/* Runs one debugfs command and demands that its output holds each line of `wanted`. */
static void ask(const struct disk *d, const char *command, const char *wanted)
{
    AUTO_BUF struct buf out;
    buf_init(&out, 64 * MIB);
    run((const char *[]){"debugfs", "-R", command, d->path, NULL}, &out);
    AUTO_FREE char *lines = mem_strdup(wanted);
    for (char *line = lines, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (!strstr(buf_text(&out), line))
            fail_msg("%s: no \"%s\" in: %s", command, line, buf_text(&out));
    }
}

/* A file's bytes on the disk are those that tree_add_file gave it. */
static void check_file(const struct disk *d, const char *path, uint64_t size,
                       const uint64_t (*parts)[2])
{
    struct err e = ERR_INIT;
    AUTO_FREE char *dump = mem_printf("%s.file", d->path);
    AUTO_FREE char *command = mem_printf("dump %s %s", path, dump);
    AUTO_BUF struct buf out;
    buf_init(&out, MIB);
    run((const char *[]){"debugfs", "-R", command, d->path, NULL}, &out);
    uint64_t found = 0;
    assert_ok(file_size(AT_FDCWD, dump, &found, &e));
    assert_int_equal(found, size);
    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, AT_FDCWD, dump, O_RDONLY, 0, &e));
    for (size_t i = 0; parts && parts[i][1] > 0; i++) {
        size_t len = (size_t)parts[i][1];
        AUTO_FREE uint8_t *data = mem_zalloc(len), *back = mem_zalloc(len);
        fixture_fill(data, len, size);
        assert_ok(file_pread_full(fd, back, len, parts[i][0], &e));
        assert_memory_equal(back, data, len);
    }
}

/* ---- Tests ----------------------------------------------------------------------------- */

static void test_empty(void **state)
{
    struct fixture *f = *state;
    AUTO_TREE struct tree t;
    struct disk d;
    tree_init(&t, f, 1);
    make_disk(&t, f, 10 * GIB, &d);
    check(&d);
    ask(&d, "ls -p /", "/2/040755/0/0/./\n/2/040755/0/0/../");
    ask(&d, "show_super_stats -h",
        "Filesystem state:         clean\nReserved block count:     0\nFree inodes:\n"
        "Filesystem created:       Wed Jan  1\nMount count:              0\n"
        "Checksum type:            crc32c");
    struct stat st;
    assert_int_equal(stat(d.path, &st), 0);
    assert_int_equal((uint64_t)st.st_size % (128 * MIB), 0);
    assert_true((uint64_t)st.st_blocks * 512 < 2 * MIB);
}

static void test_sizes(void **state)
{
    struct fixture *f = *state;
    static const uint64_t sizes[] = {0,    1,    59,    60,    61,     4095,
                                     4096, 4097, 65535, 65536, 524288, 524289};
    AUTO_TREE struct tree t;
    struct disk d;
    char name[32];
    tree_init(&t, f, 1);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        snprintf(name, sizeof(name), "%06u", (unsigned)sizes[i]);
        tree_add_file(&t, 0, name, sizes[i], (const uint64_t[][2]){{0, sizes[i]}, {0, 0}});
    }
    make_disk(&t, f, GIB, &d);
    check(&d);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        snprintf(name, sizeof(name), "/%06u", (unsigned)sizes[i]);
        check_file(&d, name, sizes[i], (const uint64_t[][2]){{0, sizes[i]}, {0, 0}});
    }
}

static void test_types(void **state)
{
    struct fixture *f = *state;
    AUTO_TREE struct tree t;
    struct disk d;
    char target[BLOCK_SIZE];
    memset(target, 't', sizeof(target));
    tree_init(&t, f, 1);
    struct ext4_node *n = tree_add(&t, 0, EXT4_BLOCK_DEVICE, "block");
    n->device_major = 259;
    n->device_minor = 70000;
    n = tree_add(&t, 0, EXT4_CHARACTER_DEVICE, "character");
    n->device_major = 5;
    n->device_minor = 1;
    n = tree_add(&t, 0, EXT4_DIRECTORY, "directory");
    n->mode = 01777;
    n = tree_add(&t, 0, EXT4_FIFO, "fifo");
    n->uid = 1516583083;
    n->gid = 4294967294;
    n = tree_add_file(&t, 0, "file", 5, (const uint64_t[][2]){{0, 5}, {0, 0}});
    n->mode = 04755;
    n->mtime_seconds = 1700000000;
    n->mtime_nanoseconds = 123456789;
    size_t file = t.count - 1;
    tree_add(&t, 0, EXT4_FILE, "file2")->link_of = file;
    n = tree_add(&t, 0, EXT4_SYMLINK, "link59");
    n->target = target + sizeof(target) - 60;
    target[sizeof(target) - 1] = 0;
    n = tree_add(&t, 0, EXT4_SYMLINK, "link60");
    n->target = target + sizeof(target) - 61;
    n = tree_add(&t, 0, EXT4_SYMLINK, "link95");
    n->target = target;
    n = tree_add_file(&t, 0, "old", 0, NULL);
    n->mtime_seconds = -5;
    n = tree_add_file(&t, 0, "year2200", 0, NULL);
    n->mtime_seconds = 7258118400;
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "stat /block", "Type: block special\n259:70000");
    ask(&d, "stat /character", "Type: character special\nDevice major/minor number: 05:01");
    ask(&d, "stat /directory", "Mode:  01777\nLinks: 2");
    ask(&d, "stat /fifo", "Type: FIFO\nUser: 1516583083\nGroup:    -2");
    ask(&d, "stat /file2", "Links: 2\nMode:  04755\nmtime: 0x6553f100:1d6f3454\nSize: 5");
    ask(&d, "stat /link59", "Type: symlink\nFast link dest: \"ttt\nSize: 59\nBlockcount: 0");
    ask(&d, "stat /link60", "Size: 60\nBlockcount: 8");
    ask(&d, "stat /link95", "Size: 4095\nBlockcount: 8");
    ask(&d, "stat /old", "mtime: 0xfffffffb:00000000");
    ask(&d, "stat /year2200", "mtime: 0xb09e1900:00000002");
    check_file(&d, "/file2", 5, (const uint64_t[][2]){{0, 5}, {0, 0}});
}

static void test_deep(void **state)
{
    struct fixture *f = *state;
    AUTO_TREE struct tree t;
    struct disk d;
    tree_init(&t, f, 1);
    size_t parent = 0;
    for (size_t i = 0; i < 1000; i++) {
        tree_add(&t, parent, EXT4_DIRECTORY, "d");
        parent = t.count - 1;
    }
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "stat /d/d/d/d/d/d/d/d/d/d/d/d", "Links: 3");
}

/* Directories around the sizes at which their shape changes. */
static void test_large_directories(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t names;
        const char *format;
    } cases[] = {
        {253, "%04zu"}, {254, "%04zu"}, {255, "%04zu"}, {20000, "name-%06zu"}, {9000, "%0255zu"}};
    AUTO_TREE struct tree t;
    struct disk d;
    char name[300];
    tree_init(&t, f, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(name, sizeof(name), "dir%zu", i);
        tree_add(&t, 0, EXT4_DIRECTORY, name);
    }
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (size_t k = 0; k < cases[i].names; k++) {
            if (i == 3)
                snprintf(name, sizeof(name), "name-%06zu", k);
            else
                snprintf(name, sizeof(name), "%0*zu", i == 4 ? 255 : 4, k);
            tree_add(&t, 1 + i, EXT4_FIFO, name);
        }
    }
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "stat /dir3/name-000000", "Type: FIFO");
    ask(&d, "stat /dir3/name-019999", "Type: FIFO");
    ask(&d, "htree_dump /dir3", "Indirect levels: 0");
    ask(&d, "htree_dump /dir4", "Indirect levels: 1");
}

static void test_links(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    for (size_t names = 65000; names <= 65001; names++) {
        AUTO_TREE struct tree t;
        struct disk d;
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        char name[32];
        tree_init(&t, f, 1);
        tree_add_file(&t, 0, "a", 1, (const uint64_t[][2]){{0, 1}, {0, 0}});
        for (size_t i = 1; i < names; i++) {
            snprintf(name, sizeof(name), "b%05zu", i);
            tree_add(&t, 0, EXT4_FILE, name)->link_of = 1;
        }
        if (names > 65000) {
            assert_int_equal(tree_write(&t, f, GIB, &d, &m, &e), -ERR_UNSUPPORTED);
            assert_string_equal(e.text, "/a: it has more than 65000 names");
            continue;
        }
        make_disk(&t, f, GIB, &d);
        check(&d);
        ask(&d, "stat /b64999", "Links: 65000");
    }
}

static void test_subdirectories(void **state)
{
    struct fixture *f = *state;
    AUTO_TREE struct tree t;
    struct disk d;
    char name[32];
    tree_init(&t, f, 1);
    tree_add(&t, 0, EXT4_DIRECTORY, "many");
    for (size_t i = 0; i < 65500; i++) {
        snprintf(name, sizeof(name), "%05zu", i);
        tree_add(&t, 1, EXT4_DIRECTORY, name);
    }
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "stat /many", "Links: 1 ");
}

static void test_sparse(void **state)
{
    struct fixture *f = *state;
    static const uint64_t at_end[][2] = {{5 * GIB - 4, 4}, {0, 0}};
    AUTO_TREE struct tree t;
    struct disk d;
    tree_init(&t, f, 1);
    tree_add_file(&t, 0, "hole", 5 * GIB, NULL);
    tree_add_file(&t, 0, "sparse", 5 * GIB, at_end);
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "stat /hole", "Size: 5368709120\nBlockcount: 0");
    ask(&d, "stat /sparse", "Size: 5368709120\nBlockcount: 1024");
}

/* Files in pieces, with every other block a hole, so that extents cannot join. */
static void test_extent_trees(void **state)
{
    struct fixture *f = *state;
    static const struct {
        size_t extents;
        const char *tree;
    } cases[] = {{4, " 0/ 0   4/  4"},
                 {5, " 0/ 1   1/  1\n 1/ 1   5/  5"},
                 {340, " 0/ 1   1/  1\n 1/ 1 340/340"},
                 {341, " 0/ 1   2/  2\n 1/ 1   1/  1"},
                 {1360, " 0/ 1   4/  4\n 1/ 1 340/340"},
                 {1361, " 0/ 2   1/  1\n 1/ 2   5/  5\n 2/ 2   1/  1"}};
    AUTO_TREE struct tree t;
    struct disk d;
    char name[32];
    tree_init(&t, f, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(name, sizeof(name), "f%zu", i);
        uint64_t size = cases[i].extents * (uint64_t)BLOCK_SIZE;
        struct ext4_node *n =
            tree_add_file(&t, 0, name, size, (const uint64_t[][2]){{0, size}, {0, 0}});
        uint64_t disk_off = n->extents[0].disk_off;
        free((void *)(uintptr_t)n->extents);
        struct ext4_extent *own = mem_array(cases[i].extents, sizeof(*own));
        for (size_t k = 0; k < cases[i].extents; k++)
            own[k] =
                (struct ext4_extent){2 * k * BLOCK_SIZE, BLOCK_SIZE, disk_off + k * BLOCK_SIZE};
        n->extents = own;
        n->extent_count = cases[i].extents;
        n->size = 2 * size;
    }
    make_disk(&t, f, GIB, &d);
    check(&d);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        snprintf(name, sizeof(name), "ex /f%zu", i);
        ask(&d, name, cases[i].tree);
    }
}

static void test_xattrs(void **state)
{
    struct fixture *f = *state;
    static const uint8_t capability[20] = {1, 0, 0, 2, 0, 0x20};
    static const uint8_t acl[] = {2,    0,    0,    0,    1,    0,    6,    0,    0xff, 0xff, 0xff,
                                  0xff, 2,    0,    7,    0,    7,    0,    0,    0,    4,    0,
                                  4,    0,    0xff, 0xff, 0xff, 0xff, 0x10, 0,    7,    0,    0xff,
                                  0xff, 0xff, 0xff, 0x20, 0,    4,    0,    0xff, 0xff, 0xff, 0xff};
    AUTO_FREE uint8_t *large = mem_zalloc(3072);
    memset(large, 'L', 3072);
    struct ext4_xattr one[] = {{"security.capability", capability, sizeof(capability)},
                               {"user.empty", (const uint8_t *)"", 0},
                               {"user.lines", (const uint8_t *)"a\nb=c", 5}};
    struct ext4_xattr big[] = {{"user.large", large, 3072}};
    struct ext4_xattr acls[] = {{"system.posix_acl_access", acl, sizeof(acl)}};
    struct ext4_xattr label[] = {{"security.selinux", (const uint8_t *)"label", 5}};
    struct ext4_xattr many[40];
    char names[40][32];
    for (size_t i = 0; i < 40; i++) {
        snprintf(names[i], sizeof(names[i]), "user.number-%02zu", i);
        many[i] = (struct ext4_xattr){names[i], large, 70};
    }
    AUTO_TREE struct tree t;
    struct disk d;
    tree_init(&t, f, 1);
    struct ext4_node *n = tree_add_file(&t, 0, "acl", 0, NULL);
    n->xattrs = acls;
    n->xattr_count = 1;
    n = tree_add(&t, 0, EXT4_DIRECTORY, "directory");
    n->xattrs = label;
    n->xattr_count = 1;
    n = tree_add_file(&t, 0, "large", 0, NULL);
    n->xattrs = big;
    n->xattr_count = 1;
    n = tree_add(&t, 0, EXT4_SYMLINK, "link");
    n->target = "x";
    n->xattrs = label;
    n->xattr_count = 1;
    n = tree_add_file(&t, 0, "many", 0, NULL);
    n->xattrs = many;
    n->xattr_count = 40;
    n = tree_add_file(&t, 0, "ping", 3, (const uint64_t[][2]){{0, 3}, {0, 0}});
    n->uid = 1000;
    n->xattrs = one;
    n->xattr_count = 3;
    make_disk(&t, f, GIB, &d);
    check(&d);
    ask(&d, "ea_list /ping",
        "security.capability (20) = 01 00 00 02 00 20 00 00\nuser.empty (0)\n"
        "user.lines (5) = 61 0a 62 3d 63");
    ask(&d, "ea_list /acl",
        "system.posix_acl_access (28) = 01 00 00 00 01 00 06 00 02 00 07 00 07 00 00 00 04 00");
    ask(&d, "ea_list /directory", "security.selinux (5) = \"label\"");
    ask(&d, "ea_list /link", "security.selinux (5) = \"label\"");
    ask(&d, "ea_list /large", "user.large (3072)");
    ask(&d, "ea_list /many", "user.number-00 (70)\nuser.number-39 (70)");
}

static void test_free_space(void **state)
{
    struct fixture *f = *state;
    static const uint64_t free_sizes[] = {0, 10240 * MIB};
    for (size_t i = 0; i < ARRAY_LEN(free_sizes); i++) {
        AUTO_TREE struct tree t;
        struct disk d;
        tree_init(&t, f, 1);
        tree_add_file(&t, 0, "f", 3 * MIB, (const uint64_t[][2]){{0, 3 * MIB}, {0, 0}});
        make_disk(&t, f, free_sizes[i], &d);
        check(&d);
        AUTO_BUF struct buf out;
        buf_init(&out, MIB);
        run((const char *[]){"debugfs", "-R", "show_super_stats -h", d.path, NULL}, &out);
        const char *blocks = strstr(buf_text(&out), "Free blocks:"),
                   *inodes = strstr(buf_text(&out), "Free inodes:");
        assert_non_null(blocks);
        assert_non_null(inodes);
        assert_true(strtoull(blocks + 12, NULL, 10) * BLOCK_SIZE >= free_sizes[i] + 16 * MIB);
        assert_true(strtoull(inodes + 12, NULL, 10) >= free_sizes[i] / 16384);
    }
}

/* Metadata that does not fit before the data goes behind it, or makes the data start later. */
static void test_data_start(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(ext4_data_start(10 * GIB, 200000, 10 * GIB), GIB);
    assert_int_equal(ext4_data_start(0, 0, 0), GIB);
    assert_int_equal(ext4_data_start(10 * GIB, 2000000, 10 * GIB), GIB);
    assert_int_equal(ext4_data_start(100 * GIB, 5000000, 10 * GIB), 2 * GIB);
    assert_int_equal(ext4_data_start(0, 0, 200 * GIB), 4 * GIB);

    AUTO_TREE struct tree t;
    struct disk d;
    char name[32];
    tree_init(&t, f, 1);
    t.data_start = 3 * MIB; /* tables of 2.x MiB, then too little room for the directories */
    for (size_t i = 0; i < 500; i++) {
        snprintf(name, sizeof(name), "%04zu", i);
        tree_add(&t, 0, EXT4_DIRECTORY, name);
    }
    tree_add_file(&t, 0, "f", 3 * MIB, (const uint64_t[][2]){{0, 3 * MIB}, {0, 0}});
    make_disk(&t, f, 100 * MIB, &d);
    check(&d);
    check_file(&d, "/f", 3 * MIB, (const uint64_t[][2]){{0, 3 * MIB}, {0, 0}});
}

static void build_mixed(struct tree *t, struct fixture *f, size_t workers)
{
    static const uint64_t part[][2] = {{0, 100000}, {0, 0}};
    char name[32];
    tree_init(t, f, workers);
    for (size_t i = 0; i < 300; i++) {
        snprintf(name, sizeof(name), "d%04zu", i);
        tree_add(t, 0, EXT4_DIRECTORY, name);
        tree_add_file(t, t->count - 1, "a", 100000, part);
        tree_add_file(t, t->count - 2, "b", 10, (const uint64_t[][2]){{0, 10}, {0, 0}});
    }
}

static void test_same_bytes(void **state)
{
    struct fixture *f = *state;
    struct fixture *other = NULL;
    void *other_state = NULL;
    assert_int_equal(fixture_setup(&other_state), 0);
    other = other_state;
    struct disk first, second;
    AUTO_TREE struct tree t, u;
    build_mixed(&t, f, 1);
    make_disk(&t, f, GIB, &first);
    mode_t mask = umask(0077);
    setenv("TZ", "Pacific/Chatham", 1);
    setenv("SOURCE_DATE_EPOCH", "5", 1);
    tzset();
    build_mixed(&u, other, 4);
    make_disk(&u, other, GIB, &second);
    umask(mask);
    unsetenv("TZ");
    unsetenv("SOURCE_DATE_EPOCH");
    tzset();
    assert_true(digest_equal(&first.digest, &second.digest));
    assert_int_equal(fixture_teardown(&other_state), 0);
}

/* ---- Refusals --------------------------------------------------------------------------- */

static void long_name(struct tree *t)
{
    char name[257];
    memset(name, 'x', 256);
    name[256] = 0;
    tree_add(t, 0, EXT4_FIFO, name);
}
static void slash(struct tree *t)
{
    tree_add(t, 0, EXT4_FIFO, "a/b");
}
static void dots(struct tree *t)
{
    tree_add(t, 0, EXT4_FIFO, "..");
}
static void twice(struct tree *t)
{
    tree_add(t, 0, EXT4_FIFO, "a");
    tree_add(t, 0, EXT4_FIFO, "a");
}
static void file_as_parent(struct tree *t)
{
    tree_add(t, 0, EXT4_FIFO, "a");
    tree_add(t, 1, EXT4_FIFO, "b");
}
static void own_parent(struct tree *t)
{
    tree_add(t, 1, EXT4_DIRECTORY, "a");
}
static void directory_link(struct tree *t)
{
    tree_add(t, 0, EXT4_DIRECTORY, "a");
    tree_add(t, 0, EXT4_DIRECTORY, "b")->link_of = 1;
}
static void link_to_later(struct tree *t)
{
    tree_add(t, 0, EXT4_FILE, "a")->link_of = 2;
    tree_add(t, 0, EXT4_FILE, "b");
}
static void no_target(struct tree *t)
{
    tree_add(t, 0, EXT4_SYMLINK, "a")->target = "";
}
static void long_target(struct tree *t)
{
    static char target[BLOCK_SIZE + 1];
    memset(target, 't', BLOCK_SIZE);
    tree_add(t, 0, EXT4_SYMLINK, "a")->target = target;
}
static void bad_device(struct tree *t)
{
    tree_add(t, 0, EXT4_BLOCK_DEVICE, "a")->device_major = 4096;
}
static void add_xattr(struct tree *t, const char *name, const void *value, size_t len)
{
    static struct ext4_xattr x;
    x = (struct ext4_xattr){name, value, len};
    tree_add(t, 0, EXT4_DIRECTORY, "d");
    struct ext4_node *n = tree_add(t, 1, EXT4_FIFO, "a");
    n->xattrs = &x;
    n->xattr_count = 1;
}
static void large_xattr(struct tree *t)
{
    static uint8_t value[5000];
    add_xattr(t, "user.large", value, sizeof(value));
}
static void strange_xattr(struct tree *t)
{
    add_xattr(t, "com.example", "x", 1);
}
static void nameless_xattr(struct tree *t)
{
    add_xattr(t, "user.", "x", 1);
}
static void bad_acl(struct tree *t)
{
    add_xattr(t, "system.posix_acl_access", "\2\0\0\0\7\7", 6);
}
static void huge_file(struct tree *t)
{
    tree_add(t, 0, EXT4_FILE, "a")->size = (uint64_t)1 << 44;
}
static void shared_data(struct tree *t)
{
    for (size_t i = 0; i < 2; i++) {
        struct ext4_node *n = tree_add(t, 0, EXT4_FILE, i == 0 ? "a" : "b");
        struct ext4_extent *x = mem_zalloc(sizeof(*x));
        *x = (struct ext4_extent){0, BLOCK_SIZE, t->data_start};
        n->size = BLOCK_SIZE;
        n->extents = x;
        n->extent_count = 1;
    }
    tree_add_file(t, 0, "c", 1, (const uint64_t[][2]){{0, 1}, {0, 0}});
}
static void bad_place(struct tree *t)
{
    shared_data(t);
    struct ext4_extent *x = (struct ext4_extent *)(uintptr_t)t->nodes[1].extents;
    x->disk_off = 0;
}

static void test_refused(void **state)
{
    struct fixture *f = *state;
    static const struct {
        void (*build)(struct tree *t);
        enum err_class class;
        const char *text;
    } cases[] = {
        {long_name, ERR_UNSUPPORTED, "its name is longer than 255 bytes"},
        {slash, ERR_CORRUPT, "/a/b: not a name"},
        {dots, ERR_CORRUPT, "/..: not a name"},
        {twice, ERR_CORRUPT, "/a: its name is not after its sibling's"},
        {file_as_parent, ERR_CORRUPT, "/a/b: its parent is not a directory before it"},
        {own_parent, ERR_CORRUPT, "/a: its parent is not a directory before it"},
        {directory_link, ERR_CORRUPT, "/b: it is a link to what cannot have links"},
        {link_to_later, ERR_CORRUPT, "/a: it is a link to what cannot have links"},
        {no_target, ERR_UNSUPPORTED, "/a: a symbolic link to nothing"},
        {long_target, ERR_UNSUPPORTED, "/a: a symbolic link with a target of 4096 bytes or more"},
        {bad_device, ERR_UNSUPPORTED, "/a: a device number that Linux cannot have"},
        {large_xattr, ERR_UNSUPPORTED, "/d/a: its attributes do not fit"},
        {strange_xattr, ERR_UNSUPPORTED, "/d/a: ext4 has no place for its attribute com.example"},
        {nameless_xattr, ERR_UNSUPPORTED, "/d/a: ext4 cannot name its attribute user."},
        {bad_acl, ERR_UNSUPPORTED, "/d/a: its value is no access control list"},
        {huge_file, ERR_UNSUPPORTED, "/a: ext4 holds no file of 16 TiB or more"},
        {shared_data, ERR_CORRUPT, "/b: its data is another file's, too"},
        {bad_place, ERR_CORRUPT, "/a: its data has no valid place"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        AUTO_TREE struct tree t;
        struct disk d;
        struct block_map *m = NULL;
        tree_init(&t, f, 1);
        cases[i].build(&t);
        int rc = tree_write(&t, f, 0, &d, &m, &e);
        if (rc != -(int)cases[i].class || !strstr(e.text, cases[i].text))
            fail_msg("case %zu: %d \"%s\"", i, rc, e.text);
    }
}

/* Each allocation of ours fails in turn: an error, nothing leaked (the sanitizers watch), and in
 * the end the disk as ever. */
static void test_short_memory(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_TREE struct tree t;
    build_mixed(&t, f, 1);
    AUTO_BLOCK_MAP struct block_map *data = NULL, *m = NULL;
    assert_ok(region_writer_finish(t.writer, &data, &e));
    struct ext4_nodes nodes = {.count = 10, .node = tree_node, .ctx = &t};
    struct ext4_options options = {.data_start = t.data_start,
                                   .data_end = t.data_start + block_map_virtual_size(data)};
    unsigned long failures = 0;
    for (int rc = -1; rc < 0; failures++) {
        err_clear(&e);
        mem_fail_nth(failures + 1);
        rc = ext4_write(&m, f->store, &nodes, &options, &e);
        mem_fail_nth(0);
        if (rc < 0)
            assert_int_equal(e.class, ERR_NOMEM);
    }
    assert_true(failures > 10);
}

struct writing {
    struct tree tree;
    struct fixture *fixture;
    struct disk disk;
};

static void *write_one(void *ctx)
{
    struct writing *w = ctx;
    struct err e = ERR_INIT;
    struct block_map *m = NULL;
    if (tree_write(&w->tree, w->fixture, GIB, &w->disk, &m, &e) < 0)
        return NULL;
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    if (block_map_encode(m, &bytes, &e) == 0)
        digest_bytes(&w->disk.digest, bytes.data, bytes.len);
    block_map_free(m);
    return NULL;
}

/* Disks written at the same time into one store do not meet. */
static void test_threads(void **state)
{
    enum { THREADS = 4 };
    struct writing *w = mem_array(THREADS, sizeof(*w));
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        w[i].fixture = *state;
        build_mixed(&w[i].tree, w[i].fixture, 1);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_one, &w[i]), 0);
    for (size_t i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < THREADS; i++) {
        assert_int_equal(w[i].disk.digest.algorithm, DIGEST_SHA256);
        assert_true(digest_equal(&w[0].disk.digest, &w[i].disk.digest));
        tree_fini(&w[i].tree);
    }
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
        CASE(test_empty),
        CASE(test_sizes),
        CASE(test_types),
        CASE(test_deep),
        CASE(test_large_directories),
        CASE(test_links),
        CASE(test_subdirectories),
        CASE(test_sparse),
        CASE(test_extent_trees),
        CASE(test_xattrs),
        CASE(test_free_space),
        CASE(test_data_start),
        CASE(test_same_bytes),
        CASE(test_refused),
        CASE(test_short_memory),
        CASE(test_threads),
#undef CASE
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
