/* SPDX-License-Identifier: MIT */
/* Private to bake and its unit tests. */
#ifndef TB2_BAKE_INTERNAL_H
#define TB2_BAKE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/agent_protocol.h"
#include "bake/vm.h"
#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

/* ---- Channel to the guest agent (agent_link.c) --------------------------------------------- */

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
    size_t taken; /* bytes of `in` that the last frame lent out takes */
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
 * Waits for a frame until `deadline_ms` (clock_ms; -1: none); *got says whether one came. It is
 * borrowed until the next call. An error leaves the link broken.
 */
int agent_link_receive(struct agent *a, int64_t deadline_ms, struct agent_frame *out, bool *got,
                       struct err *e) MUST_USE;

/* After this every call fails: what the far end still sends can no longer be told apart. */
void agent_link_break(struct agent *a);

/* ERR_CORRUPT for a frame that has no place here; breaks the link. */
int agent_link_refuse(struct agent *a, const struct agent_frame *f, struct err *e) MUST_USE;

/* ---- Requests (agent_client.c, agent_fault.c) ----------------------------------------------- */

/* Turns the payload of an ERROR frame into an error. `path` is the PATH that a program was looked
 * up in, or NULL. Text from the guest is bounded and made printable. Returns the class. */
int agent_fault(const struct agent_frame *f, const char *path, struct err *e) MUST_USE;

#endif
