/* SPDX-License-Identifier: MIT */
/*
 * The Firecracker driver: its HTTP API on a unix socket (src/firecracker/swagger/firecracker.yaml of
 * Firecracker 1.16.1), the guest's agent behind its vsock, snapshots, and guest memory on demand.
 *
 * The process runs in the run directory, and all paths that a snapshot keeps are names in it: the
 * disk is the link `disk`, the agent's socket `vsock.sock`. So a snapshot is restored in any run
 * directory, with the disk that this one's link leads to. There is no balloon, which would give
 * pages back behind our back, and no metadata service.
 *
 * A guest ends its machine by a reset of the keyboard controller (`reboot=k`); there is no way to
 * power it off. So a power-off is seen in the kernel's last line, and the process is ended here.
 *
 * The host reaches the agent by "CONNECT PORT\n" on the vsock's socket, answered by "OK PORT\n" once
 * the guest has taken the connection, or by closing it (docs/vsock.md). While the guest boots there
 * is no answer at all. A snapshot resets all connections (VIRTIO_VSOCK_EVENT_TRANSPORT_RESET), so
 * none is kept over one.
 */

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bake/channel/protocol.h"
#include "bake/kernel.h"
#include "bake/vm.h"
#include "bake/vm/driver.h"
#include "bake/vm/firecracker.h"
#include "bake/vm/page_server.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* Names in the run directory. */
#define API_SOCKET "api.sock"
#define AGENT_SOCKET "vsock.sock"
#define MEMORY_SOCKET "memory.sock"
#define DISK_LINK "disk"

enum {
    GUEST_CID = 3,      /* the lowest that a guest may have (vsock(7)) */
    CONNECT_MS = 3000,  /* for the answer to one CONNECT */
    CONNECT_LINE = 32,  /* bytes of the longest answer */
    CPUS_MAX = 32,      /* swagger, MachineConfiguration */
    LAST_LINES = 4096,  /* bytes of the console in which a power-off is looked for */
    DIFF_GAP_MB = 3072, /* guests with more memory have it in two parts */
    VERSION_TEXT = 32
};

struct firecracker {
    struct vm vm; /* first: struct vm is what everyone else sees */
    struct local_api *api;
    struct page_server *pages; /* NULL: memory is not served by us */
    char *memory_path;
    uint64_t memory_mb;
    char version[VERSION_TEXT];
    bool tracks_pages;
    bool since_boot; /* what is tracked is all that was ever written */
};

static struct firecracker *firecracker_of(struct vm *v)
{
    return (struct firecracker *)v;
}

/* ---- Requests ---- */

/* `body` is taken over. */
static int put(struct firecracker *f, const char *path, struct json *body, struct err *e)
{
    return vm_explain(&f->vm, local_call(f->api, "PUT", path, body, NULL, e), e);
}

static int set_state(struct firecracker *f, const char *state, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "state", json_new_string(state));
    return vm_explain(&f->vm, local_call(f->api, "PATCH", "/vm", j, NULL, e), e);
}

static int read_version(struct firecracker *f, struct err *e)
{
    AUTO_JSON struct json *reply = NULL;
    const char *text = NULL;
    int rc = local_call(f->api, "GET", "/version", NULL, &reply, e);
    if (rc == 0)
        rc = json_get_string(reply, "firecracker_version", &text, e);
    if (rc < 0)
        return vm_explain(&f->vm, rc, e);
    snprintf(f->version, sizeof(f->version), "%s", text);
    return firecracker_check_version(f->version, e);
}

static int put_machine(struct firecracker *f, const struct vm_options *o, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "vcpu_count", json_new_integer(o->cpus));
    json_set(j, "mem_size_mib", json_new_integer((int64_t)o->memory_mb));
    json_set(j, "smt", json_new_bool(false));
    json_set(j, "track_dirty_pages", json_new_bool(o->track_pages));
    if (o->cpu_template)
        json_set(j, "cpu_template", json_new_string(o->cpu_template));
    return put(f, "/machine-config", j, e);
}

static int put_boot(struct firecracker *f, const struct vm_launch *launch, struct err *e)
{
    const struct guest_kernel *k = launch->options->kernel;
    AUTO_FREE char *arguments = mem_printf("%s reboot=k tb2.link=vsock", launch->append);
    if (!arguments)
        return err_nomem(e, "kernel command line");
    struct json *j = json_new_object();
    json_set(j, "kernel_image_path", json_new_string(k->kernel_path));
    json_set(j, "initrd_path", json_new_string(k->initramfs_path));
    json_set(j, "boot_args", json_new_string(arguments));
    return put(f, "/boot-source", j, e);
}

/* The guest's flushes reach the disk. That it is the root is the agent's business: as Firecracker's
 * root device it would get arguments on the kernel's command line. */
static int put_disk(struct firecracker *f, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "drive_id", json_new_string("disk"));
    json_set(j, "path_on_host", json_new_string(DISK_LINK));
    json_set(j, "is_root_device", json_new_bool(false));
    json_set(j, "is_read_only", json_new_bool(false));
    json_set(j, "cache_type", json_new_string("Writeback"));
    json_set(j, "io_engine", json_new_string("Sync"));
    return put(f, "/drives/disk", j, e);
}

static int put_network(struct firecracker *f, const char *tap, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "iface_id", json_new_string("net"));
    json_set(j, "host_dev_name", json_new_string(tap));
    return put(f, "/network-interfaces/net", j, e);
}

static int put_vsock(struct firecracker *f, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "guest_cid", json_new_integer(GUEST_CID));
    json_set(j, "uds_path", json_new_string(AGENT_SOCKET));
    return put(f, "/vsock", j, e);
}

static int start_instance(struct firecracker *f, struct err *e)
{
    struct json *j = json_new_object();
    json_set(j, "action_type", json_new_string("InstanceStart"));
    return put(f, "/actions", j, e);
}

/* ---- Starting ---- */

static bool mixes_up_diffs(const struct firecracker *f)
{
    return f->memory_mb > DIFF_GAP_MB && firecracker_is_older(f->version, 1, 15);
}

static int cold_boot(struct firecracker *f, const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    f->since_boot = o->track_pages && !mixes_up_diffs(f);
    int rc = put_machine(f, o, e);
    if (rc == 0)
        rc = put_boot(f, launch, e);
    if (rc == 0 && !launch->bare)
        rc = put_disk(f, e);
    if (rc == 0 && o->tap)
        rc = put_network(f, o->tap, e);
    if (rc == 0)
        rc = put_vsock(f, e);
    if (rc == 0)
        rc = put(f, "/entropy", json_new_object(), e);
    return rc == 0 ? start_instance(f, e) : rc;
}

/* Memory comes from pages that are served as they are touched, or else from the file. */
static int choose_memory(struct firecracker *f, const struct vm_options *o, struct json *backend,
                         struct err *e)
{
    int rc = o->memory ? page_server_possible(e) : -ERR_UNSUPPORTED;
    if (rc < 0 && o->memory && !o->memory_path)
        return rc;
    if (rc < 0) {
        if (o->memory)
            log_event(LOG_INFO, "bake", "guest memory is mapped from a file: %s", e->text);
        err_clear(e);
        json_set(backend, "backend_type", json_new_string("File"));
        json_set(backend, "backend_path", json_new_string(o->memory_path));
        return 0;
    }
    const struct page_server_options options = {
        .dir = f->vm.run_dir, .name = MEMORY_SOCKET, .pid = f->vm.proc.pid, .memory = o->memory};
    rc = page_server_start(&f->pages, &options, e);
    json_set(backend, "backend_type", json_new_string("Uffd"));
    json_set(backend, "backend_path", json_new_string(MEMORY_SOCKET));
    return rc;
}

static int restore(struct firecracker *f, const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    struct json *backend = json_new_object();
    struct json *j = json_new_object();
    json_set(j, "snapshot_path", json_new_string(launch->state_path));
    json_set(j, "mem_backend", backend);
    json_set(j, "track_dirty_pages", json_new_bool(o->track_pages));
    json_set(j, "resume_vm", json_new_bool(true));
    if (o->tap) {
        struct json *card = json_new_object();
        json_set(card, "iface_id", json_new_string("net"));
        json_set(card, "host_dev_name", json_new_string(o->tap));
        struct json *cards = json_new_array();
        json_append(cards, card);
        json_set(j, "network_overrides", cards);
    }
    int rc = choose_memory(f, o, backend, e);
    if (rc < 0) {
        json_free(j);
        return rc;
    }
    rc = put(f, "/snapshot/load", j, e);
    return rc < 0 ? err_in(e, "loading the machine state %s", launch->state_path) : 0;
}

static int link_disk(struct firecracker *f, const struct vm_options *o, struct err *e)
{
    if (unlinkat(f->vm.run_dir, DISK_LINK, 0) < 0 && errno != ENOENT)
        return err_sys(e, "the guest's disk");
    if (symlinkat(o->disk_path, f->vm.run_dir, DISK_LINK) < 0)
        return err_sys(e, "the guest's disk %s", o->disk_path);
    return 0;
}

static int check_launch(const struct vm_launch *launch, struct err *e)
{
    const struct vm_options *o = launch->options;
    if (o->accel != VM_ACCEL_KVM)
        return err_set(e, ERR_UNSUPPORTED, "Firecracker runs guests with KVM alone");
    if (o->cpus > CPUS_MAX)
        return err_set(e, ERR_INPUT, "%u processors; Firecracker has at most %d", o->cpus,
                       CPUS_MAX);
    if (o->network && !o->tap) {
        (void)err_set(e, ERR_UNSUPPORTED, "Firecracker has no user-mode network");
        return err_hint(e, "use the recipe's network none or tap, or QEMU (--vmm qemu)");
    }
    if (!launch->bare && !o->disk_path)
        return err_set(e, ERR_INPUT, "Firecracker needs a block device or a file as disk");
    if (!launch->state_path && !o->kernel->vsock) {
        (void)err_set(e, ERR_UNSUPPORTED, "the guest kernel %s in the cache has no vsock modules",
                      o->kernel->release);
        return err_hint(e, "remove its directory from the cache, so that it is fetched anew");
    }
    return 0;
}

static int firecracker_start(struct vm *v, int control, const struct vm_launch *launch,
                             struct err *e)
{
    struct firecracker *f = firecracker_of(v);
    const struct vm_options *o = launch->options;
    file_close(&control); /* it was only to know that somebody listens */
    char socket_path[64];
    snprintf(socket_path, sizeof(socket_path), "/proc/self/fd/%d/" API_SOCKET, v->run_dir);
    const struct local_options api = {.name = "Firecracker",
                                      .socket = socket_path,
                                      .timeout_ms = VM_STATE_TIMEOUT_MS,
                                      .cancel = v->cancel};
    f->memory_mb = o->memory_mb;
    f->tracks_pages = o->track_pages;
    f->memory_path = o->memory_path ? mem_strdup(o->memory_path) : NULL;
    if (o->memory_path && !f->memory_path)
        return err_nomem(e, "machine");
    int rc = local_api_new(&f->api, &api, e);
    if (rc == 0)
        rc = read_version(f, e);
    if (rc == 0 && !launch->bare)
        rc = link_disk(f, o, e);
    if (rc < 0)
        return rc;
    return launch->state_path ? restore(f, launch, e) : cold_boot(f, launch, e);
}

static int firecracker_arguments(char ***out, const struct vm_launch *launch, struct err *e)
{
    struct vm_arguments a = {.e = e};
    int rc = check_launch(launch, e);
    if (rc < 0)
        return rc;
    vm_argument(&a, "firecracker");
    vm_argument(&a, "--api-sock");
    vm_argument(&a, API_SOCKET);
    vm_argument(&a, "--id");
    vm_argument(&a, "tb2");
    vm_argument(&a, "--level");
    vm_argument(&a, "Warn");
    return vm_arguments_done(&a, out);
}

/* ---- Saving ---- */

/* A differential snapshot of too old a version has the second part of memory at the first one's
 * place (Firecracker's CHANGELOG, #5705). */
static int check_diff(const struct firecracker *f, struct err *e)
{
    if (!f->tracks_pages)
        return err_set(e, ERR_UNSUPPORTED, "the machine does not keep track of changed pages");
    if (mixes_up_diffs(f)) {
        (void)err_set(
            e, ERR_UNSUPPORTED,
            "Firecracker %s damages differential snapshots of guests with more than 3 GiB",
            f->version);
        return err_hint(e, "use 1.15 or newer, or a full snapshot");
    }
    return 0;
}

/*
 * The first snapshot after a boot holds what was written since, in a sparse file: that is all of memory, since
 * the rest is zeros (docs/snapshotting/snapshot-support.md, "diff snapshots of booted VMs, which are immediately
 * resumable"). The whole takes a write and a sync of as many bytes as the guest has. After an attempt,
 * whatever came of it, the record begins anew.
 */
static int firecracker_save(struct vm *v, const struct vm_saving *s, struct err *e)
{
    struct firecracker *f = firecracker_of(v);
    const char *memory_path = s->diff_path ? s->diff_path : f->memory_path;
    bool written_alone = s->diff_path || f->since_boot;
    int rc = s->diff_path ? check_diff(f, e) : 0;
    if (rc == 0 && !memory_path)
        rc = err_set(e, ERR_INPUT, "there is no place for the guest's memory");
    if (rc == 0)
        rc = set_state(f, "Paused", e);
    if (rc < 0)
        return rc;
    v->held = true;
    f->since_boot = false;
    struct json *j = json_new_object();
    json_set(j, "snapshot_type", json_new_string(written_alone ? "Diff" : "Full"));
    json_set(j, "snapshot_path", json_new_string(s->state_path));
    json_set(j, "mem_file_path", json_new_string(memory_path));
    return put(f, "/snapshot/create", j, e);
}

/* ---- How it is ---- */

static bool has_powered_off(struct vm *v)
{
    static const char *const lines[] = {"reboot: Power down", "reboot: System halted",
                                        "reboot: Power off not available"};
    char tail[LAST_LINES];
    if (vm_console_tail(v, tail, sizeof(tail)) == 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (strstr(tail, lines[i]))
            return true;
    }
    return false;
}

static int firecracker_check(struct vm *v, struct err *e UNUSED)
{
    if (v->held || !has_powered_off(v))
        return 0;
    v->dismissed = true;
    kill(v->proc.pid, SIGKILL);
    (void)vm_has_ended(v, VM_ENDING_TIMEOUT_MS); /* on a busy host the next check finds its end */
    return 0;
}

/* Its status is 0 after the guest's reset alone (src/vmm/src/lib.rs, FcExitCode). */
static enum vm_ending firecracker_ending(struct vm *v, const char **reason UNUSED)
{
    return v->dismissed ? VM_ENDING_POWER_OFF : VM_ENDING_RESTART;
}

static int firecracker_cause(struct vm *v, struct err *e)
{
    struct firecracker *f = firecracker_of(v);
    return f->pages ? page_server_check(f->pages, e) : 0;
}

/* ---- The agent ---- */

/* Reads the answer to CONNECT, not a byte more. */
static int read_answer(int fd, struct err *e)
{
    char line[CONNECT_LINE];
    int64_t deadline = clock_ms() + CONNECT_MS;
    for (size_t len = 0; len < sizeof(line); len++) {
        int64_t left = deadline - clock_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&ready, 1, (int)left) <= 0)
            return err_sysno(e, EAGAIN, "the guest's vsock");
        ssize_t got = read(fd, &line[len], 1);
        if (got <= 0)
            return err_sysno(e, ECONNREFUSED, "the guest's vsock");
        if (line[len] != '\n')
            continue;
        return strncmp(line, "OK ", 3) == 0
                   ? 0
                   : err_set(e, ERR_CORRUPT, "Firecracker's vsock answered with something else");
    }
    return err_set(e, ERR_CORRUPT, "Firecracker's vsock answered without end");
}

static int firecracker_agent_open(struct vm *v, int *out, struct err *e)
{
    AUTO_FD int fd = -1;
    char request[CONNECT_LINE];
    int len = snprintf(request, sizeof(request), "CONNECT %u\n", AGENT_VSOCK_PORT);
    int rc = vm_connect(v, AGENT_SOCKET, &fd, e);
    if (rc < 0)
        return rc;
    if (send(fd, request, (size_t)len, MSG_NOSIGNAL) != len)
        return err_sysno(e, ECONNREFUSED, "the guest's vsock");
    rc = read_answer(fd, e);
    if (rc < 0)
        return rc;
    *out = fd;
    fd = -1;
    return 0;
}

static void firecracker_close(struct vm *v)
{
    struct firecracker *f = firecracker_of(v);
    if (f->pages) {
        struct page_counts c = page_server_counts(f->pages);
        log_event(LOG_DEBUG, "bake", "guest memory: %llu faults, %llu pages, %llu of zeros",
                  (unsigned long long)c.faults, (unsigned long long)(c.copied + c.zeros),
                  (unsigned long long)c.zeros);
    }
    page_server_stop(f->pages);
    local_api_free(f->api);
    free(f->memory_path);
}

/* The agent's socket is made by Firecracker, which refuses when something is there. */
static const char *const sockets[] = {API_SOCKET, AGENT_SOCKET, MEMORY_SOCKET, NULL};

const struct vm_driver vm_firecracker = {
    .name = "firecracker",
    .title = "Firecracker",
    .install =
        "put a release from github.com/firecracker-microvm/firecracker into PATH, or use QEMU "
        "(--vmm qemu)",
    .can = {.other_disk = true,
            .memory_file = true,
            .memory_pages = true,
            .memory_diff = true,
            .cpu_templates = true},
    .size = sizeof(struct firecracker),
    .sockets = sockets,
    .version = firecracker_version,
    .arguments = firecracker_arguments,
    .start = firecracker_start,
    .save = firecracker_save,
    .check = firecracker_check,
    .ending = firecracker_ending,
    .cause = firecracker_cause,
    .agent_open = firecracker_agent_open,
    .close = firecracker_close,
};
