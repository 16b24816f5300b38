/* SPDX-License-Identifier: MIT */
/*
 * The QEMU driver: starts it, talks QMP to it, saves and restores, says how it ended.
 *
 * Guest memory is a file. While a template is made the file is mapped shared, so that after `stop`
 * it is the memory image and the migration stream holds device state alone (capability
 * x-ignore-shared). A restore maps the same file privately: pages come in as they are touched and
 * the file never changes. `stop` drains and flushes the disk before it returns (QEMU vm_stop).
 *
 * Sockets have short names in the run directory, which is QEMU's current directory and which we
 * reach by descriptor, so that the length of its path does not matter (sun_path holds 108 bytes).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bake/internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"

enum {
    START_TIMEOUT_MS = 60000,   /* until QEMU's control socket answers */
    COMMAND_TIMEOUT_MS = 60000, /* for one QMP command on a busy host */
    STATE_TIMEOUT_MS = 300000,  /* saving or loading device state */
    ENDING_TIMEOUT_MS = 5000,   /* between the shutdown event and the end of the process */
    POLL_MS = 5,
    SUMMARY_LINES = 8,
    SUMMARY_MAX = 1024
};

struct vm {
    struct proc proc;
    bool ended;
    int status; /* wait status, once ended */
    bool held;  /* stopped by vm_snapshot */
    struct qmp *qmp;
    struct console *console;
    int run_dir;
    const struct cancel *cancel;
    char agent_socket[64];
    char *console_path;
};

static bool has_ended(struct vm *v)
{
    struct err ignored = ERR_INIT;
    if (!v->ended && proc_wait(&v->proc, 0, NULL, &v->status, &ignored) == 0)
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

/* What the wait status and QEMU's last event say. */
static void describe_end(struct vm *v, const char *tail, struct err *e)
{
    const struct qmp_events *events = v->qmp ? qmp_events(v->qmp) : NULL;
    if (WIFSIGNALED(v->status)) {
        int number = WTERMSIG(v->status);
        (void)err_set(e, ERR_STEP, "QEMU was killed by signal %d (%s)", number, strsignal(number));
        if (number == SIGBUS)
            (void)err_hint(e, "the file system that holds the guest's memory is full: make room");
        if (number == SIGKILL)
            (void)err_hint(e, "if nobody did this by hand, the host ran out of memory: see its "
                              "kernel log, use fewer jobs");
    } else if (WEXITSTATUS(v->status) != 0) {
        (void)err_set(e, ERR_STEP, "QEMU ended with status %d", WEXITSTATUS(v->status));
    } else if (events && strcmp(events->reason, "guest-shutdown") == 0) {
        (void)err_set(e, ERR_STEP, "the guest powered off");
    } else if (strstr(tail, "Kernel panic")) {
        describe_panic(strstr(tail, "Kernel panic"), e);
    } else if (events && strcmp(events->reason, "guest-reset") == 0) {
        (void)err_set(e, ERR_STEP, "the guest restarted");
    } else {
        (void)err_set(e, ERR_STEP, "QEMU ended by itself%s%s", events ? ", reason " : "",
                      events ? events->reason : "");
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
    if (v->qmp)
        qmp_poll(v->qmp);
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
    return -ERR_STEP;
}

/* If the machine is gone, that explains the failure better than a broken connection does. */
static int explain(struct vm *v, int rc, struct err *e)
{
    if (rc != -ERR_NET || !v->console)
        return rc;
    struct err ignored = ERR_INIT;
    if (!v->ended && proc_wait(&v->proc, ENDING_TIMEOUT_MS, NULL, &v->status, &ignored) < 0)
        return rc;
    v->ended = true;
    return end_error(v, e);
}

int vm_check(struct vm *v, struct err *e)
{
    if (!has_ended(v)) {
        qmp_poll(v->qmp);
        const struct qmp_events *events = qmp_events(v->qmp);
        struct err ignored = ERR_INIT;
        if (events->shutdown &&
            proc_wait(&v->proc, ENDING_TIMEOUT_MS, NULL, &v->status, &ignored) == 0)
            v->ended = true;
        if (!v->ended && (!events->stopped || v->held))
            return 0;
    }
    if (v->ended)
        return end_error(v, e);
    AUTO_JSON struct json *reply = NULL;
    const char *state = NULL;
    int rc = qmp_command(v->qmp, "query-status", NULL, -1, &reply, e);
    if (rc == 0)
        rc = json_get_string(reply, "status", &state, e);
    if (rc < 0)
        return explain(v, rc, e);
    if (strcmp(state, "internal-error") == 0) {
        (void)err_set(e, ERR_STEP, "the host's KVM cannot run this guest (internal error)");
        return err_hint(e, "use the accelerator tcg");
    }
    return err_set(e, ERR_STEP, "the machine stopped, state %s", state);
}

static int connect_once(struct vm *v, int *out, struct err *e)
{
    AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_sys(e, "QEMU control socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/qmp.sock", v->run_dir);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return err_sys(e, "QEMU control socket");
    *out = fd;
    fd = -1;
    return 0;
}

static int connect_qmp(struct vm *v, struct err *e)
{
    int64_t deadline = clock_ms() + START_TIMEOUT_MS;
    int fd = -1;
    while (connect_once(v, &fd, e) < 0) {
        if (e->sys != ENOENT && e->sys != ECONNREFUSED)
            return -(int)e->class;
        if (has_ended(v))
            return end_error(v, e);
        if (clock_ms() > deadline)
            return err_set(e, ERR_TIMEOUT, "QEMU did not open its control socket in %d s",
                           START_TIMEOUT_MS / 1000);
        int rc = cancel_sleep_ms(v->cancel, POLL_MS, e);
        if (rc < 0)
            return rc;
    }
    err_clear(e);
    return explain(v, qmp_open(&v->qmp, fd, COMMAND_TIMEOUT_MS, v->cancel, e), e);
}

static int check_options(const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    if (o->cpus < 1 || o->cpus > 255)
        return err_set(e, ERR_INPUT, "%u processors; from 1 to 255 are possible", o->cpus);
    if (o->memory_mb < 64 || o->memory_mb > (1U << 24))
        return err_set(e, ERR_INPUT, "%llu MiB of memory; from 64 MiB to 16 TiB are possible",
                       (unsigned long long)o->memory_mb);
    if (o->accel == VM_ACCEL_AUTO)
        return err_set(e, ERR_INPUT, "the accelerator is not chosen yet");
    return 0;
}

/* A cold boot gets a new, sparse file; a restore needs the whole file that it was given. */
static int prepare_memory(const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    uint64_t want = o->memory_mb << 20;
    if (launch->bare)
        return 0;
    if (launch->state_path) {
        uint64_t size;
        int rc = file_size(AT_FDCWD, o->memory_path, &size, e);
        if (rc == 0 && size != want)
            rc = err_set(e, ERR_CORRUPT, "%s has %llu bytes, not %llu", o->memory_path,
                         (unsigned long long)size, (unsigned long long)want);
        return rc < 0 ? err_in(e, "guest memory") : 0;
    }
    if (unlink(o->memory_path) < 0 && errno != ENOENT)
        return err_sys(e, "guest memory: removing %s", o->memory_path);
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, o->memory_path, O_RDWR | O_CREAT | O_EXCL, 0600, e);
    if (rc < 0)
        return err_in(e, "guest memory");
    if (ftruncate(fd, (off_t)want) < 0)
        return err_sys(e, "guest memory: sizing %s", o->memory_path);
    return 0;
}

static int start_process(struct vm *v, const struct vm_launch *launch, struct err *e)
{
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(e, "console");
    AUTO_FD int writer = pipe_fds[1];
    int rc = console_start(&v->console, pipe_fds[0], v->run_dir, "console.log", e);
    if (rc < 0)
        return rc;
    char **arguments = NULL;
    rc = vm_arguments(&arguments, launch, e);
    if (rc == 0)
        rc = proc_start(&v->proc, (const char *const *)arguments,
                        &(struct proc_setup){.cwd = launch->options->run_dir,
                                             .stdin_fd = -1,
                                             .stdout_fd = writer,
                                             .stderr_fd = writer},
                        e);
    vm_arguments_free(arguments);
    if (rc == -ERR_NOTFOUND)
        return err_hint(e, "install it: apt-get install qemu-system-x86");
    return rc;
}

static int set_capability(struct vm *v, struct err *e)
{
    struct json *capability = json_new_object();
    json_set(capability, "capability", json_new_string("x-ignore-shared"));
    json_set(capability, "state", json_new_bool(true));
    struct json *list = json_new_array();
    json_append(list, capability);
    struct json *arguments = json_new_object();
    json_set(arguments, "capabilities", list);
    return qmp_command(v->qmp, "migrate-set-capabilities", arguments, -1, NULL, e);
}

/* Waits until a migration in either direction is over. */
static int await_migration(struct vm *v, struct err *e)
{
    int64_t deadline = clock_ms() + STATE_TIMEOUT_MS;
    for (;;) {
        AUTO_JSON struct json *reply = NULL;
        const char *state = NULL;
        int rc = qmp_command(v->qmp, "query-migrate", NULL, -1, &reply, e);
        if (rc == 0)
            rc = json_get_string_opt(reply, "status", &state, e);
        if (rc < 0)
            return rc;
        if (state && strcmp(state, "completed") == 0)
            return 0;
        if (state && (strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0)) {
            const char *why = json_as_string(json_member(reply, "error-desc"));
            return err_set(e, ERR_NET, "QEMU: %s", why ? why : state);
        }
        if (clock_ms() > deadline)
            return err_set(e, ERR_TIMEOUT, "QEMU did not finish in %d s", STATE_TIMEOUT_MS / 1000);
        rc = cancel_sleep_ms(v->cancel, POLL_MS, e);
        if (rc < 0)
            return rc;
    }
}

/* Hands `fd` to QEMU under the name "state" and starts `command` ("migrate", "migrate-incoming")
 * on it. */
static int migrate(struct vm *v, const char *command, int fd, struct err *e)
{
    int rc = set_capability(v, e);
    if (rc < 0)
        return rc;
    struct json *name = json_new_object();
    json_set(name, "fdname", json_new_string("state"));
    rc = qmp_command(v->qmp, "getfd", name, fd, NULL, e);
    if (rc < 0)
        return rc;
    struct json *target = json_new_object();
    json_set(target, "uri", json_new_string("fd:state"));
    rc = qmp_command(v->qmp, command, target, -1, NULL, e);
    return rc == 0 ? await_migration(v, e) : rc;
}

static int load_state(struct vm *v, const char *state_path, struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, state_path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = migrate(v, "migrate-incoming", fd, e);
    if (rc == 0)
        rc = qmp_command(v->qmp, "cont", NULL, -1, NULL, e);
    if (rc < 0) {
        rc = explain(v, rc, e);
        return err_in(e, "loading the machine state %s", state_path);
    }
    return 0;
}

int vm_launch(struct vm **out, const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    int rc = check_options(launch, e);
    if (rc == 0)
        rc = prepare_memory(launch, e);
    if (rc < 0)
        return rc;
    AUTO_VM struct vm *v = mem_zalloc(sizeof(*v));
    if (!v)
        return err_nomem(e, "machine");
    v->proc.pid = -1;
    v->run_dir = -1;
    v->cancel = o->cancel;
    rc = file_open(&v->run_dir, AT_FDCWD, o->run_dir, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return err_in(e, "machine directory");
    (void)unlinkat(v->run_dir, "qmp.sock", 0); /* of an earlier machine: it would refuse us once */
    (void)unlinkat(v->run_dir, "agent.sock", 0);
    snprintf(v->agent_socket, sizeof(v->agent_socket), "/proc/self/fd/%d/agent.sock", v->run_dir);
    v->console_path = mem_printf("%s/console.log", o->run_dir);
    if (!v->console_path)
        return err_nomem(e, "machine");
    rc = start_process(v, launch, e);
    if (rc == 0)
        rc = connect_qmp(v, e);
    if (rc == 0 && launch->state_path)
        rc = load_state(v, launch->state_path, e);
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

int vm_boot(struct vm **out, const struct vm_options *o, struct err *e)
{
    struct vm_launch launch = {.options = o, .append = GUEST_APPEND "tb2.root=/dev/vda"};
    return vm_launch(out, &launch, e);
}

int vm_restore(struct vm **out, const struct vm_options *o, const char *state_path, struct err *e)
{
    struct vm_launch launch = {
        .options = o, .append = GUEST_APPEND "tb2.root=/dev/vda", .state_path = state_path};
    return vm_launch(out, &launch, e);
}

/* The directory part of a path; free with free(). */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return mem_strdup(".");
    return slash == path ? mem_strdup("/") : mem_strndup(path, (size_t)(slash - path));
}

static int save_state(struct vm *v, const char *state_path, struct err *e)
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
    if (rc == 0)
        rc = qmp_command(v->qmp, "stop", NULL, -1, NULL, e);
    if (rc < 0)
        return rc;
    v->held = true;
    rc = migrate(v, "migrate", t.fd, e);
    return rc == 0 ? file_tmp_commit(&t, AT_FDCWD, state_path, false, e) : rc;
}

int vm_snapshot(struct vm *v, const char *state_path, struct err *e)
{
    int rc = vm_check(v, e);
    if (rc == 0)
        rc = explain(v, save_state(v, state_path, e), e);
    return rc < 0 ? err_in(e, "saving the machine state %s", state_path) : 0;
}

void vm_free(struct vm *v)
{
    if (!v)
        return;
    proc_kill(&v->proc);
    qmp_free(v->qmp);
    console_free(v->console);
    file_close(&v->run_dir);
    free(v->console_path);
    free(v);
}

const char *vm_agent_socket(const struct vm *v)
{
    return v->agent_socket;
}

const char *vm_console_path(const struct vm *v)
{
    return v->console_path;
}

int vm_version(char **out, struct err *e)
{
    static const char *const argv[] = {"qemu-system-x86_64", "--version", NULL};
    static const char head[] = "QEMU emulator version ";
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    int status;
    int rc =
        proc_run(argv, &(struct proc_io){.out = &text, .timeout_ms = START_TIMEOUT_MS}, &status, e);
    if (rc == -ERR_NOTFOUND)
        return err_hint(e, "install it: apt-get install qemu-system-x86");
    if (rc < 0)
        return rc;
    const char *at = strstr(buf_text(&text), head);
    if (!at || status != 0)
        return err_set(e, ERR_UNSUPPORTED, "qemu-system-x86_64 --version says no version");
    at += strlen(head);
    *out = mem_printf("qemu %.*s", (int)strspn(at, "0123456789."), at);
    return *out ? 0 : err_nomem(e, "QEMU version");
}
