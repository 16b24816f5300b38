/* SPDX-License-Identifier: MIT */
/*
 * The Firecracker driver against a program that refuses what Firecracker's API refuses
 * (tests/support/fake_firecracker.py): the order of requests, snapshots, guest memory by a real
 * userfaultfd, and what goes wrong. The guest is the agent as an ordinary process.
 */
#include <errno.h>
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
#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "bake/vm/page_server.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"
#include "memdev.h"

enum { MEMORY_MB = 64, AGENT_MS = 30000 };

struct fixture {
    char dir[64];
    struct guest_kernel kernel;
    char *run_dir;
    char *disk;
    char *memory;
    char *state;
    struct vm_options options;
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

static char *make_file(const struct fixture *f, const char *name)
{
    struct err e = ERR_INIT;
    char *path = in(f, name);
    AUTO_FD int fd = -1;
    ASSERT_OK(file_open(&fd, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600, &e), e);
    return path;
}

/* The program in PATH is the fake; what it does wrong. */
static void fake(const char *faults)
{
    assert_int_equal(setenv("FAKE_FIRECRACKER", faults, 1), 0);
}

static int setup(void **state)
{
    struct fixture *f = mem_zalloc(sizeof(*f));
    if (!f)
        return -1;
    snprintf(f->dir, sizeof(f->dir), "/tmp/tb2-firecracker-XXXXXX");
    if (!mkdtemp(f->dir))
        return -1;
    AUTO_FREE char *program = in(f, "firecracker");
    AUTO_FREE char *path = mem_printf("%s:%s", f->dir, getenv("PATH"));
    f->run_dir = in(f, "run");
    if (symlink(TB2_FAKE, program) < 0 || mkdir(f->run_dir, 0700) < 0 || !path ||
        setenv("PATH", path, 1) < 0 || setenv("TB2_AGENT", TB2_AGENT, 1) < 0)
        return -1;
    f->kernel = (struct guest_kernel){.kernel_path = make_file(f, "vmlinux"),
                                      .initramfs_path = make_file(f, "initramfs"),
                                      .release = mem_strdup("6.12.0"),
                                      .vsock = true};
    f->disk = make_file(f, "image");
    f->memory = in(f, "memory");
    f->state = in(f, "state");
    f->options = (struct vm_options){.driver = &vm_firecracker,
                                     .kernel = &f->kernel,
                                     .run_dir = f->run_dir,
                                     .disk_path = f->disk,
                                     .memory_path = f->memory,
                                     .cpus = 2,
                                     .memory_mb = MEMORY_MB,
                                     .track_pages = true,
                                     .accel = VM_ACCEL_KVM};
    fake("");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    guest_kernel_fini(&f->kernel);
    free(f->run_dir);
    free(f->disk);
    free(f->memory);
    free(f->state);
    int rc = file_remove_tree(AT_FDCWD, f->dir, &e);
    free(f);
    return rc;
}

static int collect(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    return stream == 1 ? buf_add(ctx, data, len, e) : 0;
}

/* The guest runs programs. */
static void expect_guest(struct vm *v)
{
    struct err e = ERR_INIT;
    AUTO_AGENT struct agent *a = NULL;
    AUTO_BUF struct buf text;
    buf_init(&text, 1024);
    struct agent_result result = {0};
    const struct agent_exec exec = {.argv = (const char *const[]){"echo", "here", NULL},
                                    .env = (const char *const[]){"PATH=/usr/bin:/bin", NULL}};
    ASSERT_OK(agent_connect(&a, v, AGENT_MS, NULL, &e), e);
    ASSERT_OK(agent_run(a, &exec, collect, &text, &result, &e), e);
    assert_string_equal(buf_text(&text), "here\n");
}

/* Boots, and saves; the machine is gone afterwards. */
static void save(struct fixture *f)
{
    struct err e = ERR_INIT;
    AUTO_VM struct vm *v = NULL;
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    expect_guest(v);
    ASSERT_OK(vm_check(v, &e), e);
    ASSERT_OK(vm_snapshot(v, f->state, &e), e);
    ASSERT_OK(vm_check(v, &e), e); /* stopped by us: no fault */
}

/* The memory of the snapshot as a device. */
static struct bdev *open_memory(const struct fixture *f)
{
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    struct bdev *d = memdev_new((uint64_t)MEMORY_MB << 20, false);
    ASSERT_OK(file_open(&fd, AT_FDCWD, f->memory, O_RDONLY, 0, &e), e);
    ASSERT_OK(file_pread_full(fd, memdev_bytes(d), (size_t)MEMORY_MB << 20, 0, &e), e);
    return d;
}

static void boots_with_what_it_needs(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_VM struct vm *v = NULL;
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    expect_guest(v);
    expect_guest(v); /* a second connection */
    char tail[4096];
    assert_true(vm_console_tail(v, tail, sizeof(tail)) > 0);
    assert_non_null(strstr(tail, "reboot=k"));
    assert_non_null(strstr(tail, "tb2.link=vsock"));
    assert_non_null(strstr(tail, "tb2.root=/dev/vda"));
}

static void restores_from_a_file(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    save(f);
    for (int i = 0; i < 2; i++) {
        AUTO_VM struct vm *v = NULL;
        ASSERT_OK(vm_restore(&v, &f->options, f->state, &e), e);
        expect_guest(v);
    }
}

/* Only what is touched is read, zeros are not copied, pages that were given back stay zeros. */
static void restores_page_by_page(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    ASSERT_OK(page_server_possible(&e), e);
    save(f);
    static const struct {
        const char *faults;
        unsigned least, most; /* per cent of memory that is read */
    } rows[] = {{"touch=1", 100, 100}, {"touch=64", 20, 26}, {"touch=512,remove", 1, 5}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        fake(rows[i].faults);
        struct bdev *memory = open_memory(f);
        struct vm_options o = f->options;
        o.memory = memory;
        o.memory_path = NULL;
        struct vm *v = NULL;
        ASSERT_OK(vm_restore(&v, &o, f->state, &e), e);
        expect_guest(v);
        uint64_t percent = bdev_stats(memory).bytes_read * 100 / memory->size;
        assert_in_range(percent, rows[i].least, rows[i].most);
        vm_free(v);
        bdev_close(memory);
    }
}

/* Memory that cannot be read, or is asked for wrongly, ends the machine with the reason. */
static void memory_that_fails(void **state)
{
    struct fixture *f = *state;
    save(f);
    static const struct {
        const char *faults;
        int sys; /* of reading the memory */
        const char *expected;
    } rows[] = {
        {"", EIO, "Input/output error"},
        {"bad_hello", 0, "of a memory image of"},
        {"no_descriptor", 0, "no userfaultfd came"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        fake(rows[i].faults);
        struct bdev *memory = open_memory(f);
        memdev_fail(memory, rows[i].sys);
        struct vm_options o = f->options;
        o.memory = memory;
        struct vm *v = NULL;
        assert_true(vm_restore(&v, &o, f->state, &e) < 0);
        assert_null(v);
        assert_non_null(strstr(e.text, "serving the guest's memory"));
        if (!strstr(e.text, rows[i].expected))
            fail_msg("expected '%s' in: %s", rows[i].expected, e.text);
        bdev_close(memory);
    }
}

/* What was never written is neither written nor stored; and is zeros. */
static void a_first_snapshot_is_sparse(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *diff = in(f, "diff");
    struct stat info;
    save(f);
    assert_int_equal(stat(f->memory, &info), 0);
    assert_int_equal(info.st_size, (off_t)MEMORY_MB << 20);
    assert_in_range(info.st_blocks / 2048, MEMORY_MB / 4, MEMORY_MB / 2);
    fake("touch=1"); /* every page is what it was */
    struct vm *v = NULL;
    ASSERT_OK(vm_restore(&v, &f->options, f->state, &e), e);
    vm_free(v);
    /* One that failed leaves no record of what was written: the next has everything. */
    fake("fail_diff");
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    assert_int_equal(vm_snapshot(v, f->state, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "No space left on device"));
    assert_int_equal(vm_snapshot_diff(v, f->state, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "an earlier snapshot failed"));
    ASSERT_OK(vm_snapshot(v, f->state, &e), e);
    vm_free(v);
    assert_int_equal(stat(f->memory, &info), 0);
    assert_true(info.st_blocks / 2048 >= MEMORY_MB - 1);
    fake("touch=1");
    ASSERT_OK(vm_restore(&v, &f->options, f->state, &e), e);
    vm_free(v);
}

static void differential_snapshots(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *diff = in(f, "diff");
    struct vm *v = NULL;
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    ASSERT_OK(vm_snapshot(v, f->state, &e), e);
    ASSERT_OK(vm_snapshot_diff(v, f->state, diff, &e), e); /* nothing was written since */
    struct stat info;
    assert_int_equal(stat(diff, &info), 0);
    assert_int_equal(info.st_size, (off_t)MEMORY_MB << 20);
    assert_true(info.st_blocks < 64);
    vm_free(v);
    /* After one that failed only a full one is right. */
    fake("fail_diff");
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    assert_int_equal(vm_snapshot_diff(v, f->state, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "No space left on device"));
    assert_int_equal(vm_snapshot_diff(v, f->state, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "an earlier snapshot failed"));
    ASSERT_OK(vm_snapshot(v, f->state, &e), e);
    vm_free(v);
    fake("");
    struct vm_options o = f->options;
    o.track_pages = false;
    ASSERT_OK(vm_boot(&v, &o, &e), e);
    assert_int_equal(vm_snapshot_diff(v, f->state, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "does not keep track"));
    vm_free(v);
}

/* Case K-DIFFSNAP: memory in two parts, and a version that mixes them up. */
static void differential_snapshots_of_big_guests(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_FREE char *diff = in(f, "diff");
    struct vm_options o = f->options;
    o.memory_mb = 3073;
    fake("version=1.14.4");
    AUTO_VM struct vm *v = NULL;
    ASSERT_OK(vm_boot(&v, &o, &e), e);
    assert_int_equal(vm_snapshot_diff(v, f->state, diff, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "1.14.4 damages differential snapshots"));
}

/* The process goes on when its guest powers off, and is ended; also by a check that came too early to see that. */
static void a_guest_that_powers_off(void **state)
{
    struct fixture *f = *state;
    for (int late = 0; late < 2; late++) {
        struct err e = ERR_INIT;
        AUTO_VM struct vm *v = NULL;
        fake(late ? "" : "power_off");
        ASSERT_OK(vm_boot(&v, &f->options, &e), e);
        if (late) { /* as after a check whose wait was too short */
            v->dismissed = true;
            assert_int_equal(kill(v->proc.pid, SIGKILL), 0);
        }
        int64_t deadline = clock_ms() + AGENT_MS;
        while (vm_check(v, &e) == 0 && clock_ms() < deadline)
            clock_sleep_ms(5);
        assert_int_equal(e.class, ERR_STEP);
        if (strncmp(e.text, "the guest powered off", 21) != 0)
            fail_msg("%s", e.text);
    }
}

/* Who waits for the agent's answer hears of it too, though the vsock stays open. */
static void a_program_that_powers_off(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    AUTO_VM struct vm *v = NULL;
    AUTO_AGENT struct agent *a = NULL;
    struct agent_result result = {0};
    const struct agent_exec exec = {.argv = (const char *const[]){"sleep", "5", NULL},
                                    .env = (const char *const[]){"PATH=/usr/bin:/bin", NULL}};
    fake("power_off_later");
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    ASSERT_OK(agent_connect(&a, v, AGENT_MS, NULL, &e), e);
    int64_t start = clock_ms();
    assert_int_equal(agent_run(a, &exec, NULL, NULL, &result, &e), -ERR_STEP);
    assert_true(clock_ms() - start < AGENT_MS);
    if (!strstr(e.text, "the guest powered off"))
        fail_msg("%s", e.text);
}

static void bad_versions_are_named(void **state)
{
    struct fixture *f = *state;
    static const char *const versions[][2] = {{"1.16.0", "vsock is silent"},
                                              {"1.12.1", "too old"},
                                              {"0.25.2", "too old"},
                                              {"2.0.0", "not known"},
                                              {"dirty", "its version is 'dirty'"}};
    for (size_t i = 0; i < ARRAY_LEN(versions); i++) {
        struct err e = ERR_INIT;
        AUTO_FREE char *faults = mem_printf("version=%s", versions[i][0]);
        fake(faults);
        struct vm *v = NULL;
        assert_int_equal(vm_boot(&v, &f->options, &e), -ERR_UNSUPPORTED);
        if (!strstr(e.text, versions[i][1]))
            fail_msg("%s: %s", versions[i][0], e.text);
    }
    struct err e = ERR_INIT;
    AUTO_FREE char *text = NULL;
    fake("version=1.16.0");
    assert_int_equal(vm_version(&vm_firecracker, &text, &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.hint, "1.16.1"));
    fake("");
    ASSERT_OK(vm_version(&vm_firecracker, &text, &e), e);
    assert_string_equal(text, "firecracker 1.16.1");
}

/* A snapshot of another version is not loaded; nor is what is no snapshot. */
static void other_snapshots_are_refused(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    save(f);
    fake("version=1.16.2");
    struct vm *v = NULL;
    assert_true(vm_restore(&v, &f->options, f->state, &e) < 0);
    assert_non_null(strstr(e.text, "snapshot of version 1.16.1"));
    assert_true(vm_restore(&v, &f->options, f->disk, &e) < 0);
    assert_non_null(strstr(e.text, "loading the machine state"));
    assert_null(v);
}

static void refusals_are_told(void **state)
{
    struct fixture *f = *state;
    static const char *const paths[] = {"/machine-config", "/boot-source", "/drives/disk",
                                        "/vsock",          "/entropy",     "/actions"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct err e = ERR_INIT;
        struct vm *v = NULL;
        AUTO_FREE char *refuse = mem_printf("refuse=%s", paths[i]);
        fake(refuse);
        assert_int_equal(vm_boot(&v, &f->options, &e), -ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, "fake: refused"));
        assert_non_null(strstr(e.text, paths[i]));
        AUTO_FREE char *die = mem_printf("die=%s", paths[i]);
        fake(die);
        err_clear(&e);
        assert_int_equal(vm_boot(&v, &f->options, &e), -ERR_STEP);
        assert_non_null(strstr(e.text, "Firecracker ended with status 7"));
        assert_null(v);
    }
}

/* Case K-VSOCK: who accepts and never answers has a deadline. */
static void a_silent_agent_has_a_deadline(void **state)
{
    struct fixture *f = *state;
    struct err e = ERR_INIT;
    fake("mute");
    AUTO_VM struct vm *v = NULL;
    AUTO_AGENT struct agent *a = NULL;
    ASSERT_OK(vm_boot(&v, &f->options, &e), e);
    assert_int_equal(agent_connect(&a, v, 1200, NULL, &e), -ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "nobody answers for the guest's agent"));
}

static void what_it_cannot_is_refused(void **state)
{
    struct fixture *f = *state;
    struct vm_options o[6];
    for (size_t i = 0; i < ARRAY_LEN(o); i++)
        o[i] = f->options;
    o[0].accel = VM_ACCEL_TCG;
    o[1].network = true;
    o[2].disk_path = NULL;
    o[3].cpus = 33;
    o[4].disk_path = "/no/such/disk";
    f->kernel.vsock = false;
    struct guest_kernel with = f->kernel;
    with.vsock = true;
    for (size_t i = 0; i < 5; i++)
        o[i].kernel = &with;
    static const char *const expected[] = {"KVM alone",    "no user-mode network",
                                           "block device", "at most 32",
                                           "/drives/disk", "no vsock modules"};
    for (size_t i = 0; i < ARRAY_LEN(o); i++) {
        struct err e = ERR_INIT;
        struct vm *v = NULL;
        assert_true(vm_boot(&v, &o[i], &e) < 0);
        if (!strstr(e.text, expected[i]))
            fail_msg("%s: %s", expected[i], e.text);
        assert_null(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(boots_with_what_it_needs, setup, teardown),
        cmocka_unit_test_setup_teardown(restores_from_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(restores_page_by_page, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_that_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(a_first_snapshot_is_sparse, setup, teardown),
        cmocka_unit_test_setup_teardown(differential_snapshots, setup, teardown),
        cmocka_unit_test_setup_teardown(differential_snapshots_of_big_guests, setup, teardown),
        cmocka_unit_test_setup_teardown(a_guest_that_powers_off, setup, teardown),
        cmocka_unit_test_setup_teardown(a_program_that_powers_off, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_versions_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(other_snapshots_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_silent_agent_has_a_deadline, setup, teardown),
        cmocka_unit_test_setup_teardown(what_it_cannot_is_refused, setup, teardown),
    };
    struct err e = ERR_INIT;
    if (page_server_possible(&e) < 0) {
        print_message("skipped: %s\n", e.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
