/* SPDX-License-Identifier: MIT */
/* From a connected socket to the guest agent behind it: for those who have a machine. */
#ifndef TB2_BAKE_CHANNEL_LINK_H
#define TB2_BAKE_CHANNEL_LINK_H

#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"

struct agent;
struct vm;

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

#endif
