/* SPDX-License-Identifier: MIT */
/*
 * The agent as PID 1 of a real guest: one cold boot, everything that needs a machine, a snapshot in
 * mid-life, a restore, the same agent again. The root disk holds a static busybox and next to
 * nothing else: no /proc, no /dev, no /etc/hosts.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/protocol.h"
#include "bake/guest/internal.h"
#include "bake/kernel.h"
#include "bake/vm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"

#define BUSYBOX "/bin/busybox"
#define QEMU_NBD "/usr/bin/qemu-nbd"

enum { BOOT_MS = 180000, MEMORY_MB = 256, TICK_MS = 10 /* guest_program.c */ };
#define DAY_NS (INT64_C(24) * 60 * 60 * 1000000000)

struct machine {
    char dir[64];
    char cache[256];
    char nbd_socket[128];
    char memory[128];
    char state[128];
    struct guest_kernel kernel;
    struct proc nbd;
    struct vm *vm;
    struct agent *agent;
};

static void check(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

static void run_tool(const char *const argv[])
{
    struct err e = ERR_INIT;
    int status = -1;
    struct buf said;
    buf_init(&said, 1 << 20);
    check(proc_run(argv, &(struct proc_io){.err_out = &said, .timeout_ms = 60000}, &status, &e),
          &e);
    if (status != 0)
        fail_msg("%s: %s", argv[0], buf_text(&said));
    buf_fini(&said);
}

static void serve_disk(struct machine *m, const char *disk)
{
    struct err e = ERR_INIT;
    snprintf(m->nbd_socket, sizeof(m->nbd_socket), "%s/nbd.sock", m->dir);
    const char *const serve[] = {QEMU_NBD, "-f", "raw",         "-t", "-e",
                                 "4",      "-k", m->nbd_socket, disk, NULL};
    check(proc_start(&m->nbd, serve,
                     &(struct proc_setup){.stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1}, &e),
          &e);
    int64_t until = clock_ms() + 10000;
    while (access(m->nbd_socket, F_OK) < 0 && clock_ms() < until)
        clock_sleep_ms(5);
}

static void make_disk(struct machine *m)
{
    struct err e = ERR_INIT;
    char root[128];
    char path[256];
    char disk[128];
    snprintf(root, sizeof(root), "%s/root", m->dir);
    snprintf(disk, sizeof(disk), "%s/disk", m->dir);
    snprintf(path, sizeof(path), "%s/bin", root);
    check(file_make_dirs(AT_FDCWD, path, &e), &e);
    snprintf(path, sizeof(path), "%s/etc", root);
    check(file_make_dirs(AT_FDCWD, path, &e), &e);
    snprintf(path, sizeof(path), "%s/bin/busybox", root);
    run_tool((const char *const[]){"cp", BUSYBOX, path, NULL});
    snprintf(path, sizeof(path), "%s/bin/guest", root);
    run_tool((const char *const[]){"cp", TB2_GUEST_PROGRAM, path, NULL});
    snprintf(path, sizeof(path), "%s/etc/passwd", root);
    run_tool((const char *const[]){"sh", "-c", "echo app:x:7:8::/home/app: >$0", path, NULL});
    snprintf(path, sizeof(path), "%s/run/sshd", root);
    check(file_make_dirs(AT_FDCWD, path, &e), &e);
    run_tool((const char *const[]){"truncate", "-s", "64M", disk, NULL});
    run_tool((const char *const[]){"mke2fs", "-q", "-t", "ext4", "-d", root, disk, NULL});
    serve_disk(m, disk);
}

static struct vm_options options(const struct machine *m)
{
    return (struct vm_options){.kernel = &m->kernel,
                               .run_dir = m->dir,
                               .nbd_socket = m->nbd_socket,
                               .memory_path = m->memory,
                               .cpus = 1,
                               .memory_mb = MEMORY_MB,
                               .network = true,
                               .accel = VM_ACCEL_TCG};
}

static struct machine *machine_new(void)
{
    struct err e = ERR_INIT;
    struct machine *m = calloc(1, sizeof(*m));
    m->nbd.pid = -1;
    snprintf(m->cache, sizeof(m->cache), "%s", getenv("TB2_TEST_CACHE"));
    check(file_make_dirs(AT_FDCWD, m->cache, &e), &e);
    check(guest_kernel_get(&m->kernel, m->cache, NULL, &e), &e);
    snprintf(m->dir, sizeof(m->dir), "/tmp/tb2-guest-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    snprintf(m->memory, sizeof(m->memory), "%s/memory", m->dir);
    snprintf(m->state, sizeof(m->state), "%s/state", m->dir);
    return m;
}

static int set_up(void **state)
{
    struct err e = ERR_INIT;
    struct machine *m = machine_new();
    *state = m;
    make_disk(m);
    struct vm_options o = options(m);
    int64_t begun = clock_ms();
    check(vm_boot(&m->vm, &o, &e), &e);
    check(agent_connect(&m->agent, m->vm, BOOT_MS, NULL, &e), &e);
    check(agent_mount(m->agent, &e), &e);
    print_message("boot to hello: %lld ms\n", (long long)(clock_ms() - begun));
    return 0;
}

static int tear_down(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    agent_free(m->agent);
    vm_free(m->vm);
    proc_kill(&m->nbd);
    guest_kernel_fini(&m->kernel);
    int rc = file_remove_tree(AT_FDCWD, m->dir, &e);
    free(m);
    return rc;
}

static int collect(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    (void)stream;
    return buf_add(ctx, data, len, e);
}

static struct agent_result run(struct machine *m, const struct agent_exec *exec, struct buf *out)
{
    struct err e = ERR_INIT;
    struct agent_result r = {.exited = false};
    check(agent_run(m->agent, exec, collect, out, &r, &e), &e);
    return r;
}

/* Both streams of a shell text must be `expected`. */
static void expect(struct machine *m, const char *text, const char *expected)
{
    AUTO_BUF struct buf out;
    buf_init(&out, 1 << 20);
    const char *argv[] = {BUSYBOX, "sh", "-c", text, NULL};
    struct agent_exec exec = {.argv = argv};
    run(m, &exec, &out);
    if (strcmp(buf_text(&out), expected) != 0)
        fail_msg("%s: \"%s\", not \"%s\"", text, buf_text(&out), expected);
}

static void test_root(void **state)
{
    struct machine *m = *state;
    static const struct {
        const char *text;
        const char *expected;
    } cases[] = {
        {"busybox id -u; busybox pwd; echo $HOME", "0\n/\n/\n"},
        {"busybox hostname", "tb2\n"},
        {"busybox cat /etc/hosts | busybox head -n 1", "127.0.0.1\tlocalhost\n"},
        {"busybox awk '$2 == \"/\" {print $1, $3, $4}' /proc/mounts", "/dev/vda ext4 rw,noatime\n"},
        {"for i in /proc /sys /dev /dev/pts /dev/shm /dev/tb2 /sys/fs/cgroup; do "
         "busybox grep -q \" $i \" /proc/mounts || echo missing $i; done",
         ""},
        {"echo x >/dev/null; busybox head -c 3 /dev/zero | busybox wc -c; busybox readlink /dev/fd",
         "3\n/proc/self/fd\n"},
        {"busybox ifconfig lo | busybox grep -c UP", "1\n"},
        {"busybox ls /modules /newroot 2>&1 | busybox wc -l", "2\n"},
        {"busybox ls /run", "sshd\n"}, /* the image's own */
        {"busybox cat /proc/self/oom_score_adj", "0\n"},
        {"ulimit -n; ulimit -Hn", "1024\n1048576\n"},
        {"busybox cat /proc/1/comm", "init\n"},
        {"busybox stat -c '%a %u' /dev/shm /dev/tb2", "1777 0\n755 0\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect(m, cases[i].text, cases[i].expected);
    AUTO_BUF struct buf out;
    buf_init(&out, 1 << 20);
    const char *argv[] = {BUSYBOX, "id", NULL};
    struct agent_exec exec = {.argv = argv, .user = "app"};
    assert_int_equal(run(m, &exec, &out).status, 0);
    assert_non_null(strstr(buf_text(&out), "uid=7"));
    struct err e = ERR_INIT;
    struct agent_result r;
    exec = (struct agent_exec){.argv = (const char *const[]){"bash", NULL}};
    assert_int_equal(agent_run(m->agent, &exec, NULL, NULL, &r, &e), -ERR_STEP);
    assert_non_null(strstr(e.text, "program bash is not in the guest"));
}

static void test_machine(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    int64_t before_ns;
    int64_t after_ns;
    check(agent_set_clock(m->agent, &before_ns, &e), &e);
    check(agent_clock(m->agent, &after_ns, &e), &e);
    int64_t off_ns = after_ns - clock_wall_ns();
    assert_true(off_ns > -1000000000 && off_ns < 1000000000);
    check(agent_reseed(m->agent, &e), &e);
    check(agent_network(m->agent, NULL, &e), &e);
    check(agent_network(m->agent, NULL, &e), &e); /* again, as after a restore */
    expect(m, "busybox ip -4 -o addr show scope global | busybox awk '{print $4}'",
           "10.0.2.15/24\n");
    expect(m, "busybox ip route | busybox grep -c 'default via 10.0.2.2'", "1\n");
    expect(m, "busybox cat /etc/resolv.conf", "nameserver 10.0.2.3\n");
}

/* 10 MiB each way through the real port. */
static void test_volume(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    size_t len = (size_t)10 << 20;
    AUTO_FREE uint8_t *bytes = mem_zalloc(len);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    int64_t begun = clock_ms();
    check(agent_put(m->agent, "/dev/tb2/big", 0600, bytes, len, &e), &e);
    print_message("put 10 MiB: %lld ms\n", (long long)(clock_ms() - begun));
    AUTO_BUF struct buf out;
    buf_init(&out, len);
    begun = clock_ms();
    const char *argv[] = {BUSYBOX, "cat", "/dev/tb2/big", NULL};
    struct agent_exec exec = {.argv = argv};
    run(m, &exec, &out);
    print_message("cat 10 MiB: %lld ms\n", (long long)(clock_ms() - begun));
    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, bytes, len);
    expect(m, "busybox rm /dev/tb2/big", "");
    begun = clock_ms();
    for (int i = 0; i < 100; i++)
        expect(m, "echo short", "short\n");
    print_message("100 short programs: %lld ms\n", (long long)(clock_ms() - begun));
}

/* A child that left the process group and the session does not outlive the time-out. */
static void test_time_out_reaches_all(void **state)
{
    struct machine *m = *state;
    AUTO_BUF struct buf out;
    buf_init(&out, 1 << 20);
    const char *argv[] = {BUSYBOX, "sh", "-c",
                          "busybox setsid busybox sleep 4321 & busybox sleep 4321", NULL};
    struct agent_exec exec = {.argv = argv, .timeout_ms = 1500};
    struct agent_result r = run(m, &exec, &out);
    assert_true(r.timed_out);
    expect(m, "busybox ps | busybox grep -c '[s]leep 4321'", "0\n");
}

/* Whatever was left running, also what left its session and its cgroup, is gone; nothing else is. */
static void test_end_all(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    const char *argv[] = {BUSYBOX, "sleep", "4321", NULL};
    struct agent_exec exec = {.argv = argv, .detach = true};
    struct agent_result detached;
    check(agent_run(m->agent, &exec, NULL, NULL, &detached, &e), &e);
    expect(m, "busybox setsid busybox sleep 4321 & echo $! > /sys/fs/cgroup/cgroup.procs", "");
    expect(m, "busybox ps | busybox grep -c '[s]leep 4321'", "2\n");
    check(agent_end_all(m->agent, &e), &e);
    expect(m, "busybox ps | busybox grep -c '[s]leep 4321'", "0\n");
    bool running = true;
    struct agent_result r;
    assert_true(agent_process(m->agent, detached.id, &running, &r, NULL, &e) < 0);
    check(agent_end_all(m->agent, &e), &e); /* nothing is left to end */
}

/* What a program that is set apart does to anything but the disk ends with it. */
static void test_apart(void **state)
{
    struct machine *m = *state;
    AUTO_BUF struct buf out;
    buf_init(&out, 1 << 20);
    const char *argv[] = {BUSYBOX, "sh", "-c",
                          "busybox mkdir /mnt; busybox mount -t tmpfs none /mnt && echo mounted;"
                          "echo x > /dev/shm/x; busybox hostname other;"
                          "echo 1 > /proc/sys/vm/overcommit_memory; busybox touch /kept",
                          NULL};
    struct agent_exec exec = {.argv = argv, .apart = true};
    struct agent_result r = run(m, &exec, &out);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(buf_text(&out), "mounted"));
    assert_non_null(strstr(buf_text(&out), "Read-only file system"));
    expect(m, "busybox ls /dev/shm /mnt; busybox hostname; busybox ls /kept",
           "/dev/shm:\n\n/mnt:\ntb2\n/kept\n");
}

/* The whole machine's clock as this process sees it. */
static int64_t later_ns;

int64_t __real_clock_wall_ns(void); /* the linker's --wrap */
int64_t __wrap_clock_wall_ns(void);

int64_t __wrap_clock_wall_ns(void)
{
    return __real_clock_wall_ns() + later_ns;
}

/* How often the guest's periodic timer has fired, and how often between two looks at it. */
struct ticks {
    long long all;
    long long most;
};

static struct ticks read_ticks(struct machine *m)
{
    struct err e = ERR_INIT;
    struct ticks t = {.all = -1};
    AUTO_BUF struct buf text;
    buf_init(&text, 4096);
    check(agent_get(m->agent, "/dev/tb2/ticks", &text, &e), &e);
    char *end = NULL;
    t.all = strtoll(buf_text(&text), &end, 10);
    t.most = strtoll(end, NULL, 10);
    return t;
}

static void start_ticker(struct machine *m)
{
    struct err e = ERR_INIT;
    const char *argv[] = {"/bin/guest", "ticks", "/dev/tb2/ticks", NULL};
    struct agent_exec exec = {.argv = argv, .detach = true};
    struct agent_result r;
    check(agent_run(m->agent, &exec, NULL, NULL, &r, &e), &e);
    expect(m, "until busybox test -s /dev/tb2/ticks; do busybox usleep 10000; done", "");
}

/* A restore sets the clock, while everything else is still refused. */
static void expect_clock(struct machine *m)
{
    struct err e = ERR_INIT;
    struct guest guest = {.agent = m->agent};
    int64_t stale_ns;
    int64_t now_ns;
    check(agent_clock(m->agent, &stale_ns, &e), &e);
    int64_t behind_ns = clock_wall_ns() - stale_ns;
    assert_true(behind_ns > later_ns - 1000000000);
    check(guest_set_clock(&guest, &e), &e);
    assert_true(guest.clock_error_ns <= 1000000000);
    int64_t before_ns = clock_wall_ns();
    check(agent_clock(m->agent, &now_ns, &e), &e);
    assert_true(now_ns > before_ns - 1000000000 && now_ns < clock_wall_ns() + 1000000000);
}

/* The days that passed outside did not pass for timers: what fired is what this life had time for. */
static void expect_no_burst(struct machine *m, const struct ticks *then, int64_t since_ms)
{
    expect(m, "busybox usleep 300000", "");
    struct ticks now = read_ticks(m);
    long long possible = (clock_ms() - since_ms) / TICK_MS + 100;
    print_message("ticks: %lld, of %lld possible ones\n", now.all - then->all, possible);
    assert_true(now.all > then->all);
    assert_true(now.all - then->all <= possible && now.most <= possible);
}

/* What is at work when the machine is stopped. */
struct stopping {
    struct machine *machine;
    bool stopped;
};

/* Called with the first output of a program that never ends: freezes the disk and stops the machine in
 * the midst of it. */
static int stop_in_mid_stream(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct stopping *s = ctx;
    struct agent *a = s->machine->agent;
    struct agent_frame reply = {.type = 0};
    bool got = true;
    (void)stream;
    (void)data;
    (void)len;
    uint32_t freeze = agent_link_stream(a);
    check(agent_link_send(a, AGENT_FREEZE, freeze, NULL, 0, e), e);
    while (got && reply.stream != freeze)
        check(agent_link_receive(a, clock_ms() + BOOT_MS, &reply, &got, e), e);
    assert_int_equal(reply.type, AGENT_OK);
    /* the worst that a connection can leave: it ends unseen by the guest, in the middle of a
     * frame */
    uint8_t header[AGENT_HEADER_LEN];
    AUTO_FREE uint8_t *payload = mem_zalloc(AGENT_PAYLOAD_MAX);
    agent_put_header(header, AGENT_EXEC, 99, payload, AGENT_PAYLOAD_MAX);
    assert_int_equal(write(a->fd, header, sizeof(header)), sizeof(header));
    check(vm_snapshot(s->machine->vm, s->machine->state, e), e);
    s->stopped = true;
    return err_set(e, ERR_INPUT, "enough");
}

static void stop(struct machine *m)
{
    struct err e = ERR_INIT;
    struct stopping s = {.machine = m};
    const char *argv[] = {BUSYBOX, "yes", "streaming", NULL};
    struct agent_exec exec = {.argv = argv};
    struct agent_result r;
    check(agent_sync(m->agent, true, &e), &e);
    assert_int_equal(agent_run(m->agent, &exec, stop_in_mid_stream, &s, &r, &e), -ERR_INPUT);
    assert_true(s.stopped);
    agent_free(MOVE(m->agent));
    vm_free(MOVE(m->vm));
}

/* Snapshot with programs running, one of which prints, and the disk frozen; then two new lives, a month
 * later each. */
static void test_snapshot(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    const char *argv[] = {
        BUSYBOX, "sh", "-c",
        "echo up; echo kept >/dev/tb2/kept; exec busybox httpd -f -p 8080 -h /dev/tb2", NULL};
    struct agent_exec exec = {.argv = argv, .detach = true};
    struct agent_result start = {.id = 0};
    check(agent_run(m->agent, &exec, NULL, NULL, &start, &e), &e);
    bool open = false;
    int64_t until = clock_ms() + 20000;
    while (!open && clock_ms() < until)
        check(agent_probe_port(m->agent, 8080, 1000, &open, &e), &e);
    assert_true(open);
    expect(m, "echo written >/written", "");
    start_ticker(m);
    struct agent_result r;
    exec.detach = false;
    const struct ticks then = read_ticks(m);
    int64_t then_ms = clock_ms();
    stop(m);
    int64_t lived_ms = clock_ms() - then_ms;

    for (int life = 0; life < 2; life++) {
        struct vm_options o = options(m);
        int64_t begun = clock_ms();
        later_ns += 30 * DAY_NS;
        check(vm_restore(&m->vm, &o, m->state, &e), &e);
        int64_t loaded = clock_ms();
        check(agent_connect(&m->agent, m->vm, BOOT_MS, NULL, &e), &e);
        print_message("restore: %lld ms, to hello: %lld ms\n", (long long)(loaded - begun),
                      (long long)(clock_ms() - begun));
        expect_clock(m);
        check(agent_reseed(m->agent, &e), &e);
        assert_int_equal(agent_run(m->agent, &exec, NULL, NULL, &r, &e), -ERR_BUSY);
        check(agent_thaw(m->agent, &e), &e);
        check(agent_thaw(m->agent, &e), &e);
        bool running = false;
        AUTO_BUF struct buf tail;
        buf_init(&tail, LIMIT_OUTPUT_TAIL);
        check(agent_process(m->agent, start.id, &running, &r, &tail, &e), &e);
        assert_true(running);
        assert_string_equal(buf_text(&tail), "up\n");
        check(agent_probe_port(m->agent, 8080, 5000, &open, &e), &e);
        assert_true(open);
        expect(m, "busybox cat /written /dev/tb2/kept", "written\nkept\n");
        expect(m, "busybox ps | busybox grep -c '[y]es streaming'", "0\n");
        check(agent_echo(m->agent, (size_t)1 << 20, &e), &e);
        expect_no_burst(m, &then, begun - lived_ms);
        if (life == 0) { /* the channel can be closed and opened as often as one likes */
            for (int i = 0; i < 5; i++) {
                agent_free(MOVE(m->agent));
                check(agent_connect(&m->agent, m->vm, BOOT_MS, NULL, &e), &e);
            }
            agent_free(MOVE(m->agent));
            vm_free(MOVE(m->vm));
        }
    }
}

/* Nobody connected: the agent must sleep. Two looks at its processor time, some way apart. */
static void test_idle(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    static const char text[] = "busybox awk '{print $14 + $15}' /proc/1/stat";
    long ticks[2];
    for (int i = 0; i < 2; i++) {
        AUTO_BUF struct buf out;
        buf_init(&out, 1 << 20);
        const char *argv[] = {BUSYBOX, "sh", "-c", text, NULL};
        struct agent_exec exec = {.argv = argv};
        run(m, &exec, &out);
        ticks[i] = strtol(buf_text(&out), NULL, 10);
        if (i == 0) {
            agent_free(MOVE(m->agent));
            clock_sleep_ms(2000);
            check(agent_connect(&m->agent, m->vm, BOOT_MS, NULL, &e), &e);
        }
    }
    print_message("agent used %ld ticks while alone\n", ticks[1] - ticks[0]);
    assert_true(ticks[1] - ticks[0] < 40);
}

static void test_power_off(void **state)
{
    struct machine *m = *state;
    struct err e = ERR_INIT;
    check(agent_power_off(m->agent, &e), &e);
    int64_t until = clock_ms() + 30000;
    while (vm_check(m->vm, &e) == 0 && clock_ms() < until)
        clock_sleep_ms(20);
    assert_int_equal(vm_check(m->vm, &e), -ERR_STEP);
    print_message("%s\n", e.text);
    char disk[128];
    snprintf(disk, sizeof(disk), "%s/disk", m->dir);
    proc_kill(&m->nbd);
    run_tool((const char *const[]){"e2fsck", "-fn", disk, NULL});
}

/* A disk that is no ext4: the agent comes up all the same, to say so. */
static void test_bad_disk(void **state)
{
    struct err e = ERR_INIT;
    struct machine *m = machine_new();
    (void)state;
    char disk[128];
    snprintf(disk, sizeof(disk), "%s/disk", m->dir);
    run_tool((const char *const[]){"truncate", "-s", "16M", disk, NULL});
    serve_disk(m, disk);
    struct vm_options o = options(m);
    check(vm_boot(&m->vm, &o, &e), &e);
    check(agent_connect(&m->agent, m->vm, BOOT_MS, NULL, &e), &e);
    assert_int_equal(agent_mount(m->agent, &e), -ERR_STEP);
    print_message("%s\n", e.text);
    assert_non_null(strstr(e.text, "mounting as ext4 the root disk /dev/vda"));
    void *held = m;
    assert_int_equal(tear_down(&held), 0);
}

int main(void)
{
    if (access(BUSYBOX, X_OK) < 0 || access(QEMU_NBD, X_OK) < 0 || !getenv("TB2_TEST_CACHE")) {
        puts("needs " BUSYBOX " (static), " QEMU_NBD " and TB2_TEST_CACHE");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root),      cmocka_unit_test(test_machine),
        cmocka_unit_test(test_volume),    cmocka_unit_test(test_time_out_reaches_all),
        cmocka_unit_test(test_end_all),   cmocka_unit_test(test_apart),
        cmocka_unit_test(test_snapshot),  cmocka_unit_test(test_idle),
        cmocka_unit_test(test_power_off), cmocka_unit_test(test_bad_disk),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
