/* SPDX-License-Identifier: MIT */
/* Private to bake/channel and to the tests that play the far end: frames, and requests made of them. */
#ifndef TB2_BAKE_CHANNEL_INTERNAL_H
#define TB2_BAKE_CHANNEL_INTERNAL_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/channel.h"
#include "bake/channel/link.h"
#include "bake/channel/protocol.h"
#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

/* ---- Frames (link.c) ---- */

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

/* ---- Requests (requests.c, health.c, fault.c) ---- */

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
