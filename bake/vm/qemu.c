/* SPDX-License-Identifier: MIT */
/*
 * The QEMU driver: talks QMP to it, saves and restores.
 *
 * Guest memory is a file. While a template is made the file is mapped shared, so that after `stop`
 * it is the memory image and the migration stream holds device state alone (capability
 * x-ignore-shared). A restore maps the same file privately: pages come in as they are touched and
 * the file never changes. `stop` drains and flushes the disk before it returns (QEMU vm_stop).
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "bake/vm/qemu.h"
#include "bake/vm/qmp.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

struct qemu {
    struct vm vm; /* first: struct vm is what everyone else sees */
    struct qmp *qmp;
};

static struct qemu *qemu_of(struct vm *v)
{
    return (struct qemu *)v;
}

static enum vm_ending qemu_ending(struct vm *v, const char **reason)
{
    struct qemu *q = qemu_of(v);
    if (!q->qmp)
        return VM_ENDING_UNKNOWN;
    qmp_poll(q->qmp);
    const struct qmp_events *events = qmp_events(q->qmp);
    *reason = events->reason;
    if (strcmp(events->reason, "guest-shutdown") == 0)
        return VM_ENDING_POWER_OFF;
    return strcmp(events->reason, "guest-reset") == 0 ? VM_ENDING_RESTART : VM_ENDING_UNKNOWN;
}

static int qemu_check(struct vm *v, struct err *e)
{
    struct qemu *q = qemu_of(v);
    qmp_poll(q->qmp);
    const struct qmp_events *events = qmp_events(q->qmp);
    if (events->shutdown && vm_has_ended(v, VM_ENDING_TIMEOUT_MS))
        return 0;
    if (!events->stopped || v->held)
        return 0;
    AUTO_JSON struct json *reply = NULL;
    const char *state = NULL;
    int rc = qmp_command(q->qmp, "query-status", NULL, -1, &reply, e);
    if (rc == 0)
        rc = json_get_string(reply, "status", &state, e);
    if (rc < 0)
        return vm_explain(v, rc, e);
    if (strcmp(state, "internal-error") == 0) {
        (void)err_set(e, ERR_STEP, "the host's KVM cannot run this guest (internal error)");
        return err_hint(e, "use the accelerator tcg");
    }
    return err_set(e, ERR_STEP, "the machine stopped, state %s", state);
}

static int set_capability(struct qemu *q, struct err *e)
{
    struct json *capability = json_new_object();
    json_set(capability, "capability", json_new_string("x-ignore-shared"));
    json_set(capability, "state", json_new_bool(true));
    struct json *list = json_new_array();
    json_append(list, capability);
    struct json *arguments = json_new_object();
    json_set(arguments, "capabilities", list);
    return qmp_command(q->qmp, "migrate-set-capabilities", arguments, -1, NULL, e);
}

/* Waits until a migration in either direction is over. */
static int await_migration(struct qemu *q, struct err *e)
{
    int64_t deadline = clock_ms() + VM_STATE_TIMEOUT_MS;
    for (;;) {
        AUTO_JSON struct json *reply = NULL;
        const char *state = NULL;
        int rc = qmp_command(q->qmp, "query-migrate", NULL, -1, &reply, e);
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
            return err_set(e, ERR_TIMEOUT, "QEMU did not finish in %d s",
                           VM_STATE_TIMEOUT_MS / 1000);
        rc = cancel_sleep_ms(q->vm.cancel, VM_POLL_MS, e);
        if (rc < 0)
            return rc;
    }
}

/* Hands `fd` to QEMU under the name "state" and starts `command` ("migrate", "migrate-incoming")
 * on it. */
static int migrate(struct qemu *q, const char *command, int fd, struct err *e)
{
    int rc = set_capability(q, e);
    if (rc < 0)
        return rc;
    struct json *name = json_new_object();
    json_set(name, "fdname", json_new_string("state"));
    rc = qmp_command(q->qmp, "getfd", name, fd, NULL, e);
    if (rc < 0)
        return rc;
    struct json *target = json_new_object();
    json_set(target, "uri", json_new_string("fd:state"));
    rc = qmp_command(q->qmp, command, target, -1, NULL, e);
    return rc == 0 ? await_migration(q, e) : rc;
}

static int load_state(struct qemu *q, const char *state_path, struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, state_path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = migrate(q, "migrate-incoming", fd, e);
    if (rc == 0)
        rc = qmp_command(q->qmp, "cont", NULL, -1, NULL, e);
    if (rc < 0) {
        rc = vm_explain(&q->vm, rc, e);
        return err_in(e, "loading the machine state %s", state_path);
    }
    return 0;
}

static int qemu_start(struct vm *v, int control, const struct vm_launch *launch, struct err *e)
{
    struct qemu *q = qemu_of(v);
    int rc = qmp_open(&q->qmp, control, VM_COMMAND_TIMEOUT_MS, v->cancel, e);
    if (rc < 0)
        return vm_explain(v, rc, e);
    return launch->state_path ? load_state(q, launch->state_path, e) : 0;
}

static int qemu_save(struct vm *v, const struct vm_saving *s, struct err *e)
{
    struct qemu *q = qemu_of(v);
    int rc = qmp_command(q->qmp, "stop", NULL, -1, NULL, e);
    if (rc < 0)
        return rc;
    v->held = true;
    return migrate(q, "migrate", s->state_fd, e);
}

static int qemu_agent_open(struct vm *v, int *fd, struct err *e)
{
    return vm_connect(v, QEMU_AGENT_SOCKET, fd, e);
}

static void qemu_close(struct vm *v)
{
    qmp_free(qemu_of(v)->qmp);
}

static int qemu_version(char **out, struct err *e)
{
    static const char *const argv[] = {"qemu-system-x86_64", "--version", NULL};
    static const char head[] = "QEMU emulator version ";
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    int status;
    int rc = proc_run(argv, &(struct proc_io){.out = &text, .timeout_ms = VM_COMMAND_TIMEOUT_MS},
                      &status, e);
    if (rc < 0)
        return rc;
    const char *at = strstr(buf_text(&text), head);
    if (!at || status != 0)
        return err_set(e, ERR_UNSUPPORTED, "qemu-system-x86_64 --version says no version");
    at += strlen(head);
    *out = mem_printf("qemu %.*s", (int)strspn(at, "0123456789."), at);
    return *out ? 0 : err_nomem(e, "QEMU version");
}

static const char *const qemu_sockets[] = {QEMU_CONTROL_SOCKET, QEMU_AGENT_SOCKET, NULL};

const struct vm_driver vm_qemu = {
    .name = "qemu",
    .title = "QEMU",
    .install = "install it: apt-get install qemu-system-x86",
    .can = {.emulation = true,
            .user_network = true,
            .nbd_disk = true,
            .other_disk = true,
            .boot_images = true,
            .memory_file = true},
    .size = sizeof(struct qemu),
    .sockets = qemu_sockets,
    .version = qemu_version,
    .arguments = qemu_arguments,
    .start = qemu_start,
    .save = qemu_save,
    .check = qemu_check,
    .ending = qemu_ending,
    .agent_open = qemu_agent_open,
    .close = qemu_close,
};
