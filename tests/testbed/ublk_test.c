/* SPDX-License-Identifier: MIT */
/* The ublk front end on a real kernel, inside the testbed. As an argument: the number of rounds of
 * the last test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"
#include "disk_model.h"
#include "memdev.h"

/* linux/fs.h has a BLOCK_SIZE of its own. */
#define GET_SIZE _IOR(0x12, 114, size_t)
#define DISCARD _IO(0x12, 119)
#define ZERO_OUT _IO(0x12, 127)
#define FLUSH_BUFFERS _IO(0x12, 97)
#define GET_LOGICAL_BLOCK_SIZE _IO(0x12, 104)
#define GET_READ_ONLY _IO(0x12, 94)

enum { DISK = 16 << 20, PORTS = 4, COOKIE = 0x7b2 };

static unsigned long rounds = 20;
static unsigned long steps = 400;

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s; %s", e.text, e.hint);                                                    \
    } while (0)

/* ---- Helpers ---- */

static struct ublk_server *serve(struct bdev *d)
{
    struct err e = ERR_INIT;
    struct ublk_server *u = NULL;
    assert_ok(ublk_start(&u, d, &(struct ublk_options){.cookie = COOKIE, .recover = -1}, &e));
    return u;
}

static void stop(struct ublk_server *u)
{
    struct err e = ERR_INIT;
    assert_ok(ublk_stop(u, &e));
}

static int open_disk(const struct ublk_server *u, int flags)
{
    char path[32];
    int fd = openat(AT_FDCWD, ublk_path(u, path), flags | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static size_t device_count(void)
{
    DIR *list = opendir("/sys/class/ublk-char");
    size_t count = 0;
    const struct dirent *entry;
    while (list && (entry = readdir(list)))
        count += entry->d_name[0] != '.';
    if (list)
        closedir(list);
    return count;
}

static void fill(uint8_t *data, size_t len, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        data[i] = (uint8_t)(x >> 24);
    }
}

/* ---- Tests ---- */

static void what_the_kernel_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool writable;
    } rows[] = {{"writable", true}, {"read-only", false}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        print_message("%s\n", rows[i].name);
        AUTO_BDEV struct bdev *d = memdev_new(DISK, rows[i].writable);
        struct ublk_server *u = serve(d);
        AUTO_FD int fd = open_disk(u, O_RDONLY);
        uint64_t size = 0;
        int block = 0, read_only = -1;
        assert_int_equal(ioctl(fd, GET_SIZE, &size), 0);
        assert_int_equal(size, DISK);
        assert_int_equal(ioctl(fd, GET_LOGICAL_BLOCK_SIZE, &block), 0);
        assert_int_equal(block, 4096);
        assert_int_equal(ioctl(fd, GET_READ_ONLY, &read_only), 0);
        assert_int_equal(read_only, !rows[i].writable);
        file_close(&fd);
        stop(u);
        assert_int_equal(device_count(), 0);
    }
}

static void errors_are_those_of_the_device(void **state)
{
    (void)state;
    AUTO_BDEV struct bdev *d = memdev_new(DISK, true);
    struct ublk_server *u = serve(d);
    AUTO_FD int fd = open_disk(u, O_RDWR | O_DIRECT);
    void *block;
    assert_int_equal(posix_memalign(&block, 4096, 4096), 0);
    memset(block, 1, 4096);
    static const int errors[] = {EIO, ENOSPC};
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        memdev_fail(d, errors[i]);
        errno = 0;
        assert_true(pread(fd, block, 4096, 0) < 0);
        assert_int_equal(errno, errors[i]);
        assert_true(pwrite(fd, block, 4096, 8192) < 0);
        assert_int_equal(errno, errors[i]);
        memdev_fail(d, 0);
        assert_int_equal(pread(fd, block, 4096, 0), 4096);
        assert_int_equal(pwrite(fd, block, 4096, 8192), 4096);
    }
    free(block);
    file_close(&fd);
    stop(u);
}

/* A disk as a port of the model: buffered, since the model's requests need no alignment; the page
 * cache is emptied all the time, so that the device is really asked. */
struct port {
    int fd;
    unsigned calls;
};

static int port_read(void *ctx, void *data, size_t len, uint64_t off)
{
    struct port *p = ctx;
    (void)posix_fadvise(p->fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
    return pread(p->fd, data, len, (off_t)off) == (ssize_t)len ? 0 : -1;
}

static int port_write(void *ctx, const void *data, size_t len, uint64_t off)
{
    struct port *p = ctx;
    return pwrite(p->fd, data, len, (off_t)off) == (ssize_t)len ? 0 : -1;
}

/* Whole blocks by the kernel's two ways, the rest by writing. */
static int port_zero(void *ctx, uint64_t len, uint64_t off)
{
    static const uint8_t zeros[4096];
    struct port *p = ctx;
    uint64_t end = off + len;
    uint64_t first = mem_round_up(off, sizeof(zeros)), last = end / sizeof(zeros) * sizeof(zeros);
    if (first > last)
        return port_write(ctx, zeros, (size_t)len, off);
    if (port_write(ctx, zeros, (size_t)(first - off), off) < 0 ||
        port_write(ctx, zeros, (size_t)(end - last), last) < 0)
        return -1;
    uint64_t range[] = {first, last - first};
    return range[1] == 0 ? 0 : ioctl(p->fd, p->calls++ % 2 ? ZERO_OUT : DISCARD, range);
}

static int port_flush(void *ctx)
{
    struct port *p = ctx;
    return p->calls++ % 8 == 0 ? ioctl(p->fd, FLUSH_BUFFERS, 0) : fdatasync(p->fd);
}

static void requests_equal_the_model(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_FREE uint8_t *model = mem_zalloc(DISK);
    struct bdev *lower = memdev_new(DISK, false);
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_FD int tmp = openat(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY);
    fill(model, DISK, 3);
    memcpy(memdev_bytes(lower), model, DISK);
    assert_ok(bdev_open_cow(&d, lower, tmp, 0, &e));
    struct ublk_server *u = serve(d);
    struct port own[PORTS];
    struct disk_port ports[PORTS];
    for (size_t i = 0; i < PORTS; i++) {
        own[i] = (struct port){.fd = open_disk(u, O_RDWR)};
        ports[i] = (struct disk_port){.read = port_read,
                                      .write = port_write,
                                      .zero = port_zero,
                                      .flush = port_flush,
                                      .ctx = &own[i]};
    }
    assert_true(disk_model_exercise(ports, PORTS, model, DISK, disk_model_steps(steps),
                                    disk_model_seed(1861)));
    assert_int_equal(ioctl(own[0].fd, FLUSH_BUFFERS, 0), 0);
    assert_true(disk_model_equal(&ports[0], model, DISK));
    for (size_t i = 0; i < PORTS; i++)
        assert_int_equal(close(own[i].fd), 0);
    stop(u);
    AUTO_FREE uint8_t *data = mem_zalloc(DISK);
    assert_int_equal(bdev_read(d, data, DISK, 0), 0);
    assert_memory_equal(data, model, DISK);
}

/* The next disk under the same name has nothing of the one before in the page cache. */
static void a_number_used_again_is_another_disk(void **state)
{
    (void)state;
    uint32_t number = UINT32_MAX;
    size_t same = 0;
    for (size_t i = 0; i < 6; i++) {
        size_t size = (size_t)(i % 3 + 1) << 20;
        AUTO_BDEV struct bdev *d = memdev_new(size, i % 2);
        fill(memdev_bytes(d), size, i);
        struct ublk_server *u = serve(d);
        same += ublk_number(u) == number;
        number = ublk_number(u);
        AUTO_FD int fd = open_disk(u, O_RDONLY);
        AUTO_FREE uint8_t *data = mem_zalloc(size);
        uint64_t told = 0;
        assert_int_equal(ioctl(fd, GET_SIZE, &told), 0);
        assert_int_equal(told, size);
        assert_int_equal(pread(fd, data, size, 0), (ssize_t)size);
        assert_memory_equal(data, memdev_bytes(d), size);
        file_close(&fd);
        stop(u);
    }
    assert_true(same > 0);
}

/* Whoever has it open keeps nothing up, and reads nothing more. */
static void a_disk_in_use_can_be_removed(void **state)
{
    (void)state;
    AUTO_BDEV struct bdev *d = memdev_new(DISK, true);
    struct ublk_server *u = serve(d);
    AUTO_FD int fd = open_disk(u, O_RDONLY);
    uint8_t byte;
    assert_int_equal(pread(fd, &byte, 1, 0), 1);
    stop(u);
    assert_int_equal(device_count(), 0);
    assert_true(pread(fd, &byte, 1, 1 << 20) <= 0);
    /* Nor does a new one get its number. */
    struct ublk_server *other = serve(d);
    assert_true(pread(fd, &byte, 1, 2 << 20) <= 0);
    stop(other);
}

/* A missing chunk holds up nobody else: reads that must wait are others' business. */
static void reads_that_wait_are_answered_later(void **state)
{
    (void)state;
    AUTO_BDEV struct bdev *d = memdev_new(DISK, true);
    memset(memdev_bytes(d), 7, DISK);
    struct ublk_server *u = serve(d);
    memdev_close_gate(d);
    pid_t reader = fork();
    if (reader == 0) {
        AUTO_FD int in = open_disk(u, O_RDONLY | O_DIRECT);
        void *block;
        _exit(posix_memalign(&block, 4096, 4096) == 0 && pread(in, block, 4096, 0) == 4096 &&
                      *(uint8_t *)block == 7
                  ? 0
                  : 1);
    }
    while (memdev_waiting(d) == 0)
        clock_sleep_ms(1);
    /* From the same queues: as many writes as make it certain. */
    AUTO_FD int fd = open_disk(u, O_WRONLY | O_DIRECT);
    void *block;
    assert_int_equal(posix_memalign(&block, 4096, 4096), 0);
    memset(block, 9, 4096);
    for (off_t i = 1; i < 100; i++)
        assert_int_equal(pwrite(fd, block, 4096, i * 4096), 4096);
    memdev_open_gate(d);
    int status;
    assert_int_equal(waitpid(reader, &status, 0), reader);
    assert_int_equal(status, 0);
    free(block);
    file_close(&fd);
    stop(u);
}

/* Kilobytes of this process that are not files' (VmRSS without RssFile). */
static unsigned long memory_kb(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[128];
    unsigned long anonymous = 0;
    while (status && fgets(line, sizeof(line), status))
        if (sscanf(line, "RssAnon: %lu kB", &anonymous) == 1)
            break;
    if (status)
        fclose(status);
    return anonymous;
}

/* Many disks of one map in one process. */
static void devices_cost_what_is_touched(void **state)
{
    enum { DEVICES = 64, DEVICE_KB_MAX = 512, CHUNKS = 16 };
    (void)state;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_CHUNK_CACHE struct chunk_cache *c = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    assert_ok(store_open(&s, "/tmp/store", &e));
    assert_ok(block_map_new(&m, (uint64_t)10 << 30, &e));
    for (size_t i = 0; i < CHUNKS; i++) {
        struct map_extent extent = {.off = i << 28, .size = CHUNK_SIZE_MAX};
        fill(data, CHUNK_SIZE_MAX, i);
        assert_ok(store_put_chunk(s, data, CHUNK_SIZE_MAX, &extent.chunk, &e));
        assert_ok(block_map_add(m, &extent, &e));
    }
    assert_ok(block_map_finish(m, &e));
    assert_ok(chunk_cache_new(&c, s, 256 << 20, &e));
    struct bdev *disks[DEVICES];
    struct ublk_server *servers[DEVICES];
    unsigned long before = memory_kb();
    for (size_t i = 0; i < DEVICES; i++) {
        struct bdev *leaf;
        assert_ok(bdev_open_map(&leaf, m, c, &e));
        assert_ok(bdev_open_cow(&disks[i], leaf, store_tmp_dir(s), 0, &e));
        servers[i] = serve(disks[i]);
    }
    unsigned long idle = memory_kb();
    for (size_t i = 0; i < DEVICES; i++) {
        AUTO_FD int fd = open_disk(servers[i], O_RDONLY | O_DIRECT);
        void *block;
        assert_int_equal(posix_memalign(&block, 4096, CHUNK_SIZE_MAX), 0);
        for (size_t k = 0; k < CHUNKS; k++)
            assert_int_equal(pread(fd, block, CHUNK_SIZE_MAX, (off_t)(k << 28)), CHUNK_SIZE_MAX);
        free(block);
    }
    clock_sleep_ms(3000); /* buffers are given back */
    unsigned long used = memory_kb();
    print_message("%d devices of one disk: %lu kB each idle, %lu kB in all when each has read the "
                  "same %d kB\n",
                  DEVICES, (idle - before) / DEVICES, used - idle, CHUNKS * (CHUNK_SIZE_MAX >> 10));
    assert_true(idle - before < DEVICES * DEVICE_KB_MAX);
    assert_true(used - idle < 4 * CHUNKS * (CHUNK_SIZE_MAX >> 10));
    assert_int_equal(chunk_cache_stats(c).loads, CHUNKS);
    for (size_t i = 0; i < DEVICES; i++) {
        stop(servers[i]);
        bdev_close(disks[i]);
    }
    assert_int_equal(device_count(), 0);
}

/* ---- Killed servers ---- */

struct shared {
    _Atomic int number; /* -1 until served */
    _Atomic int failed;
    char why[512];
};

/* A server process over a kept upper in /tmp; serves until it is killed, or asked by SIGTERM. */
static pid_t start_server(struct shared *shared, int recover)
{
    shared->number = -1;
    shared->failed = 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    struct err e = ERR_INIT;
    struct bdev *lower = memdev_new(DISK, false), *d = NULL;
    struct ublk_server *u = NULL;
    fill(memdev_bytes(lower), DISK, 11);
    int tmp = openat(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY);
    if (bdev_open_cow_kept(&d, lower, tmp, "upper", 0, &e) < 0 ||
        ublk_start(&u, d, &(struct ublk_options){.cookie = COOKIE, .recover = recover}, &e) < 0) {
        snprintf(shared->why, sizeof(shared->why), "%s", e.text);
        shared->failed = 1;
        _exit(1);
    }
    shared->number = (int)ublk_number(u);
    int number;
    sigwait(&set, &number);
    int rc = ublk_stop(u, &e);
    snprintf(shared->why, sizeof(shared->why), "%s", e.text);
    _exit(rc < 0);
}

static void wait_served(struct shared *shared)
{
    while (shared->number < 0 && !shared->failed)
        clock_sleep_ms(1);
    if (shared->failed)
        fail_msg("%s", shared->why);
}

static void end_server(const struct shared *shared, pid_t pid, int signal_number)
{
    int status;
    assert_int_equal(kill(pid, signal_number), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (signal_number == SIGTERM && status != 0)
        fail_msg("%s", shared->why);
}

static struct shared *share(void)
{
    void *at = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                    -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}

static void forget_upper(void)
{
    struct err e = ERR_INIT;
    AUTO_FD int tmp = openat(AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY);
    assert_ok(bdev_cow_forget(tmp, "upper", &e));
}

/* Writes block after block, each with its number, and checks what was answered. */
struct writer {
    const char *path;
    atomic_uint written; /* so many blocks are answered */
    atomic_bool stop;
    bool good;
};

static void *write_on(void *arg)
{
    struct writer *w = arg;
    int fd = openat(AT_FDCWD, w->path, O_RDWR | O_DIRECT | O_CLOEXEC);
    void *block = NULL;
    w->good = fd >= 0 && posix_memalign(&block, 4096, 4096) == 0;
    for (uint32_t i = 0; w->good && !w->stop && i < DISK / 4096; i++) {
        memset(block, (int)i % 250 + 1, 4096);
        w->good = pwrite(fd, block, 4096, (off_t)i * 4096) == 4096;
        w->written = i + 1;
    }
    free(block);
    close(fd);
    return NULL;
}

static void killed_under_load_and_recovered(void **state)
{
    (void)state;
    struct shared *shared = share();
    forget_upper();
    pid_t server = start_server(shared, -1);
    wait_served(shared);
    int number = shared->number;
    char path[32];
    snprintf(path, sizeof(path), "/dev/ublkb%d", number);
    struct writer w = {.path = path};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_on, &w), 0);
    for (unsigned kills = 1; kills <= 3; kills++) {
        while (w.written < kills * 100)
            clock_sleep_ms(1);
        end_server(shared, server, SIGKILL);
        struct err e = ERR_INIT;
        uint32_t found = UINT32_MAX;
        assert_ok(ublk_find(COOKIE, &found, &e));
        assert_int_equal(found, number);
        /* With another cookie it is not ours, and stays. */
        bool live;
        assert_true(ublk_look(found, COOKIE + 1, &live, &e) < 0);
        err_clear(&e);
        assert_ok(ublk_remove(found, COOKIE + 1, &e));
        assert_int_equal(device_count(), 1);
        server = start_server(shared, number);
        wait_served(shared);
    }
    unsigned before = w.written;
    while (w.written < before + 50 && w.written < DISK / 4096)
        clock_sleep_ms(1);
    w.stop = true;
    pthread_join(thread, NULL);
    assert_true(w.good); /* no write failed: the kernel kept those that were under way */
    AUTO_FD int fd = openat(AT_FDCWD, path, O_RDONLY);
    AUTO_FREE uint8_t *data = mem_zalloc(DISK), *wanted = mem_zalloc(DISK);
    fill(wanted, DISK, 11);
    for (size_t i = 0; i < w.written; i++)
        memset(wanted + i * 4096, (int)i % 250 + 1, 4096);
    assert_int_equal(pread(fd, data, DISK, 0), DISK);
    assert_memory_equal(data, wanted, DISK);
    file_close(&fd);
    end_server(shared, server, SIGTERM);
    assert_int_equal(device_count(), 0);
    forget_upper();
}

static void no_device_is_left_behind(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct shared *shared = share();
    for (unsigned long i = 0; i < rounds; i++) {
        forget_upper();
        pid_t server = start_server(shared, -1);
        /* Some are killed before they are up. */
        if (i % 4 == 3)
            clock_sleep_ms((int64_t)(i % 16));
        else
            wait_served(shared);
        if (i % 2 == 0) {
            end_server(shared, server, SIGTERM);
        } else {
            end_server(shared, server, SIGKILL);
            uint32_t number;
            while (ublk_find(COOKIE, &number, &e) == 0)
                assert_ok(ublk_remove(number, COOKIE, &e));
            err_clear(&e);
        }
        assert_int_equal(device_count(), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        rounds = strtoul(argv[1], NULL, 10);
        steps *= 10;
    }
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_kernel_is_told),
        cmocka_unit_test(errors_are_those_of_the_device),
        cmocka_unit_test(requests_equal_the_model),
        cmocka_unit_test(a_number_used_again_is_another_disk),
        cmocka_unit_test(a_disk_in_use_can_be_removed),
        cmocka_unit_test(reads_that_wait_are_answered_later),
        cmocka_unit_test(devices_cost_what_is_touched),
        cmocka_unit_test(killed_under_load_and_recovered),
        cmocka_unit_test(no_device_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
