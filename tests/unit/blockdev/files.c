/* SPDX-License-Identifier: MIT */
/* Devices as files, over real FUSE: bytes from several threads and through mappings, holes, damage, the end of a
 * server that is killed, users without privileges. Skipped where there is no FUSE. */
#include "fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/internal.h"
#include "memdev.h"

enum {
    CHUNKS = 8,
    SPACING = 1 << 20, /* a chunk at the beginning of each, then nothing */
    SIZE = CHUNKS * SPACING,
    CLIENTS = 6,
    CLIENT_SECONDS = 30,
    PATH_LEN = 64,
    READS = 300,
    NOBODY = 65534,
};

/* A map of chunks with holes between them, served as a file. */
struct served {
    uint8_t *bytes; /* what it must read as */
    struct digest chunks[CHUNKS];
    struct block_map *map;
    struct chunk_cache *cache;
    struct bdev *device;
    struct bdev_files *files;
    struct bdev_file *file;
};

static void make_map(struct served *s, struct store *store)
{
    struct err e = ERR_INIT;
    s->bytes = mem_zalloc(SIZE);
    assert_non_null(s->bytes);
    assert_ok(block_map_new(&s->map, SIZE, &e));
    for (size_t i = 0; i < CHUNKS; i++) {
        struct map_extent extent = {.off = i * SPACING,
                                    .size = (uint32_t)(CHUNK_SIZE_MAX - i * BLOCK_SIZE)};
        fixture_fill(s->bytes + extent.off, extent.size, i + 1);
        assert_ok(store_put_chunk(store, s->bytes + extent.off, extent.size, &extent.chunk, &e));
        s->chunks[i] = extent.chunk;
        assert_ok(block_map_add(s->map, &extent, &e));
    }
    assert_ok(block_map_finish(s->map, &e));
}

static void serve(struct served *s, struct store *store)
{
    struct err e = ERR_INIT;
    *s = (struct served){0};
    make_map(s, store);
    assert_ok(chunk_cache_new(&s->cache, store, 2 << 20, &e));
    assert_ok(bdev_open_map(&s->device, s->map, s->cache, &e));
    int rc = bdev_files_start(&s->files, &e);
    if (rc == -ERR_DENIED || rc == -ERR_UNSUPPORTED)
        print_message("%s\n", e.text);
    else
        assert_ok(rc);
    if (rc == 0)
        assert_ok(bdev_file_add(&s->file, s->files, s->device, &e));
}

static void end(struct served *s)
{
    bdev_file_remove(s->file);
    bdev_files_stop(s->files);
    bdev_close(s->device);
    chunk_cache_free(s->cache);
    block_map_free(s->map);
    free(s->bytes);
}

static bool unavailable(struct served *s)
{
    if (s->files)
        return false;
    end(s);
    skip();
    return true;
}

/* Whether any mount table of this process names one of ours. */
static bool mount_is_listed(void)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf table;
    buf_init(&table, 4 << 20);
    assert_ok(file_read(AT_FDCWD, "/proc/self/mountinfo", &table, &e));
    return strstr(buf_text(&table), "tb2-bake") != NULL;
}

/* ---- Clients ---- */

/* Files are opened by other processes. Such a one holds nothing of the server's, ends in time, and does not return. */
static pid_t start_client(const struct served *s,
                          int (*client)(const struct served *s, int argument), int argument)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    signal(SIGBUS, SIG_DFL);
    (void)alarm(CLIENT_SECONDS);
    (void)close_range(3, ~0u, 0);
    _exit(client(s, argument));
}

static int client_status(pid_t pid)
{
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void expect_client(const struct served *s,
                          int (*client)(const struct served *s, int argument), int argument)
{
    int status = client_status(start_client(s, client, argument));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int open_path(const char *path, int flags)
{
    return openat(AT_FDCWD, path, flags | O_CLOEXEC);
}

/* A private mapping of the whole file; NULL: none. */
static uint8_t *map_file(const struct served *s)
{
    AUTO_FD int fd = open_path(bdev_file_path(s->file), O_RDWR);
    void *bytes = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    return bytes == MAP_FAILED ? NULL : bytes;
}

/* ---- Bytes ---- */

static uint64_t next_number(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Random ranges, by pread or (odd numbers) in a mapping. */
static int read_at_random(const struct served *s, int number)
{
    static uint8_t piece[300000];
    uint64_t seed = (uint64_t)number;
    int fd = open_path(bdev_file_path(s->file), O_RDONLY);
    const uint8_t *mapping = map_file(s);
    /* Asks for huge pages, as QEMU does: the kernel then reads ahead far more. */
    if (fd < 0 || !mapping || madvise((void *)(uintptr_t)mapping, SIZE, MADV_HUGEPAGE) < 0)
        return 1;
    for (int i = 0; i < READS; i++) {
        size_t off = next_number(&seed) % SIZE;
        size_t len = 1 + next_number(&seed) % (i % 4 == 0 ? sizeof(piece) : 5000);
        len = len < SIZE - off ? len : SIZE - off;
        if (number % 2 == 0 && pread(fd, piece, len, (off_t)off) != (ssize_t)len)
            return 2;
        if (memcmp(number % 2 ? mapping + off : piece, s->bytes + off, len) != 0)
            return 3;
    }
    return memcmp(mapping, s->bytes, SIZE) == 0 ? 0 : 4;
}

/* Many at once. The cache is smaller than the map, so chunks come and go meanwhile. */
static void reads_equal_the_map(void **state)
{
    struct fixture *f = *state;
    struct served s;
    pid_t clients[CLIENTS];
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    for (int i = 0; i < CLIENTS; i++)
        clients[i] = start_client(&s, read_at_random, i);
    for (int i = 0; i < CLIENTS; i++)
        assert_int_equal(client_status(clients[i]), 0);
    end(&s);
}

static int read_holes(const struct served *s, int argument UNUSED)
{
    struct stat st;
    uint8_t byte = 1;
    int fd = open_path(bdev_file_path(s->file), O_RDONLY);
    if (fstat(fd, &st) < 0 || st.st_size != SIZE || pread(fd, &byte, 1, SIZE) != 0)
        return 1;
    for (size_t off = SPACING - 100000; off < SIZE; off += SPACING) {
        if (pread(fd, &byte, 1, (off_t)off) != 1 || byte != 0)
            return 2;
    }
    return pread(fd, &byte, 1, SIZE - 1) == 1 ? 0 : 3;
}

static void holes_cost_no_chunk(void **state)
{
    struct fixture *f = *state;
    struct served s;
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    expect_client(&s, read_holes, 0);
    assert_int_equal(chunk_cache_stats(s.cache).loads, 0);
    end(&s);
}

static int read_all(const struct served *s, int argument UNUSED)
{
    static uint8_t bytes[SIZE];
    int fd = open_path(bdev_file_path(s->file), O_RDONLY);
    return pread(fd, bytes, SIZE, 0) == SIZE && memcmp(bytes, s->bytes, SIZE) == 0 ? 0 : 1;
}

/* What the kernel has of a file all who open it share, also after it was closed. A clean page here or there it may
 * give up at any time, so some are read again; without sharing it would be all of them, three times. */
static void pages_are_kept(void **state)
{
    struct fixture *f = *state;
    struct served s;
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    for (int i = 0; i < 4; i++)
        expect_client(&s, read_all, 0);
    assert_in_range(bdev_stats(s.device).bytes_read, SIZE, SIZE + SIZE / 8);
    end(&s);
}

static int write_all_the_same(const struct served *s, int argument UNUSED)
{
    int fd = open_path(bdev_file_path(s->file), O_RDWR);
    uint8_t *mine = map_file(s);
    const uint8_t *other = map_file(s);
    if (!mine || !other)
        return 1;
    memset(mine + BLOCK_SIZE, 0xa5, BLOCK_SIZE);
    if (memcmp(other, s->bytes, SIZE) != 0)
        return 2;
    return pwrite(fd, "x", 1, 0) < 0 && ftruncate(fd, 0) < 0 ? 0 : 3;
}

/* It opens for writing, and what a private mapping is written stays there. */
static void nothing_can_be_written(void **state)
{
    struct fixture *f = *state;
    struct served s;
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    expect_client(&s, write_all_the_same, 0);
    expect_client(&s, read_all, 0);
    end(&s);
}

static int read_passing(const struct served *s, int number)
{
    uint8_t byte = 0;
    int fd = open_path(bdev_file_path(s->file), O_RDONLY);
    if (pread(fd, &byte, 1, 0) != 1 || byte != number)
        return 1;
    if (raise(SIGSTOP) != 0) /* the file is removed meanwhile */
        return 2;
    if (pread(fd, &byte, 1, SPACING - 1) != -1 || errno != EIO) /* never read before */
        return 3;
    return open_path(bdev_file_path(s->file), O_RDONLY) < 0 ? 0 : 4;
}

static void pass_by(const struct served *s, uint8_t number)
{
    struct err e = ERR_INIT;
    int status = 0;
    struct served passing = {.files = s->files};
    AUTO_BDEV struct bdev *d = memdev_new(SPACING, false);
    memset(memdev_bytes(d), number, SPACING);
    assert_ok(bdev_file_add(&passing.file, s->files, d, &e));
    pid_t client = start_client(&passing, read_passing, number);
    assert_int_equal(waitpid(client, &status, WUNTRACED), client);
    bdev_file_remove(passing.file);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(kill(client, SIGCONT), 0);
    assert_int_equal(client_status(client), 0);
}

/* Files come and go while others are read; one that is gone is EIO to who has it open, and has no name. */
static void files_come_and_go(void **state)
{
    struct fixture *f = *state;
    struct served s;
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    pid_t client = start_client(&s, read_at_random, 9);
    for (uint8_t i = 0; i < 20; i++)
        pass_by(&s, i);
    assert_int_equal(client_status(client), 0);
    end(&s);
}

/* ---- Damage ---- */

static void damage_chunk(struct fixture *f, const struct digest *chunk)
{
    struct err e = ERR_INIT;
    char path[CHUNK_PATH_MAX];
    AUTO_FD int fd = -1;
    assert_ok(file_open(&fd, store_dir(f->store), store_chunk_path(chunk, path), O_RDWR, 0, &e));
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, 5000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, 5000), 1);
}

static int touch_page(const struct served *s, int off)
{
    const uint8_t *bytes = map_file(s);
    return bytes && bytes[off] == s->bytes[off] ? 0 : 1;
}

static int read_around_damage(const struct served *s, int argument UNUSED)
{
    uint8_t byte;
    int fd = open_path(bdev_file_path(s->file), O_RDONLY);
    if (pread(fd, &byte, 1, 3 * SPACING) != -1 || errno != EIO)
        return 1;
    return pread(fd, &byte, 1, 4 * SPACING) == 1 && byte == s->bytes[4 * SPACING] ? 0 : 2;
}

static void damage_is_an_error_that_names_the_chunk(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct served s;
    char name[DIGEST_TEXT_MAX];
    serve(&s, f->store);
    if (unavailable(&s))
        return;
    damage_chunk(f, &s.chunks[3]);
    expect_client(&s, touch_page, SPACING);
    assert_false(bdev_map_failure(s.device, &e));
    int status = client_status(start_client(&s, touch_page, 3 * SPACING + 70000));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
    assert_true(bdev_map_failure(s.device, &e));
    assert_non_null(strstr(e.text, digest_print(&s.chunks[3], name)));
    expect_client(&s, read_around_damage, 0);
    end(&s);
}

/* ---- Servers of their own ---- */

/* Serves until it is killed. Sends its file's path, or nothing. */
static void serve_in_child(struct fixture *f, int pipe)
{
    struct served s;
    serve(&s, f->store);
    if (s.file && write(pipe, bdev_file_path(s.file), PATH_LEN) != PATH_LEN)
        _exit(1);
    close(pipe);
    for (;;)
        pause();
}

/* Killed while its file is open and mapped: the reader gets errors, and soon; no mount table ever had it. */
static void a_killed_server_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    int fds[2], status;
    char path[PATH_LEN] = "";
    uint8_t byte;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(fds[0]);
        serve_in_child(f, fds[1]);
    }
    close(fds[1]);
    bool serves = read(fds[0], path, sizeof(path)) == sizeof(path);
    close(fds[0]);
    AUTO_FD int fd = serves ? open_path(path, O_RDWR) : -1;
    bool listed = mount_is_listed();
    ssize_t first = serves ? pread(fd, &byte, 1, 0) : 0;
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!serves)
        skip();
    assert_int_equal(first, 1);
    assert_false(listed);
    assert_int_equal(pread(fd, &byte, 1, 5 * SPACING), -1);
    assert_int_equal(open_path(path, O_RDONLY), -1);
    assert_false(mount_is_listed());
}

/* Status 0 when a user without privileges is served; 77: not possible here; else wrong. */
static int serve_without_privileges(void)
{
    struct err e = ERR_INIT;
    struct served s = {0};
    if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
        return 1;
    s.device = memdev_new(SIZE, false); /* the store is not this user's */
    s.bytes = memdev_bytes(s.device);
    fixture_fill(s.bytes, SIZE, 1);
    if (bdev_files_start(&s.files, &e) < 0) {
        print_message("%s\n", e.text);
        return 77;
    }
    if (bdev_file_add(&s.file, s.files, s.device, &e) < 0)
        return 2;
    int status = client_status(start_client(&s, write_all_the_same, 0));
    if (status == 0)
        status = client_status(start_client(&s, read_all, 0));
    bdev_file_remove(s.file);
    bdev_files_stop(s.files);
    bdev_close(s.device);
    return status != 0 ? 3 : mount_is_listed() ? 4 : 0;
}

/* Root can try it as somebody else; udev gives /dev/fuse to everybody, which may not have happened here. The child
 * allocates, so nothing is served before: threads may hold the allocator's locks while it is forked. */
static void users_without_privileges_are_served(void **state UNUSED)
{
    struct stat st;
    int status;
    if (geteuid() != 0 || stat("/dev/fuse", &st) < 0)
        skip();
    bool shared = (st.st_mode & 06) == 06;
    if (!shared && chmod("/dev/fuse", 0666) < 0)
        skip();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(serve_without_privileges());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!shared)
        assert_int_equal(chmod("/dev/fuse", st.st_mode & 07777), 0);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_equal_the_map, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(holes_cost_no_chunk, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(pages_are_kept, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(nothing_can_be_written, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(files_come_and_go, fixture_setup, fixture_teardown),
        cmocka_unit_test_setup_teardown(damage_is_an_error_that_names_the_chunk, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_killed_server_leaves_nothing, fixture_setup,
                                        fixture_teardown),
        cmocka_unit_test(users_without_privileges_are_served),
    };
    return cmocka_run_group_tests_name("blockdev.files", tests, NULL, NULL);
}
