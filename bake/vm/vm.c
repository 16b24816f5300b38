/* SPDX-License-Identifier: MIT */
/*
 * What the drivers of all VMMs share: starting the process, the console, how a machine ended.
 *
 * Sockets have short names in the run directory, which is the VMM's current directory and which we
 * reach by descriptor, so that the length of its path does not matter (sun_path holds 108 bytes).
 */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bake/channel/console.h"
#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum {
    START_TIMEOUT_MS = 60000, /* until the control socket answers */
    SUMMARY_LINES = 8,
    SUMMARY_MAX = 1024,
    FULL_DISK_MAX = 1 << 20, /* bytes that are left on a disk which counts as full */
};

const char *vm_driver_name(const struct vm_driver *d)
{
    return d->name;
}

const struct vm_abilities *vm_driver_can(const struct vm_driver *d)
{
    return &d->can;
}

/* ---- How it ended ---- */

bool vm_has_ended(struct vm *v, int64_t timeout_ms)
{
    struct err ignored = ERR_INIT;
    if (!v->ended && proc_wait(&v->proc, timeout_ms, NULL, &v->status, &ignored) == 0)
        v->ended = true;
    return v->ended;
}

size_t vm_console_tail(struct vm *v, char *out, size_t len)
{
    return console_tail(v->console, out, len);
}

/* The kernel's own line: the last lines after it are a register dump. */
static void describe_panic(const char *line, struct err *e)
{
    char text[256];
    char summary[256];
    snprintf(text, sizeof(text), "%.*s", (int)strcspn(line, "\r\n"), line);
    console_summary(text, 1, summary, sizeof(summary));
    (void)err_set(e, ERR_STEP, "the guest's kernel panicked: %s", summary);
}

/* A page of the guest's memory could not be had: its file is sparse, and fills as the guest uses memory. */
static void describe_bus_error(const struct vm *v, struct err *e)
{
    struct statvfs disk;
    if (fstatvfs(v->run_dir, &disk) < 0 || disk.f_bavail * disk.f_frsize > FULL_DISK_MAX) {
        (void)err_hint(e, "a page of the guest's memory could not be read or written: see the "
                          "host's kernel log");
        return;
    }
    (void)err_sysno(
        e, ENOSPC, "the disk is full, the guest's memory file cannot grow: %s was killed by SIGBUS",
        v->driver->title);
}

/* Bytes of a template's memory that could not be had explain whatever the machine did then. */
static int blame_memory(const struct vm *v, int rc, struct err *e)
{
    struct err why = ERR_INIT;
    if (rc >= 0 || !v->memory || !bdev_map_failure(v->memory, &why))
        return rc;
    *e = why;
    return err_in(e, "the guest's memory could not be read");
}

/* What the wait status and the VMM's last word say. */
static void describe_end(struct vm *v, const char *tail, struct err *e)
{
    const char *title = v->driver->title;
    const char *reason = NULL;
    enum vm_ending ending = v->driver->ending(v, &reason);
    if (WIFSIGNALED(v->status) && !v->dismissed) {
        int number = WTERMSIG(v->status);
        (void)err_set(e, ERR_STEP, "%s was killed by signal %d (%s)", title, number,
                      strsignal(number));
        if (number == SIGBUS)
            describe_bus_error(v, e);
        if (number == SIGKILL)
            (void)err_hint(e, "if nobody did this by hand, the host ran out of memory: see its "
                              "kernel log, use fewer jobs");
    } else if (WIFEXITED(v->status) && WEXITSTATUS(v->status) != 0) {
        (void)err_set(e, ERR_STEP, "%s ended with status %d", title, WEXITSTATUS(v->status));
    } else if (ending == VM_ENDING_POWER_OFF) {
        (void)err_set(e, ERR_STEP, "the guest powered off");
    } else if (strstr(tail, "Kernel panic")) {
        describe_panic(strstr(tail, "Kernel panic"), e);
    } else if (ending == VM_ENDING_RESTART) {
        (void)err_set(e, ERR_STEP, "the guest restarted");
    } else {
        (void)err_set(e, ERR_STEP, "%s ended by itself%s%s", title, reason ? ", reason " : "",
                      reason ? reason : "");
    }
}

/* The line of the kernel's first fault ("int3: 0000 [#1] ...", "Oops: ... [#1] ..."); NULL: none. */
static char *first_fault(char *tail)
{
    char *at = strstr(tail, "[#1]");
    while (at && at > tail && at[-1] != '\n')
        at--;
    return at;
}

static int end_error(struct vm *v, struct err *e)
{
    if (v->driver->cause && v->driver->cause(v, e) < 0)
        return -(int)e->class;
    console_drain(v->console, 1000);
    AUTO_FREE char *tail = mem_zalloc(CONSOLE_TAIL_LEN + 1);
    if (!tail)
        return err_nomem(e, "console");
    (void)console_tail(v->console, tail, CONSOLE_TAIL_LEN + 1);
    char *panic = strstr(tail, "Kernel panic");
    if (panic)
        panic[strcspn(panic, "\n")] = 0; /* a register dump follows */
    describe_end(v, tail, e);
    /* What the kernel says first of a fault tells more than the registers that it says last. */
    char *fault = panic ? first_fault(tail) : NULL;
    char *place = fault ? strstr(fault, "RIP: ") : NULL;
    if (place)
        place[strcspn(place, "\n")] = 0;
    char summary[SUMMARY_MAX];
    console_summary(fault ? fault : tail, SUMMARY_LINES, summary, sizeof(summary));
    if (summary[0]) {
        size_t used = strlen(e->text);
        snprintf(e->text + used, sizeof(e->text) - used, "; console: %s", summary);
    }
    return blame_memory(v, -(int)e->class, e);
}

int vm_explain(struct vm *v, int rc, struct err *e)
{
    if (rc != -ERR_NET || !v->console || !vm_has_ended(v, VM_ENDING_TIMEOUT_MS))
        return rc;
    return end_error(v, e);
}

int vm_check(struct vm *v, struct err *e)
{
    if (!vm_has_ended(v, 0)) {
        int rc = v->driver->check(v, e);
        if (!v->ended)
            return blame_memory(v, rc, e);
    }
    return end_error(v, e);
}

/* ---- Its sockets ---- */

int vm_connect(struct vm *v, const char *name, int *out, struct err *e)
{
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, "socket for %s", v->driver->title);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", v->run_dir, name);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return err_sys(e, "connecting to %s of %s", name, v->driver->title);
    *out = fd;
    fd = -1;
    return 0;
}

static int connect_control(struct vm *v, int *fd, struct err *e)
{
    int64_t deadline = clock_ms() + START_TIMEOUT_MS;
    while (vm_connect(v, v->driver->sockets[0], fd, e) < 0) {
        if (e->sys != ENOENT && e->sys != ECONNREFUSED)
            return -(int)e->class;
        if (vm_has_ended(v, 0))
            return end_error(v, e);
        if (clock_ms() > deadline)
            return err_set(e, ERR_TIMEOUT, "%s did not open its control socket in %d s",
                           v->driver->title, START_TIMEOUT_MS / 1000);
        int rc = cancel_sleep_ms(v->cancel, VM_POLL_MS, e);
        if (rc < 0)
            return rc;
    }
    err_clear(e);
    return 0;
}

int vm_agent_open(struct vm *v, int *fd, struct err *e)
{
    return v->driver->agent_open(v, fd, e);
}

/* ---- Starting it ---- */

static int check_options(const struct vm_launch *launch, const struct vm_driver *driver,
                         struct err *e)
{
    const struct vm_options *o = launch->options;
    if (o->cpus < 1 || o->cpus > 255)
        return err_set(e, ERR_INPUT, "%u processors; from 1 to 255 are possible", o->cpus);
    if (o->memory_mb < 64 || o->memory_mb > (1U << 24))
        return err_set(e, ERR_INPUT, "%llu MiB of memory; from 64 MiB to 16 TiB are possible",
                       (unsigned long long)o->memory_mb);
    if (o->accel == VM_ACCEL_AUTO)
        return err_set(e, ERR_INPUT, "the accelerator is not chosen yet");
    if (o->cpu_template && !driver->can.cpu_templates)
        return err_set(e, ERR_UNSUPPORTED, "%s has no CPU templates", driver->title);
    if (!launch->bare && !o->memory_path && !(launch->state_path && o->memory))
        return err_set(e, ERR_INPUT, "there is no place for the guest's memory");
    return 0;
}

/* A cold boot gets a new, sparse file; a restore needs the whole file that it was given. */
static int prepare_memory(const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    uint64_t want = o->memory_mb << 20;
    /* The file of a memory device has its size, and may be one that this process must not touch. */
    if (launch->bare || o->memory || (launch->state_path && !o->memory_path))
        return 0;
    if (launch->state_path) {
        uint64_t size;
        int rc = file_size(AT_FDCWD, o->memory_path, &size, e);
        if (rc == 0 && size != want)
            rc = err_set(e, ERR_CORRUPT, "%s has %llu bytes, not %llu", o->memory_path,
                         (unsigned long long)size, (unsigned long long)want);
        return rc < 0 ? err_in(e, "opening the file of the guest's memory") : 0;
    }
    if (unlink(o->memory_path) < 0 && errno != ENOENT)
        return err_sys(e, "guest memory: removing %s", o->memory_path);
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, o->memory_path, O_RDWR | O_CREAT | O_EXCL, 0600, e);
    if (rc < 0)
        return err_in(e, "opening the file of the guest's memory");
    if (ftruncate(fd, (off_t)want) < 0)
        return err_sys(e, "guest memory: sizing %s", o->memory_path);
    return 0;
}

static int start_process(struct vm *v, const struct vm_launch *launch, struct err *e)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(e, "making a pipe for the guest's console");
    AUTO_FD int writer = pipe_fds[1];
    int rc = console_start(&v->console, pipe_fds[0], v->run_dir, "console.log", e);
    if (rc < 0)
        return rc;
    char **arguments = NULL;
    rc = v->driver->arguments(&arguments, launch, e);
    if (rc == 0)
        rc = proc_start(&v->proc, (const char *const *)arguments,
                        &(struct proc_setup){.cwd = launch->options->run_dir,
                                             .stdin_fd = -1,
                                             .stdout_fd = writer,
                                             .stderr_fd = writer},
                        e);
    vm_arguments_free(arguments);
    if (rc == -ERR_NOTFOUND)
        return err_hint(e, "%s", v->driver->install);
    return rc;
}

static int start_machine(struct vm *v, const struct vm_launch *launch, struct err *e)
{
    int control = -1;
    int rc = start_process(v, launch, e);
    if (rc == 0)
        rc = connect_control(v, &control, e);
    return rc == 0 ? v->driver->start(v, control, launch, e) : rc;
}

static const struct vm_driver *driver_of(const struct vm_options *o)
{
    return o->driver ? o->driver : &vm_qemu;
}

int vm_launch(struct vm **out, const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    const struct vm_driver *driver = driver_of(o);
    int rc = check_options(launch, driver, e);
    if (rc == 0)
        rc = prepare_memory(launch, e);
    if (rc < 0)
        return rc;
    AUTO_VM struct vm *v = mem_zalloc(driver->size);
    if (!v)
        return err_nomem(e, "machine");
    v->driver = driver;
    v->proc.pid = -1;
    v->run_dir = -1;
    v->cancel = o->cancel;
    v->memory = o->memory;
    rc = file_open(&v->run_dir, AT_FDCWD, o->run_dir, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return err_in(e, "opening the machine's directory");
    /* Those of an earlier machine would refuse us once. */
    for (const char *const *name = driver->sockets; *name; name++)
        (void)unlinkat(v->run_dir, *name, 0);
    v->console_path = mem_printf("%s/console.log", o->run_dir);
    if (!v->console_path)
        return err_nomem(e, "machine");
    rc = start_machine(v, launch, e);
    if (rc < 0)
        return err_in(e, "starting the machine");
    *out = MOVE(v);
    return 0;
}

/*
 * The guest's command line. `quiet`: each console line costs an exit. No self tests of ciphers, no
 * patching of lock prefixes on one processor: emulated work without use here. No check that timer
 * interrupts arrive within a few ticks: on a busy host they do not, and the kernel panics. A panic
 * restarts at once, which -no-reboot makes the end of QEMU.
 */
#define GUEST_APPEND "console=ttyS0 quiet panic=-1 no_timer_check noreplace-smp cryptomgr.notests "

static const char *append_of(const struct vm_options *o)
{
    return o->scrub ? GUEST_APPEND "init_on_free=1 tb2.root=/dev/vda"
                    : GUEST_APPEND "tb2.root=/dev/vda";
}

int vm_boot(struct vm **out, const struct vm_options *o, struct err *e)
{
    struct vm_launch launch = {.options = o, .append = append_of(o)};
    return vm_launch(out, &launch, e);
}

int vm_restore(struct vm **out, const struct vm_options *o, const char *state_path, struct err *e)
{
    struct vm_launch launch = {.options = o, .append = append_of(o), .state_path = state_path};
    return vm_launch(out, &launch, e);
}

int vm_machine(struct digest *out, const struct vm_options *o, struct err *e)
{
    /* The paths are other ones each time, and say nothing. */
    char kernel[] = "kernel", initramfs[] = "initramfs";
    struct guest_kernel same = {.kernel_path = kernel, .initramfs_path = initramfs};
    struct vm_options options = *o;
    options.kernel = &same;
    options.run_dir = "/";
    options.memory_path = "/memory";
    options.nbd_socket = "/nbd.sock";
    struct vm_launch launch = {.options = &options, .append = append_of(o)};
    char **arguments = NULL;
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc == 0)
        rc = driver_of(o)->arguments(&arguments, &launch, e);
    for (size_t i = 0; rc == 0 && arguments[i]; i++)
        hasher_add(h, arguments[i], strlen(arguments[i]) + 1);
    vm_arguments_free(arguments);
    if (rc == 0)
        hasher_finish(h, out);
    return rc;
}

/* The directory part of a path; free with free(). */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mem_strdup(".");
    return slash == path ? mem_strdup("/") : mem_strndup(path, (size_t)(slash - path));
}

static int save_state(struct vm *v, const char *state_path, const char *diff_path, struct err *e)
{
    AUTO_FREE char *parent = parent_of(state_path);
    if (!parent)
        return err_nomem(e, state_path);
    AUTO_FD int dir = -1;
    int rc = file_open(&dir, AT_FDCWD, parent, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    rc = file_tmp_open(&t, dir, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *path = mem_printf("%s/%s", parent, t.name);
    if (!path)
        return err_nomem(e, state_path);
    rc = v->driver->save(
        v, &(struct vm_saving){.state_fd = t.fd, .state_path = path, .diff_path = diff_path}, e);
    return rc == 0 ? file_tmp_commit(&t, AT_FDCWD, state_path, false, e) : rc;
}

static int snapshot(struct vm *v, const char *state_path, const char *diff_path, struct err *e)
{
    int rc = vm_check(v, e);
    if (rc == 0)
        rc = vm_explain(v, save_state(v, state_path, diff_path, e), e);
    v->lost = rc < 0 && (v->held || v->lost);
    return rc < 0 ? err_in(e, "saving the machine state %s", state_path) : 0;
}

int vm_snapshot(struct vm *v, const char *state_path, struct err *e)
{
    return snapshot(v, state_path, NULL, e);
}

int vm_snapshot_diff(struct vm *v, const char *state_path, const char *diff_path, struct err *e)
{
    if (!v->driver->can.memory_diff)
        return err_set(e, ERR_UNSUPPORTED, "%s makes no differential snapshots", v->driver->title);
    if (v->lost) {
        (void)err_set(e, ERR_UNSUPPORTED, "an earlier snapshot failed");
        return err_hint(e, "make a full one");
    }
    return snapshot(v, state_path, diff_path, e);
}

void vm_free(struct vm *v)
{
    if (!v)
        return;
    proc_kill(&v->proc);
    v->driver->close(v);
    console_free(v->console);
    file_close(&v->run_dir);
    free(v->console_path);
    free(v);
}

const char *vm_console_path(const struct vm *v)
{
    return v->console_path;
}

int vm_version(const struct vm_driver *d, char **out, struct err *e)
{
    int rc = d->version(out, e);
    return rc == -ERR_NOTFOUND ? err_hint(e, "%s", d->install) : rc;
}

/* ---- Arguments ---- */

void vm_argument_taken(struct vm_arguments *a, char *text)
{
    if (a->rc == 0 && !text)
        a->rc = err_nomem(a->e, "the VMM's arguments");
    if (a->rc == 0)
        a->rc = mem_grow(&a->list, &a->capacity, a->count + 2, sizeof(*a->list), a->e);
    if (a->rc < 0) {
        free(text);
        return;
    }
    a->list[a->count++] = text;
}

void vm_argument(struct vm_arguments *a, const char *text)
{
    vm_argument_taken(a, mem_strdup(text));
}

int vm_arguments_done(struct vm_arguments *a, char ***out)
{
    if (a->rc < 0) {
        vm_arguments_free(a->list);
        return a->rc;
    }
    *out = a->list;
    return 0;
}

void vm_arguments_free(char **arguments)
{
    for (size_t i = 0; arguments && arguments[i]; i++)
        free(arguments[i]);
    free(arguments);
}
