/* SPDX-License-Identifier: MIT */
/*
 * MicroVMs: one contract for all VMMs. A machine is booted or restored, snapshotted, ended; what runs in it
 * is reached through the agent (bake/channel.h).
 */
#ifndef TB2_BAKE_VM_H
#define TB2_BAKE_VM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"

struct agent;
struct bdev;
struct guest_kernel;

enum vm_accel { VM_ACCEL_AUTO, VM_ACCEL_KVM, VM_ACCEL_TCG };

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
    bool
        insist; /* waits longer, and asks again where the answer was no: for who wants KVM and nothing else */
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

/* Connects to the agent's socket and says hello until it answers; ERR_TIMEOUT with the console's
 * last lines, ERR_STEP when the machine ended. */
int agent_connect(struct agent **out, struct vm *v, int64_t timeout_ms, const struct cancel *c,
                  struct err *e) MUST_USE;

#endif
