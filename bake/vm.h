/* SPDX-License-Identifier: MIT */
/*
 * MicroVMs: one driver contract, the guest agent's host end, guest kernel and initramfs.
 */
#ifndef TB2_BAKE_VM_H
#define TB2_BAKE_VM_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"

/* ---- Guest kernel and initramfs ----------------------------------------------------------- */

struct guest_kernel {
    char *kernel_path;    /* vmlinux */
    char *initramfs_path; /* agent and modules */
    char *release;        /* "6.12.…-cloud-amd64" */
    struct digest digest; /* over kernel and initramfs: part of every template's key */
};

/*
 * Finds the guest kernel in `cache_dir` (absolute), fetching and unpacking Debian's
 * linux-image-6.12-cloud-amd64 there if it is missing (apt-get download, dpkg-deb; nothing is
 * installed), and builds the initramfs (newc cpio, same inputs, same bytes). Safe beside other
 * processes.
 */
int guest_kernel_get(struct guest_kernel *out, const char *cache_dir, const struct cancel *c,
                     struct err *e) MUST_USE;
/* ERR_NOTFOUND with a hint when guest_kernel_get would have to fetch. */
int guest_kernel_check(const char *cache_dir, struct err *e) MUST_USE;
void guest_kernel_fini(struct guest_kernel *k);

/* ---- Driver -------------------------------------------------------------------------------- */

enum vm_accel { VM_ACCEL_AUTO, VM_ACCEL_KVM, VM_ACCEL_TCG };

struct vm_options {
    const struct guest_kernel *kernel;
    const char *run_dir;    /* absolute, exists: sockets, console log, memory */
    const char *nbd_socket; /* the disk; absolute, or relative to run_dir; below 108 bytes */
    /* File of memory_mb MiB: a cold boot makes it anew, a restore maps it privately and never
     * writes it. */
    const char *memory_path;
    uint32_t cpus;
    uint64_t memory_mb;
    bool network;        /* user-mode network card; reaches the host's loopback as 10.0.2.2 */
    enum vm_accel accel; /* AUTO is resolved by vm_accel_probe */
    const struct cancel *cancel; /* outlives the machine; may be NULL */
};

struct vm_accel_answer {
    enum vm_accel accel; /* KVM or TCG */
    char reason[256];    /* one line for people */
};

/* Whether KVM really runs this kernel here (a /dev/kvm that opens is no proof): boots a probe guest
 * once and remembers the answer in `cache_dir` for this boot of the host. */
int vm_accel_probe(struct vm_accel_answer *out, const struct guest_kernel *k, const char *cache_dir,
                   const struct cancel *c, struct err *e) MUST_USE;

/* "qemu 7.2.22": part of the template record and key; restoring under another is refused. */
int vm_version(char **out, struct err *e) MUST_USE;

struct vm;
/* Boots: kernel, initramfs, disk as /dev/vda. Returns once the machine runs (the agent is awaited
 * by agent_connect). */
int vm_boot(struct vm **out, const struct vm_options *o, struct err *e) MUST_USE;
/* Loads the device state at `state_path` over the memory file; returns with the guest running. */
int vm_restore(struct vm **out, const struct vm_options *o, const char *state_path,
               struct err *e) MUST_USE;
/* Stops the guest and writes device state to `state_path`; guest memory is then complete in the
 * memory file. The guest stays stopped. */
int vm_snapshot(struct vm *v, const char *state_path, struct err *e) MUST_USE;
/* Ends the machine at once and reaps it. NULL is fine. */
void vm_free(struct vm *v);
DEFINE_AUTO(vm, vm_free)
#define AUTO_VM CLEANUP(vm_free_auto_)
/* Path of the agent's socket and of the console log; borrowed. */
const char *vm_agent_socket(const struct vm *v);
const char *vm_console_path(const struct vm *v);
/* 0 while it runs; else ERR_STEP telling how it ended (power-off, panic, killed, exit status), with
 * the last console lines. */
int vm_check(struct vm *v, struct err *e) MUST_USE;

/* ---- Agent --------------------------------------------------------------------------------- */

/*
 * The host end of the channel to the guest agent (docs/formats/agent-protocol.md). One connection
 * at a time; used by one thread at a time. Everything that the guest sends is bounded and checked.
 *
 * What the agent refuses or cannot do (ERR_STEP; ERR_NOTFOUND for a path or process; ERR_BUSY while
 * the disk is frozen; ERR_LIMIT for too long a request) leaves the connection as it was. After any
 * other error, or one of the output callback, it is closed: the agent kills what ran for it, and
 * every further call is ERR_NET. Detached programs live on and are found by the next connection.
 */

/* A tmpfs of the guest for files that must not reach the disk, such as long step text
 * (agent_put). */
#define AGENT_SCRATCH_DIR "/dev/tb2"

struct agent;
/* Connects to the agent's socket and says hello until it answers; ERR_TIMEOUT with the console's
 * last lines, ERR_STEP when the machine ended. */
int agent_connect(struct agent **out, struct vm *v, int64_t timeout_ms, const struct cancel *c,
                  struct err *e) MUST_USE;
void agent_free(struct agent *a); /* closes the connection */
DEFINE_AUTO(agent, agent_free)
#define AUTO_AGENT CLEANUP(agent_free_auto_)

struct agent_exec {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up in the guest's PATH */
    const char *const *env;  /* NULL-terminated NAME=value: the whole environment */
    const char *workdir;     /* NULL or "": / */
    const char *user;  /* name, uid, name:group, uid:gid as in image configs; NULL or "": root */
    const void *input; /* stdin bytes */
    size_t input_len;
    int64_t timeout_ms; /* 0: none; the whole process group is killed */
    /* Leave it running (start command); its last output is kept for agent_process. */
    bool detach;
    /* What it does to mounts, IPC objects and the host name ends with it, and /proc/sys is read-only:
     * what one step does reaches the next by the disk alone. */
    bool apart;
};

struct agent_result {
    bool exited; /* true: `status` is the exit status; false: `status` is the signal */
    int status;
    bool timed_out;
    uint64_t id; /* of a detached process */
};

/* Output as it comes: stream 1 or 2. A negative return ends the call with that error. */
typedef int agent_output(void *ctx, int stream, const void *data, size_t len, struct err *e);

/* Runs to the end. Success means that the program's end was reported by the agent; look at *out. A
 * lost connection is an error (never a result); a program that cannot be started is ERR_STEP
 * naming it and errno. */
int agent_run(struct agent *a, const struct agent_exec *exec, agent_output *output, void *ctx,
              struct agent_result *out, struct err *e) MUST_USE;
/* State of a detached process: *running, else how it ended; its last output (both streams). */
int agent_process(struct agent *a, uint64_t id, bool *running, struct agent_result *out,
                  struct buf *tail, struct err *e) MUST_USE;
/* Ends every program of the guest, also detached ones and what left its session; nothing but the agent
 * goes on. ERR_STEP when one does not end. */
int agent_end_all(struct agent *a, struct err *e) MUST_USE;
/* TCP connect to 127.0.0.1:port inside the guest. */
int agent_probe_port(struct agent *a, uint16_t port, int64_t timeout_ms, bool *open,
                     struct err *e) MUST_USE;
int agent_make_dirs(struct agent *a, const char *path, uint32_t mode, struct err *e) MUST_USE;
int agent_put(struct agent *a, const char *path, uint32_t mode, const void *data, size_t len,
              struct err *e) MUST_USE;
int agent_get(struct agent *a, const char *path, struct buf *out, struct err *e) MUST_USE;
int agent_sync(struct agent *a, bool drop_caches, struct err *e) MUST_USE;
/* Freezes the root disk; from then on only thaw, clock and reseed work. */
int agent_freeze(struct agent *a, struct err *e) MUST_USE;
int agent_thaw(struct agent *a, struct err *e) MUST_USE;
/* Guest CLOCK_REALTIME := now of the host; *before_ns gets what the guest's clock said. */
int agent_set_clock(struct agent *a, int64_t *before_ns, struct err *e) MUST_USE;
int agent_clock(struct agent *a, int64_t *now_ns, struct err *e) MUST_USE;
/* Feeds 64 fresh bytes into the guest's random generator and makes it reseed. */
int agent_reseed(struct agent *a, struct err *e) MUST_USE;
/* Configures the network card (10.0.2.15/24, QEMU's user network) and resolv.conf if it is
 * missing or empty. */
int agent_network(struct agent *a, struct err *e) MUST_USE;
int agent_power_off(struct agent *a, struct err *e) MUST_USE;

#endif
