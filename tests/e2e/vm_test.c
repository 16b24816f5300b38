/* SPDX-License-Identifier: MIT */
/*
 * The QEMU driver against real guests: boot, run, freeze, save, restore twice, and each way in
 * which a machine ends. argv: cache directory, static guest program. Prints what each part took.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"
#include "memdev.h"

enum { DISK_SIZE = 32 << 20, MEMORY_MB = 2048, BOOT_MS = 120000, RUN_MS = 60000 };

static const char *cache_dir;
static const char *guest_program;

struct fixture {
    char dir[64]; /* holds run/, other/, state, memory, root/, disk */
    struct guest_kernel kernel;
    uint8_t *disk; /* as it was when the state was saved */
    struct digest memory;
    int64_t boot_ms;
};

#define ASSERT_OK(call, e)                                                                         \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail_msg("%s: %s", #call, (e).text);                                                   \
    } while (0)

static char *in(const struct fixture *f, const char *name)
{
    char *path = mem_printf("%s/%s", f->dir, name);
    assert_non_null(path);
    return path;
}

static void run(const char *const argv[])
{
    struct err e = ERR_INIT;
    int status = 0;
    ASSERT_OK(proc_run(argv, &(struct proc_io){.timeout_ms = RUN_MS}, &status, &e), e);
    assert_int_equal(status, 0);
}

static void read_into(const char *path, uint8_t *data, size_t len)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    ASSERT_OK(file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, &e), e);
    ASSERT_OK(file_pread_full(fd, data, len, 0, &e), e);
}

static void digest_file(const char *path, struct digest *out)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    AUTO_HASHER struct hasher *h = NULL;
    ASSERT_OK(file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, &e), e);
    ASSERT_OK(hasher_new(&h, DIGEST_SHA256, &e), e);
    static uint8_t piece[1 << 20];
    ssize_t n;
    while ((n = read(fd, piece, sizeof(piece))) > 0)
        hasher_add(h, piece, (size_t)n);
    assert_int_equal(n, 0);
    hasher_finish(h, out);
}

/* A disk with /program and an empty /etc. */
static void make_disk(struct fixture *f)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *root = in(f, "root");
    AUTO_FREE char *program = in(f, "root/program");
    AUTO_FREE char *image = in(f, "disk");
    AUTO_FREE char *etc = in(f, "root/etc");
    ASSERT_OK(file_make_dirs(AT_FDCWD, etc, &e), e);
    run((const char *const[]){"cp", guest_program, program, NULL});
    run((const char *const[]){"mke2fs", "-q", "-t", "ext4", "-d", root, image, "32M", NULL});
    f->disk = mem_zalloc(DISK_SIZE);
    assert_non_null(f->disk);
    read_into(image, f->disk, DISK_SIZE);
}

/* One machine on a disk of its own. */
struct guest {
    struct bdev *disk;
    struct nbd_server *nbd;
    struct vm *vm;
    struct agent *agent;
    char *run_dir;
    char *memory;
    int64_t took_ms; /* until the agent answered */
};

static void guest_stop(struct guest *g)
{
    agent_free(g->agent);
    vm_free(g->vm);
    nbd_server_stop(g->nbd);
    bdev_close(g->disk);
    free(g->run_dir);
    free(g->memory);
    *g = (struct guest){0};
}

static void guest_start(struct fixture *f, struct guest *g, const char *state)
{
    struct err e = ERR_INIT;
    *g = (struct guest){0};
    g->run_dir = in(f, state ? "other" : "run");
    g->memory = in(f, "memory");
    ASSERT_OK(file_make_dirs(AT_FDCWD, g->run_dir, &e), e);
    g->disk = memdev_new(DISK_SIZE, true);
    memcpy(memdev_bytes(g->disk), f->disk, DISK_SIZE);
    AUTO_FREE char *socket = mem_printf("%s/nbd.sock", g->run_dir);
    ASSERT_OK(nbd_server_start(&g->nbd, g->disk, socket, &e), e);
    struct vm_options o = {.kernel = &f->kernel,
                           .run_dir = g->run_dir,
                           .nbd_socket = socket,
                           .memory_path = g->memory,
                           .cpus = 1,
                           .memory_mb = MEMORY_MB,
                           .accel = VM_ACCEL_TCG};
    int64_t start = clock_ms();
    if (state)
        ASSERT_OK(vm_restore(&g->vm, &o, state, &e), e);
    else
        ASSERT_OK(vm_boot(&g->vm, &o, &e), e);
    ASSERT_OK(agent_connect(&g->agent, g->vm, BOOT_MS, NULL, &e), e);
    if (!state)
        ASSERT_OK(agent_mount(g->agent, &e), e);
    g->took_ms = clock_ms() - start;
    ASSERT_OK(vm_check(g->vm, &e), e);
}

static int collect(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    return stream == 1 ? buf_add(ctx, data, len, e) : 0;
}

static int run_program(struct guest *g, const char *what, struct agent_result *result,
                       struct buf *text, struct err *e)
{
    struct agent_exec exec = {.argv = (const char *const[]){"/program", what, NULL},
                              .env = (const char *const[]){"PATH=/", NULL},
                              .timeout_ms = RUN_MS};
    return agent_run(g->agent, &exec, collect, text, result, e);
}

static void check_program(struct guest *g)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    struct agent_result result = {0};
    ASSERT_OK(run_program(g, "hello", &result, &text, &e), e);
    assert_true(result.exited);
    assert_int_equal(result.status, 7);
    assert_string_equal(buf_text(&text), "hello from the guest\n");
}

static char *state_path(const struct fixture *f)
{
    return in(f, "state");
}

static void test_boot_and_save(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    struct guest g;
    guest_start(f, &g, NULL);
    f->boot_ms = g.took_ms;
    check_program(&g);
    ASSERT_OK(agent_put(g.agent, "/etc/mark", 0644, "kept", 4, &e), e);
    ASSERT_OK(agent_sync(g.agent, true, &e), e);
    ASSERT_OK(agent_freeze(g.agent, &e), e);
    agent_free(MOVE(g.agent));
    uint64_t flushes = bdev_stats(g.disk).flushes;
    AUTO_FREE char *path = state_path(f);
    int64_t start = clock_ms();
    ASSERT_OK(vm_snapshot(g.vm, path, &e), e);
    int64_t took = clock_ms() - start;
    assert_true(bdev_stats(g.disk).flushes > flushes);
    ASSERT_OK(vm_check(g.vm, &e), e); /* stopped by us: no fault */
    memcpy(f->disk, memdev_bytes(g.disk), DISK_SIZE);
    guest_stop(&g);
    AUTO_FREE char *memory = in(f, "memory");
    digest_file(memory, &f->memory);
    struct stat saved;
    struct stat mapped;
    assert_int_equal(stat(path, &saved), 0);
    assert_int_equal(stat(memory, &mapped), 0);
    assert_true(saved.st_size < 4 << 20);
    print_message("boot to agent %lld ms; save %lld ms, %lld KiB of state, %lld MiB of memory\n",
                  (long long)f->boot_ms, (long long)took, (long long)saved.st_size / 1024,
                  (long long)mapped.st_blocks / 2048);
}

static void test_restore_twice(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *path = state_path(f);
    AUTO_FREE char *memory = in(f, "memory");
    for (int i = 0; i < 2; i++) {
        struct guest g;
        guest_start(f, &g, path);
        int64_t before_ns = 0;
        int64_t now_ns = 0;
        ASSERT_OK(agent_set_clock(g.agent, &before_ns, &e), e);
        ASSERT_OK(agent_clock(g.agent, &now_ns, &e), e);
        int64_t skew_ms = (clock_wall_ns() - now_ns) / 1000000;
        assert_in_range(skew_ms + 1000, 0, 2000);
        ASSERT_OK(agent_reseed(g.agent, &e), e);
        ASSERT_OK(agent_thaw(g.agent, &e), e);
        check_program(&g);
        AUTO_BUF struct buf mark;
        buf_init(&mark, LIMIT_TOKEN);
        ASSERT_OK(agent_get(g.agent, "/etc/mark", &mark, &e), e);
        assert_string_equal(buf_text(&mark), "kept");
        /* Each restore starts from the same state. */
        AUTO_BUF struct buf other;
        buf_init(&other, LIMIT_TOKEN);
        assert_int_equal(agent_get(g.agent, "/etc/other", &other, &e), -ERR_NOTFOUND);
        err_clear(&e);
        ASSERT_OK(agent_put(g.agent, "/etc/other", 0644, "x", 1, &e), e);
        ASSERT_OK(agent_sync(g.agent, true, &e), e);
        print_message("restore to agent %lld ms\n", (long long)g.took_ms);
        assert_true(2 * g.took_ms < f->boot_ms);
        guest_stop(&g);
        struct digest after;
        digest_file(memory, &after);
        assert_true(digest_equal(&after, &f->memory));
    }
}

/* Restores, lets `end` end the machine, expects the text. */
static void check_end(struct fixture *f, void (*end)(struct guest *g), const char *expected)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *path = state_path(f);
    struct guest g;
    guest_start(f, &g, path);
    ASSERT_OK(agent_thaw(g.agent, &e), e);
    end(&g);
    int64_t deadline = clock_ms() + RUN_MS;
    int rc;
    while ((rc = vm_check(g.vm, &e)) == 0 && clock_ms() < deadline)
        clock_sleep_ms(10);
    assert_int_equal(rc, -ERR_STEP);
    if (!strstr(e.text, expected))
        fail_msg("expected '%s' in: %s", expected, e.text);
    guest_stop(&g);
}

static void end_power_off(struct guest *g)
{
    struct err ignored = ERR_INIT;
    assert_true(agent_power_off(g->agent, &ignored) <= 0);
}

static void end_panic(struct guest *g)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    struct agent_result result;
    assert_true(run_program(g, "panic", &result, &text, &e) < 0);
}

static void end_killed(struct guest *g)
{
    (void)g;
    AUTO_BUF struct buf children;
    buf_init(&children, LIMIT_TOKEN);
    struct err e = ERR_INIT;
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%ld/children", (long)getpid());
    ASSERT_OK(file_read(AT_FDCWD, path, &children, &e), e);
    long pid = strtol(buf_text(&children), NULL, 10);
    assert_true(pid > 1);
    assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
}

static void test_endings(void **state)
{
    struct fixture *f = *state;
    check_end(f, end_power_off, "the guest powered off");
    check_end(f, end_panic, "the guest's kernel panicked: Kernel panic - not syncing: sysrq");
    check_end(f, end_killed, "QEMU was killed by signal 9");
}

/* A guest that prints without end fills neither the disk of the host nor the console's memory. */
static void test_console_is_bounded(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *path = state_path(f);
    struct guest g;
    guest_start(f, &g, path);
    ASSERT_OK(agent_thaw(g.agent, &e), e);
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    struct agent_result result = {0};
    ASSERT_OK(run_program(&g, "flood", &result, &text, &e), e);
    assert_true(result.exited && result.status == 0);
    struct stat log;
    assert_int_equal(stat(vm_console_path(g.vm), &log), 0);
    assert_true(log.st_size >= CONSOLE_TAIL_LEN && log.st_size <= CONSOLE_FILE_MAX);
    guest_stop(&g);
}

/* States and memories that do not belong together are refused, with the reason. */
static void test_refuses(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *run_dir = in(f, "other");
    AUTO_FREE char *memory = in(f, "memory");
    AUTO_FREE char *bad = in(f, "bad");
    AUTO_FD int fd = -1;
    struct bdev *disk = memdev_new(DISK_SIZE, true);
    AUTO_FREE char *socket = mem_printf("%s/nbd.sock", run_dir);
    struct nbd_server *nbd = NULL;
    ASSERT_OK(nbd_server_start(&nbd, disk, socket, &e), e);
    struct vm_options o = {.kernel = &f->kernel,
                           .run_dir = run_dir,
                           .nbd_socket = "nbd.sock",
                           .memory_path = memory,
                           .cpus = 1,
                           .memory_mb = MEMORY_MB,
                           .accel = VM_ACCEL_TCG};
    ASSERT_OK(file_open(&fd, AT_FDCWD, bad, O_WRONLY | O_CREAT, 0600, &e), e);
    ASSERT_OK(file_write_full(fd, "no machine state", 16, &e), e);
    struct vm *v = NULL;
    assert_int_equal(vm_restore(&v, &o, bad, &e), -ERR_STEP);
    assert_non_null(strstr(e.text, "loading the machine state"));
    assert_non_null(strstr(e.text, "Not a migration stream"));
    o.memory_mb *= 2;
    assert_int_equal(vm_restore(&v, &o, bad, &e), -ERR_CORRUPT);
    o.memory_mb /= 2;
    o.nbd_socket = "gone.sock";
    assert_true(vm_restore(&v, &o, bad, &e) < 0);
    assert_non_null(strstr(e.text, "gone.sock"));
    assert_null(v);
    nbd_server_stop(nbd);
    bdev_close(disk);
}

static int setup(void **state)
{
    struct fixture *f = mem_zalloc(sizeof(*f));
    struct err e = ERR_INIT;
    if (!f)
        return -1;
    const char *tmp = getenv("TMPDIR");
    snprintf(f->dir, sizeof(f->dir), "%.40s/tb2-vm-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(f->dir))
        return -1;
    *state = f;
    if (guest_kernel_get(&f->kernel, cache_dir, NULL, &e) < 0) {
        print_error("%s\n", e.text);
        return -1;
    }
    make_disk(f);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    int rc = file_remove_tree(AT_FDCWD, f->dir, &e);
    guest_kernel_fini(&f->kernel);
    free(f->disk);
    free(f);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    cache_dir = argv[1];
    guest_program = argv[2];
    struct err e = ERR_INIT;
    AUTO_FREE char *version = NULL;
    if (vm_version(&vm_qemu, &version, &e) < 0) {
        print_message("skipped: %s\n", e.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_and_save), cmocka_unit_test(test_restore_twice),
        cmocka_unit_test(test_endings), cmocka_unit_test(test_console_is_bounded),
        cmocka_unit_test(test_refuses)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
