/* SPDX-License-Identifier: MIT */
/*
 * What a VMM's driver provides, and what the drivers share (vm.c).
 *
 * A driver says how its process is started and talked to. That the process runs in the run
 * directory, its output is the console log, its end is noticed and explained, and what options are
 * possible, is common.
 *
 * Drivers are constant tables, and keep nothing outside their machine: any number of machines at once, each used by
 * one thread at a time. What options point to is borrowed as vm.h says.
 */
#ifndef TB2_BAKE_VM_DRIVER_H
#define TB2_BAKE_VM_DRIVER_H

#include "bake/channel/console.h"
#include "bake/vm.h"
#include "base/file.h"
#include "base/proc.h"

struct vm_launch {
    const struct vm_options *options;
    const char *append;     /* kernel command line, beside what the driver's devices need */
    const char *state_path; /* restore from it; NULL: cold boot */
    bool bare;              /* no disk, anonymous memory: the probe of accel.c */
};

/* What every machine has; a driver's own begins with it. */
struct vm {
    const struct vm_driver *driver;
    struct proc proc;
    bool ended;
    int status;     /* wait status, once ended */
    bool held;      /* stopped by vm_snapshot */
    bool lost;      /* a snapshot failed: what it would have had is forgotten */
    bool dismissed; /* the driver ended the process, because the guest had ended */
    struct console *console;
    int run_dir;
    const struct cancel *cancel;
    char *console_path;
    const struct bdev *memory; /* vm_options.memory: knows why pages could not be read */
};

/* Where a machine is saved. */
struct vm_saving {
    int state_fd;           /* an empty file, open for writing */
    const char *state_path; /* the same file */
    const char *diff_path; /* pages that changed; NULL: all memory goes to vm_options.memory_path */
};

/* How a machine ended by itself, as far as its VMM tells. */
enum vm_ending { VM_ENDING_UNKNOWN, VM_ENDING_POWER_OFF, VM_ENDING_RESTART };

struct vm_driver {
    const char *name;    /* in records and options */
    const char *title;   /* in messages */
    const char *install; /* what to do when the program is missing */
    struct vm_abilities can;
    size_t size; /* of its machine */
    const char *const
        *sockets; /* names in the run directory, NULL-terminated; the first is the control
                                   socket */

    int (*version)(char **out, struct err *e);
    /* The process's arguments, NULL-terminated: free with vm_arguments_free. */
    int (*arguments)(char ***out, const struct vm_launch *launch, struct err *e);
    /* Takes the connected control socket over, also on failure; returns with the guest running. */
    int (*start)(struct vm *v, int control, const struct vm_launch *launch, struct err *e);
    /* Stops the guest, sets `held`, writes device state, and memory unless it is there already. */
    int (*save)(struct vm *v, const struct vm_saving *s, struct err *e);
    /* Of a process that still runs: 0, or how the guest stopped. May set `ended`. */
    int (*check)(struct vm *v, struct err *e);
    /* Of a process that ended with status 0, or that was dismissed; *reason is its own word for it or NULL. */
    enum vm_ending (*ending)(struct vm *v, const char **reason);
    /* Optional. 0, or why we ended it ourselves. */
    int (*cause)(struct vm *v, struct err *e);
    int (*agent_open)(struct vm *v, int *fd, struct err *e);
    void (*close)(struct vm *v); /* after the process's end; frees all but the common part */
};

/* ---- For users within bake ------------------------------------------------------------------ */

/* Starts a machine as `launch` says; vm_boot and vm_restore are built on it. */
int vm_launch(struct vm **out, const struct vm_launch *launch, struct err *e) MUST_USE;
/* The last console bytes, as console_tail. */
size_t vm_console_tail(struct vm *v, char *out, size_t len);

/* ---- For drivers ------------------------------------------------------------------------------ */

enum {
    VM_COMMAND_TIMEOUT_MS = 60000, /* for one command on a busy host */
    VM_STATE_TIMEOUT_MS = 300000,  /* saving or loading a machine */
    VM_ENDING_TIMEOUT_MS = 5000,   /* between the news of its end and the end of the process */
    VM_POLL_MS = 5
};

/* Connects to a socket of the run directory; ERR_SYS. */
int vm_connect(struct vm *v, const char *name, int *fd, struct err *e) MUST_USE;
/* Waits for the process's end; true once it ended. */
bool vm_has_ended(struct vm *v, int64_t timeout_ms);
/* If the machine is gone, that explains ERR_NET better than a broken connection does. */
int vm_explain(struct vm *v, int rc, struct err *e) MUST_USE;

/* A list of arguments under construction; the first failure sticks. */
struct vm_arguments {
    char **list;
    size_t count;
    size_t capacity;
    int rc;
    struct err *e;
};
void vm_argument(struct vm_arguments *a, const char *text);
/* Takes `text` over; NULL is a failed allocation. */
void vm_argument_taken(struct vm_arguments *a, char *text);
/* The list, or what went wrong. */
int vm_arguments_done(struct vm_arguments *a, char ***out) MUST_USE;
void vm_arguments_free(char **arguments);

#endif
