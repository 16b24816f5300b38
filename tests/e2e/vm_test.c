/* SPDX-License-Identifier: MIT */
/*
 * A driver against real guests: boot, run, freeze, save, restore twice, and each way in which a
 * machine ends. argv: cache directory, static guest program, and "firecracker" (then with KVM) if it
 * is not QEMU under emulation. Prints what each part took.
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

#include "bake/channel.h"
#include "bake/channel/console.h"
#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"
#include "memdev.h"

enum { DISK_SIZE = 32 << 20, BOOT_MS = 120000, RUN_MS = 300000 };

static const char *cache_dir;
static const char *guest_program;
static const struct vm_driver *driver = &vm_qemu;
static enum vm_accel accel = VM_ACCEL_TCG;
static uint64_t memory_mb = 2048;

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

/* One machine on a disk of its own: a device that is served, or (Firecracker) a file. */
struct guest {
    struct bdev *disk;
    struct nbd_server *nbd;
    char *disk_path;
    struct bdev *pages; /* memory, if it is served page by page */
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
    bdev_close(g->pages);
    free(g->disk_path);
    free(g->run_dir);
    free(g->memory);
    *g = (struct guest){0};
}

static void write_file(const char *path, const void *data, size_t len)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    ASSERT_OK(file_open(&fd, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0600, &e), e);
    ASSERT_OK(file_write_full(fd, data, len, &e), e);
}

static void start_disk(const struct fixture *f, struct guest *g, struct vm_options *o)
{
    struct err e = ERR_INIT;
    if (!driver->can.nbd_disk) {
        g->disk_path = mem_printf("%s/image", g->run_dir);
        write_file(g->disk_path, f->disk, DISK_SIZE);
        o->disk_path = g->disk_path;
        return;
    }
    g->disk = memdev_new(DISK_SIZE, true);
    memcpy(memdev_bytes(g->disk), f->disk, DISK_SIZE);
    AUTO_FREE char *socket = mem_printf("%s/nbd.sock", g->run_dir);
    ASSERT_OK(nbd_server_start(&g->nbd, g->disk, socket, &e), e);
    o->nbd_socket = "nbd.sock";
}

/* What the disk holds now becomes what the next machines begin with. */
static void keep_disk(struct fixture *f, struct guest *g)
{
    if (g->disk_path)
        read_into(g->disk_path, f->disk, DISK_SIZE);
    else
        memcpy(f->disk, memdev_bytes(g->disk), DISK_SIZE);
}

static struct vm_options make_options(const struct fixture *f, const struct guest *g)
{
    return (struct vm_options){.driver = driver,
                               .kernel = &f->kernel,
                               .run_dir = g->run_dir,
                               .memory_path = g->memory,
                               .cpus = 1,
                               .memory_mb = memory_mb,
                               .accel = accel};
}

/* Boots, or restores `state`; with `served` the memory is given page by page. */
static void guest_start_with(struct fixture *f, struct guest *g, const char *state, bool served)
{
    struct err e = ERR_INIT;
    *g = (struct guest){0};
    g->run_dir = in(f, state ? "other" : "run");
    g->memory = in(f, "memory");
    ASSERT_OK(file_make_dirs(AT_FDCWD, g->run_dir, &e), e);
    struct vm_options o = make_options(f, g);
    o.track_pages = driver->can.memory_diff;
    start_disk(f, g, &o);
    if (served) {
        g->pages = memdev_new(memory_mb << 20, false);
        read_into(g->memory, memdev_bytes(g->pages), memory_mb << 20);
        o.memory = g->pages;
    }
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

static void guest_start(struct fixture *f, struct guest *g, const char *state)
{
    guest_start_with(f, g, state, false);
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
    uint64_t flushes = g.disk ? bdev_stats(g.disk).flushes : 0;
    AUTO_FREE char *path = state_path(f);
    int64_t start = clock_ms();
    ASSERT_OK(vm_snapshot(g.vm, path, &e), e);
    int64_t took = clock_ms() - start;
    assert_true(!g.disk || bdev_stats(g.disk).flushes > flushes);
    ASSERT_OK(vm_check(g.vm, &e), e); /* stopped by us: no fault */
    keep_disk(f, &g);
    guest_stop(&g);
    AUTO_FREE char *memory = in(f, "memory");
    digest_file(memory, &f->memory);
    struct stat saved;
    struct stat mapped;
    assert_int_equal(stat(path, &saved), 0);
    assert_int_equal(stat(memory, &mapped), 0);
    assert_true(saved.st_size < 4 << 20);
    if (driver->can.memory_diff) /* pages that nobody wrote are not written */
        assert_true((uint64_t)mapped.st_blocks / 2048 < memory_mb * 3 / 4);
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
        bool served = i == 1 && driver->can.memory_pages;
        guest_start_with(f, &g, path, served);
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
        if (served) {
            uint64_t read_mb = bdev_stats(g.pages).bytes_read >> 20;
            print_message("read %llu of %llu MiB of memory, page by page\n",
                          (unsigned long long)read_mb, (unsigned long long)memory_mb);
            assert_in_range(read_mb, 1, memory_mb / 2);
        }
        assert_true(served || 2 * g.took_ms < f->boot_ms); /* faults cost much in nested KVM */
        guest_stop(&g);
        struct digest after;
        digest_file(memory, &after);
        assert_true(digest_equal(&after, &f->memory));
    }
}

/* Of a machine that does not end: its last words, and what its threads wait for. */
static void tell_threads(struct vm *v)
{
    char tail[CONSOLE_TAIL_LEN + 1];
    (void)vm_console_tail(v, tail, sizeof(tail));
    print_message("still running; console: %s\n", tail);
    AUTO_FREE char *command = mem_printf("for t in /proc/%ld/task/*; do cat $t/comm $t/wchan "
                                         "$t/syscall; grep -E 'State|ctxt' $t/status; "
                                         "cat $t/stack; done",
                                         (long)v->proc.pid);
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    int status;
    if (proc_run((const char *const[]){"sh", "-c", command, NULL},
                 &(struct proc_io){.out = &text, .timeout_ms = RUN_MS}, &status, &e) == 0)
        print_message("%s\n", buf_text(&text));
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
    if (rc == 0)
        tell_threads(g.vm);
    assert_int_equal(rc, -ERR_STEP);
    if (!strstr(e.text, expected))
        fail_msg("expected '%s' in: %s", expected, e.text);
    guest_stop(&g);
}

static void end_power_off(struct guest *g)
{
    struct err ignored = ERR_INIT;
    if (agent_power_off(g->agent, &ignored) < 0)
        print_message("powering off: %s\n", ignored.text);
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
    AUTO_FREE char *killed = mem_printf("%s was killed by signal 9", driver->title);
    const char *text = getenv("TB2_ENDINGS");
    for (long rounds = text ? strtol(text, NULL, 10) : 1; rounds > 0; rounds--) {
        check_end(f, end_power_off, "the guest powered off");
        check_end(f, end_panic, "the guest's kernel panicked: Kernel panic - not syncing: sysrq");
        check_end(f, end_killed, killed);
    }
}

/* A guest that prints without end fills neither the disk of the host nor the console's memory. In nested KVM each
 * byte takes a tenth of a millisecond; there it is enough that it all arrives. */
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
    bool emulated = accel == VM_ACCEL_TCG;
    ASSERT_OK(run_program(&g, emulated ? "flood" : "trickle", &result, &text, &e), e);
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
    struct guest g = {.run_dir = in(f, "other"), .memory = in(f, "memory")};
    AUTO_FREE char *bad = in(f, "bad");
    struct vm_options o = make_options(f, &g);
    start_disk(f, &g, &o);
    write_file(bad, "no machine state", 16);
    struct vm *v = NULL;
    assert_true(vm_restore(&v, &o, bad, &e) < 0);
    assert_non_null(strstr(e.text, "loading the machine state"));
    if (driver == &vm_qemu) {
        assert_int_equal(e.class, ERR_STEP);
        assert_non_null(strstr(e.text, "Not a migration stream"));
    }
    o.memory_mb *= 2;
    assert_int_equal(vm_restore(&v, &o, bad, &e), -ERR_CORRUPT);
    o.memory_mb /= 2;
    o.nbd_socket = "gone.sock";
    o.disk_path = "/gone.sock";
    AUTO_FREE char *good = state_path(f);
    assert_true(vm_restore(&v, &o, driver->can.nbd_disk ? bad : good, &e) < 0);
    if (driver->can.nbd_disk)
        assert_non_null(strstr(e.text, "gone.sock"));
    assert_null(v);
    guest_stop(&g);
}

/* Lays the pages of a differential snapshot over the whole one. */
static void merge_diff(const char *memory, const char *diff)
{
    struct err e = ERR_INIT;
    AUTO_FD int to = -1;
    AUTO_FD int from = -1;
    static uint8_t page[4096];
    ASSERT_OK(file_open(&to, AT_FDCWD, memory, O_RDWR, 0, &e), e);
    ASSERT_OK(file_open(&from, AT_FDCWD, diff, O_RDONLY, 0, &e), e);
    off_t pages = 0;
    off_t at = lseek(from, 0, SEEK_DATA);
    while (at >= 0) {
        off_t end = lseek(from, at, SEEK_HOLE);
        for (; at < end; at += (off_t)sizeof(page), pages++) {
            ASSERT_OK(file_pread_full(from, page, sizeof(page), (uint64_t)at, &e), e);
            ASSERT_OK(file_pwrite_full(to, page, sizeof(page), (uint64_t)at, &e), e);
        }
        at = lseek(from, end, SEEK_DATA);
    }
    print_message("differential snapshot: %lld KiB\n", (long long)pages * 4);
    assert_in_range(pages, 1, (memory_mb << 20) / sizeof(page) - 1);
}

/* A guest that was restored, changed, and saved by what changed alone is what it was. */
static void test_differential(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *path = state_path(f);
    AUTO_FREE char *later = in(f, "later");
    AUTO_FREE char *diff = in(f, "diff");
    struct guest g;
    guest_start(f, &g, path);
    if (!driver->can.memory_diff) {
        assert_int_equal(vm_snapshot_diff(g.vm, later, diff, &e), -ERR_UNSUPPORTED);
        guest_stop(&g);
        return;
    }
    ASSERT_OK(agent_thaw(g.agent, &e), e);
    ASSERT_OK(agent_put(g.agent, AGENT_SCRATCH_DIR "/mark", 0644, "in memory", 9, &e), e);
    ASSERT_OK(agent_sync(g.agent, true, &e), e);
    ASSERT_OK(agent_freeze(g.agent, &e), e);
    agent_free(MOVE(g.agent));
    ASSERT_OK(vm_snapshot_diff(g.vm, later, diff, &e), e);
    assert_true(vm_snapshot_diff(g.vm, later, "/no/such/directory/diff", &e) < 0);
    assert_int_equal(vm_snapshot_diff(g.vm, later, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "an earlier snapshot failed"));
    keep_disk(f, &g);
    guest_stop(&g);
    AUTO_FREE char *memory = in(f, "memory");
    merge_diff(memory, diff);
    guest_start_with(f, &g, later, true);
    ASSERT_OK(agent_thaw(g.agent, &e), e);
    AUTO_BUF struct buf mark;
    buf_init(&mark, LIMIT_TOKEN);
    ASSERT_OK(agent_get(g.agent, AGENT_SCRATCH_DIR "/mark", &mark, &e), e);
    assert_string_equal(buf_text(&mark), "in memory");
    check_program(&g);
    guest_stop(&g);
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
    if (argc != 3 && (argc != 4 || strcmp(argv[3], "firecracker") != 0))
        return 2;
    if (argc == 4) {
        driver = &vm_firecracker;
        accel = VM_ACCEL_KVM;
        memory_mb = 256;
    }
    cache_dir = argv[1];
    guest_program = argv[2];
    struct err e = ERR_INIT;
    AUTO_FREE char *version = NULL;
    if (vm_version(driver, &version, &e) < 0) {
        print_message("skipped: %s\n", e.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_boot_and_save), cmocka_unit_test(test_restore_twice),
        cmocka_unit_test(test_endings),       cmocka_unit_test(test_console_is_bounded),
        cmocka_unit_test(test_refuses),       cmocka_unit_test(test_differential)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
