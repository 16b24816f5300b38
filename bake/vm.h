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
    bool vsock; /* has what machines without PCI need (a cache of an older version may not) */
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

struct bdev;

/* What a VMM can do, as far as a bake depends on it. */
struct vm_abilities {
    bool emulation;     /* runs without KVM */
    bool user_network;  /* has a user-mode network card */
    bool nbd_disk;      /* its disk is vm_options.nbd_socket; else a block device or a file */
    bool other_disk;    /* a restore may name another disk than its snapshot was made with */
    bool boot_images;   /* bakes may begin as a boot image (decision 0030) */
    bool memory_file;   /* a restore maps vm_options.memory_path privately */
    bool memory_pages;  /* a restore can take pages from vm_options.memory as they are touched */
    bool memory_diff;   /* vm_snapshot_diff */
    bool cpu_templates; /* vm_options.cpu_template */
};

struct vm_driver;
extern const struct vm_driver vm_qemu;
extern const struct vm_driver vm_firecracker;          /* KVM only */
const char *vm_driver_name(const struct vm_driver *d); /* "qemu" */
const struct vm_abilities *vm_driver_can(const struct vm_driver *d);

struct vm_options {
    const struct vm_driver *driver; /* NULL: QEMU */
    const struct guest_kernel *kernel;
    const char *run_dir;    /* absolute, exists: sockets, console log, memory */
    const char *nbd_socket; /* the disk; absolute, or relative to run_dir; below 108 bytes */
    const char *disk_path;  /* for a driver without nbd_disk: a block device or a file, absolute */
    /* File of memory_mb MiB: a cold boot makes it anew, a restore maps it privately and never
     * writes it. The file may be one whose bytes are fetched as they are read. */
    const char *memory_path;
    /* A restore by a driver with `other_disk` maps memory_path shared: what the guest writes is there
     * for the next vm_snapshot, as after a cold boot. */
    bool memory_shared;
    /* For a restore: the bytes of guest memory, read by several threads at once; borrowed for the
     * machine's life. A driver with `memory_pages` takes them from here (NULL: from memory_path). With
     * any driver it tells, when bdev_open_map made it, why pages could not be had; memory_path may then
     * be a file that this process must not open (bdev_file_path). */
    struct bdev *memory;
    uint32_t cpus;
    uint64_t memory_mb;
    bool network;     /* user-mode network card; reaches the host's loopback as 10.0.2.2 */
    const char *tap;  /* instead of it: a card on this tap device of the host; NULL: none */
    bool track_pages; /* for vm_snapshot_diff and a quick first vm_snapshot; costs a little */
    const char
        *cpu_template;   /* the VMM's name of a processor that several kinds of hosts can offer;
                                 NULL: the host's own */
    bool scrub;          /* a boot: the kernel clears memory as it is freed (init_on_free) */
    enum vm_accel accel; /* AUTO is resolved by vm_accel_probe */
    const struct cancel *cancel; /* outlives the machine; may be NULL */
};

/* "kvm" or "tcg", as records and keys have it; of one that is resolved. */
const char *vm_accel_name(enum vm_accel accel);

struct vm_accel_answer {
    enum vm_accel accel; /* KVM or TCG */
    char reason[256];    /* one line for people */
};

struct vm_probe {
    const struct vm_driver *driver;
    const struct guest_kernel *kernel;
    const char *cache_dir;
    const struct cancel *cancel;
};

/* Whether KVM really runs this kernel here with this VMM (a /dev/kvm that opens is no proof): boots a probe guest
 * once and remembers the answer in `cache_dir` for this boot of the host. */
int vm_accel_probe(struct vm_accel_answer *out, const struct vm_probe *p, struct err *e) MUST_USE;

/* "qemu 7.2.22": part of the template record and key; restoring under another is refused.
 * ERR_NOTFOUND with a hint when the VMM is not there. */
int vm_version(const struct vm_driver *d, char **out, struct err *e) MUST_USE;

/* What a machine is made of, beside kernel, memory and disk: the VMM's arguments and the guest's command
 * line. A snapshot fits no machine of which this is another. */
int vm_machine(struct digest *out, const struct vm_options *o, struct err *e) MUST_USE;

struct vm;
/* Boots: kernel, initramfs, disk as /dev/vda. Returns once the machine runs (the agent is awaited
 * by agent_connect, the disk is mounted by agent_mount). */
int vm_boot(struct vm **out, const struct vm_options *o, struct err *e) MUST_USE;
/* Loads the device state at `state_path` over the memory file; returns with the guest running. */
int vm_restore(struct vm **out, const struct vm_options *o, const char *state_path,
               struct err *e) MUST_USE;
/* Stops the guest and writes device state to `state_path`; guest memory is then complete in the
 * memory file. The guest stays stopped. */
int vm_snapshot(struct vm *v, const char *state_path, struct err *e) MUST_USE;
/* The same, with the pages alone that changed since the boot, the restore or the snapshot before:
 * `diff_path` becomes a sparse file as long as memory, with holes where nothing changed.
 * ERR_UNSUPPORTED by a driver without `memory_diff`, without track_pages, and after one that failed:
 * what changed before it is not known any more, and only vm_snapshot is right then. */
int vm_snapshot_diff(struct vm *v, const char *state_path, const char *diff_path,
                     struct err *e) MUST_USE;
/* Ends the machine at once and reaps it. NULL is fine. */
void vm_free(struct vm *v);
DEFINE_AUTO(vm, vm_free)
#define AUTO_VM CLEANUP(vm_free_auto_)
/* A new connection to the guest's agent, the caller's. ERR_SYS with errno ENOENT, ECONNREFUSED or
 * EAGAIN while nobody listens yet. */
int vm_agent_open(struct vm *v, int *fd, struct err *e) MUST_USE;
/* Path of the console log; borrowed. */
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
#define AGENT_SECRETS_DIR AGENT_SCRATCH_DIR "/secrets" /* agent_forget */

struct agent;
/* Connects to the agent's socket and says hello until it answers; ERR_TIMEOUT with the console's
 * last lines, ERR_STEP when the machine ended. */
int agent_connect(struct agent **out, struct vm *v, int64_t timeout_ms, const struct cancel *c,
                  struct err *e) MUST_USE;
void agent_free(struct agent *a); /* closes the connection */
DEFINE_AUTO(agent, agent_free)
#define AUTO_AGENT CLEANUP(agent_free_auto_)

/* Mounts /dev/vda and moves onto it: the first thing to do in a machine that was booted, best after
 * its clock is set and its random generator reseeded. Until then only these, reseeding and powering
 * off work. ERR_STEP: the agent's own words; nothing but another disk and another boot helps. */
int agent_mount(struct agent *a, struct err *e) MUST_USE;

/* Input and size of a terminal, as they come while a program runs. */
struct agent_live {
    int input_fd;  /* read whenever the program takes input, to its end; -1: none */
    bool terminal; /* the program gets a terminal; its output is all on stream 1 */
    int resize_fd; /* readable when the size is another; -1: it stays */
    /* The size; takes what is readable of resize_fd. Required with `terminal`. */
    void (*size)(void *ctx, uint16_t *rows, uint16_t *columns);
    void *ctx;
};

struct agent_exec {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up in the guest's PATH */
    const char *const *env;  /* NULL-terminated NAME=value: the whole environment */
    const char *workdir;     /* NULL or "": / */
    const char *user;  /* name, uid, name:group, uid:gid as in image configs; NULL or "": root */
    const void *input; /* stdin bytes */
    size_t input_len;
    const struct agent_live *live; /* instead of these two; NULL: none */
    int64_t timeout_ms;            /* 0: none; the whole process group is killed */
    /* Leave it running (start command); its last output is kept for agent_process. */
    bool detach;
    bool alone;      /* when it ends, kill what it left running */
    bool no_network; /* in a network of its own, which has a loopback interface alone */
    /* What it does to mounts, IPC objects and the host name ends with it, and /proc/sys is read-only:
     * what one step does reaches the next by the disk alone. */
    bool apart;
};

struct agent_result {
    bool exited; /* true: `status` is the exit status; false: `status` is the signal */
    int status;
    bool timed_out;
    uint32_t
        oom_kills; /* processes of the guest that its kernel killed meanwhile for want of memory */
    uint64_t id;   /* of a detached process */
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
struct agent_web_page {
    uint16_t port;
    const char *path; /* "/health"; NULL is "/" */
};
/* GET from 127.0.0.1 inside the guest; *status is 0 when there is no answer, or none that is HTTP. */
int agent_probe_http(struct agent *a, const struct agent_web_page *page, int64_t timeout_ms,
                     unsigned *status, struct err *e) MUST_USE;
int agent_make_dirs(struct agent *a, const char *path, uint32_t mode, struct err *e) MUST_USE;
int agent_put(struct agent *a, const char *path, uint32_t mode, const void *data, size_t len,
              struct err *e) MUST_USE;
int agent_get(struct agent *a, const char *path, struct buf *out, struct err *e) MUST_USE;
/* Removes AGENT_SECRETS_DIR and clears what the agent and the guest's end of the channel have of what went
 * through them. */
int agent_forget(struct agent *a, struct err *e) MUST_USE;
int agent_sync(struct agent *a, bool drop_caches, struct err *e) MUST_USE;
/* Freezes the root disk; from then on only thaw, clock and reseed work. */
int agent_freeze(struct agent *a, struct err *e) MUST_USE;
int agent_thaw(struct agent *a, struct err *e) MUST_USE;
/* Guest CLOCK_REALTIME := now of the host; *before_ns gets what the guest's clock said. */
int agent_set_clock(struct agent *a, int64_t *before_ns, struct err *e) MUST_USE;
int agent_clock(struct agent *a, int64_t *now_ns, struct err *e) MUST_USE;
/* Feeds 64 fresh bytes into the guest's random generator and makes it reseed. */
int agent_reseed(struct agent *a, struct err *e) MUST_USE;
/* IPv4 addresses in host byte order; 0: none. */
struct agent_address {
    uint32_t address;
    uint32_t prefix; /* bits of the network: 24 of 10.0.2.0/24 */
    uint32_t gateway;
    uint32_t resolver;
};
/* Configures the network card, and resolv.conf if it is missing or empty. NULL: as QEMU's user network has
 * it (guest 10.0.2.15/24, gateway 10.0.2.2, name server 10.0.2.3). */
int agent_network(struct agent *a, const struct agent_address *address, struct err *e) MUST_USE;

/* Files that are laid in the guest's tree one after another (agent_copy.c). */
struct agent_copy;

struct agent_copy_target {
    bool single;      /* one file, which goes into `to` if that ends in a slash or is a directory */
    const char *to;   /* absolute; missing directories are made, 0755, the owner's */
    const char *name; /* of the single file, if it goes into `to` */
    const char *owner; /* as agent_exec.user; NULL: root */
};

enum agent_copy_type {
    COPY_DIRECTORY, /* made unless it is there */
    COPY_FILE,      /* agent_copy_data follows, `size` bytes */
    COPY_SYMLINK,
    COPY_HARD_LINK, /* of a file that was laid before */
    COPY_SETTLE     /* mode, owner and time of a directory, when all that is in it is laid */
};

/* As what is there in the guest makes room or merges: docs/formats/recipe.md, `copy`. */
struct agent_copy_entry {
    enum agent_copy_type type;
    const char *path;   /* below `to`; "": `to` itself (SETTLE), the single file */
    const char *target; /* of a symbolic link; path below `to` of a hard one; else NULL */
    uint32_t mode;
    bool owned; /* by uid and gid instead of the target's owner */
    uint32_t uid;
    uint32_t gid;
    int64_t time; /* seconds since 1970 */
    uint64_t size;
};

/* Errors name the path in the guest; after one nothing is left to do but agent_copy_free. */
int agent_copy_open(struct agent_copy **out, struct agent *a, const struct agent_copy_target *to,
                    struct err *e) MUST_USE;
int agent_copy_add(struct agent_copy *c, const struct agent_copy_entry *entry,
                   struct err *e) MUST_USE;
int agent_copy_data(struct agent_copy *c, const void *data, size_t len, struct err *e) MUST_USE;
/* Everything is laid when this has returned 0. */
int agent_copy_finish(struct agent_copy *c, struct err *e) MUST_USE;
void agent_copy_free(struct agent_copy *c);
DEFINE_AUTO(agent_copy, agent_copy_free)
#define AUTO_AGENT_COPY CLEANUP(agent_copy_free_auto_)
int agent_power_off(struct agent *a, struct err *e) MUST_USE;

/* What the image's package managers are in the middle of; texts are printable. */
struct agent_packages {
    char busy[512];   /* who is at work, or holds a lock; empty: nobody */
    char broken[512]; /* some of the packages that are half there */
    uint32_t broken_count;
    uint32_t broken_sum; /* the same packages in the same states: the same number */
};
int agent_packages(struct agent *a, struct agent_packages *out, struct err *e) MUST_USE;

/* 64 bytes of the guest's getrandom(2), then 64 of its image's /dev/urandom. */
enum { AGENT_RANDOM_SIZE = 128 };
int agent_random(struct agent *a, uint8_t out[AGENT_RANDOM_SIZE], struct err *e) MUST_USE;
/* Sends `size` random bytes there and back; ERR_CORRUPT unless they come as they went. */
int agent_echo(struct agent *a, size_t size, struct err *e) MUST_USE;

#endif
