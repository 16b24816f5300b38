/* SPDX-License-Identifier: MIT */
/*
 * The channel to the guest agent, its host end (docs/formats/agent-protocol.md). One connection
 * at a time; used by one thread at a time. Everything that the guest sends is bounded and checked.
 *
 * What the agent refuses or cannot do (ERR_STEP; ERR_NOTFOUND for a path or process; ERR_BUSY while
 * the disk is frozen; ERR_LIMIT for too long a request) leaves the connection as it was. After any
 * other error, or one of the output callback, it is closed: the agent kills what ran for it, and
 * every further call is ERR_NET. Detached programs live on and are found by the next connection.
 */
#ifndef TB2_BAKE_CHANNEL_H
#define TB2_BAKE_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/buf.h"
#include "base/err.h"

/* A tmpfs of the guest for files that must not reach the disk, such as long step text
 * (agent_put). */
#define AGENT_SCRATCH_DIR "/dev/tb2"
#define AGENT_SECRETS_DIR AGENT_SCRATCH_DIR "/secrets" /* agent_forget */

struct agent;
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

/* Files that are laid in the guest's tree one after another (bake/channel/copy.c). */
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
