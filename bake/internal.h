/* SPDX-License-Identifier: MIT */
/* Private to bake: what its .c files and its unit tests share. */
#ifndef TB2_BAKE_INTERNAL_H
#define TB2_BAKE_INTERNAL_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/channel/protocol.h"
#include "bake/vm.h"
#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/json.h"

/* ---- Guest kernel and initramfs (kernel.c, initramfs.c) ---------------------------------- */

/* The agent's binary, linked into this library (agent_blob.S). */
extern const uint8_t tb2_agent_start[];
extern const uint8_t tb2_agent_end[];

struct initramfs_module {
    const char *name; /* "virtio_blk.ko" */
    const void *data;
    size_t len;
};

/*
 * Appends a newc cpio archive to `out`: /dev/console, /init (the agent), /modules/NAME and
 * /modules/order (the names, a line each, in the order given, which is the order of loading). The
 * bytes depend on the arguments alone.
 */
int initramfs_build(struct buf *out, const void *agent, size_t agent_len,
                    const struct initramfs_module *modules, size_t count, struct err *e) MUST_USE;

/*
 * Fills `dir` (a directory descriptor) from an unpacked Debian kernel package at `tree`: vmlinux,
 * modules/NAME.ko for each wanted module and what it depends on, modules/order. DIR/modules exists.
 */
int kernel_import(int dir, int tree, const char *release, const struct cancel *c,
                  struct err *e) MUST_USE;

/*
 * Finds the compressed kernel proper inside a bzImage: *off and *len get its place (Linux
 * Documentation/arch/x86/boot.rst, fields setup_sects, payload_offset, payload_length).
 */
int kernel_payload(const void *image, size_t len, size_t *payload_off, size_t *payload_len,
                   struct err *e) MUST_USE;

/* ---- Console (console.c) ------------------------------------------------------------------ */

enum {
    CONSOLE_FILE_MAX = 1 << 20, /* bytes of the log file */
    CONSOLE_TAIL_LEN = 64 << 10 /* bytes kept in memory, and the least that the file goes back */
};

/* Copies what a pipe gives into a file that never grows past CONSOLE_FILE_MAX, on a thread of
 * its own. */
struct console;
/* Takes `input` (the reading end of a pipe) over, also on failure. */
int console_start(struct console **out, int input, int dir, const char *path,
                  struct err *e) MUST_USE;
/* Waits at most `timeout_ms` for the end of the input, so that the tail is complete. */
void console_drain(struct console *c, int64_t timeout_ms);
/* Copies the last bytes into `out` (terminated, `len` > 0); returns how many. */
size_t console_tail(struct console *c, char *out, size_t len);
void console_free(struct console *c);
DEFINE_AUTO(console, console_free)
#define AUTO_CONSOLE CLEANUP(console_free_auto_)

/* The last `lines` lines of `text` in one line, " | " between them, unprintable bytes as '?'. */
void console_summary(const char *text, unsigned lines, char *out, size_t len);

/* ---- QMP (qmp.c) --------------------------------------------------------------------------- */

/* One connection to QEMU's machine protocol (QEMU docs/interop/qmp-spec). One thread at a time. */
struct qmp;

/* What the events seen so far say. */
struct qmp_events {
    bool shutdown;
    char reason[32]; /* of SHUTDOWN: "guest-shutdown", "guest-reset", "host-qmp-quit", … */
    bool stopped;    /* the last of STOP and RESUME was STOP */
};

/* Takes a connected stream socket over (also on failure), reads the greeting, negotiates. */
int qmp_open(struct qmp **out, int fd, int64_t timeout_ms, const struct cancel *c,
             struct err *e) MUST_USE;
void qmp_free(struct qmp *q);
DEFINE_AUTO(qmp, qmp_free)
#define AUTO_QMP CLEANUP(qmp_free_auto_)

/*
 * Runs a command; `arguments` (may be NULL) is taken over. `pass_fd` (-1: none) goes along as
 * SCM_RIGHTS. *reply (may be NULL) gets the return value, the caller's. ERR_NET when QEMU refuses
 * (its own words) or the connection ended, ERR_TIMEOUT.
 */
int qmp_command(struct qmp *q, const char *command, struct json *arguments, int pass_fd,
                struct json **reply, struct err *e) MUST_USE;
/* Takes in the events that have arrived, without waiting. */
void qmp_poll(struct qmp *q);
const struct qmp_events *qmp_events(const struct qmp *q);

/* ---- Channel to the guest agent (agent_link.c) --------------------------------------------- */

enum { AGENT_ALSO_MAX = 2 };

struct agent {
    int fd; /* -1 once the link is broken */
    const struct cancel *cancel;
    struct vm *vm; /* NULL in tests */
    /* Why the machine ended, if it did (vm_check); NULL in tests. */
    int (*check)(struct vm *v, struct err *e);
    uint32_t next_stream;
    int64_t heard_ms; /* when bytes last came */
    struct buf out;   /* frames waiting to be sent */
    uint8_t *in;      /* AGENT_FRAME_MAX bytes */
    size_t in_len;
    struct pollfd *also; /* waited for too, while a frame is; NULL: nothing */
    size_t also_count;   /* at most AGENT_ALSO_MAX */
    bool woken;          /* one of them has something */
    size_t taken;        /* bytes of `in` that the last frame lent out takes */
    char boot_id[AGENT_BOOT_ID_LEN + 1];
};

struct agent_peer {
    int fd; /* connected socket; taken over, also on failure */
    struct vm *vm;
    int (*check)(struct vm *v, struct err *e);
    int64_t timeout_ms; /* for the hello; -1: none */
    const struct cancel *cancel;
};

/*
 * Says hello over the socket until the far end answers. ERR_TIMEOUT when it does not, ERR_STEP
 * when the guest could not start.
 */
int agent_open_fd(struct agent **out, const struct agent_peer *peer, struct err *e) MUST_USE;

/* Stream number for the next request. */
uint32_t agent_link_stream(struct agent *a);

/* Queues a frame; it leaves while the link waits for the answer. */
int agent_link_send(struct agent *a, uint32_t type, uint32_t stream, const void *payload,
                    size_t len, struct err *e) MUST_USE;

/*
 * Waits for a frame until `deadline_ms` (clock_ms; -1: none), or until something of `also`
 * is ready; *got says whether one came. It is borrowed until the next call. An error leaves the link broken.
 */
int agent_link_receive(struct agent *a, int64_t deadline_ms, struct agent_frame *out, bool *got,
                       struct err *e) MUST_USE;

/* After this every call fails: what the far end still sends can no longer be told apart. */
void agent_link_break(struct agent *a);

/* ERR_CORRUPT for a frame that has no place here; breaks the link. */
int agent_link_refuse(struct agent *a, const struct agent_frame *f, struct err *e) MUST_USE;

/* ---- Requests (agent_client.c, agent_checks.c, agent_fault.c) ------------------------------- */

enum { AGENT_REQUEST_MS = 120000 }; /* simple requests, on a loaded host without KVM */

/* Sends a request and waits for its OK (borrowed until the next call) or ERROR. `payload` may be
 * NULL. */
int agent_request(struct agent *a, uint32_t type, const struct buf *payload, int64_t timeout_ms,
                  struct agent_frame *reply, struct err *e) MUST_USE;

/* Copies text from the guest: printable, terminated; what does not fit is left out. */
void agent_take_text(char *out, size_t capacity, const uint8_t *bytes, size_t len);

/* A request whose reply is one integer, or nothing when `out` is NULL. `payload` may be NULL. */
int agent_request_u64(struct agent *a, uint32_t type, const struct buf *payload, int64_t timeout_ms,
                      uint64_t *out, struct err *e) MUST_USE;
/* Appends a string as the protocol has them. */
int agent_add_string(struct buf *b, const char *text, struct err *e) MUST_USE;

/* Turns the payload of an ERROR frame into an error. `path` is the PATH that a program was looked
 * up in, or NULL. Text from the guest is bounded and made printable. Returns the class. */
int agent_fault(const struct agent_frame *f, const char *path, struct err *e) MUST_USE;

#endif
