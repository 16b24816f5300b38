/* SPDX-License-Identifier: MIT */
/* Private to bake: what its .c files and its unit tests share. */
#ifndef TB2_BAKE_INTERNAL_H
#define TB2_BAKE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
 * /modules/order (the names, a line each, in the order given, which is the order of loading). The bytes
 * depend on the arguments alone.
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
    CONSOLE_TAIL = 64 << 10     /* bytes kept in memory, and the least that the file goes back */
};

/* Copies what a pipe gives into a file that never grows past CONSOLE_FILE_MAX, on a thread of its own. */
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

/* ---- Machine (qemu.c) --------------------------------------------------------------------- */

struct vm_launch {
    const struct vm_options *options;
    const char *append;     /* kernel command line */
    const char *state_path; /* restore from it; NULL: cold boot */
    bool bare;              /* no disk, anonymous memory: the probe of accel.c */
};

/* Starts QEMU as `launch` says; vm_boot and vm_restore are built on it. */
int vm_launch(struct vm **out, const struct vm_launch *launch, struct err *e) MUST_USE;
/* The last console bytes, as console_tail. */
size_t vm_console_tail(struct vm *v, char *out, size_t len);
/* The whole argument list, NULL-terminated; free with vm_arguments_free. */
int vm_arguments(char ***out, const struct vm_launch *launch, struct err *e) MUST_USE;
void vm_arguments_free(char **arguments);

#endif
