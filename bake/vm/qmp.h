/* SPDX-License-Identifier: MIT */
/* QEMU's machine protocol (QEMU docs/interop/qmp-spec): one connection, one thread at a time. */
#ifndef TB2_BAKE_VM_QMP_H
#define TB2_BAKE_VM_QMP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/cancel.h"
#include "base/err.h"
#include "base/json.h"

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

#endif
