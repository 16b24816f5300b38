/* SPDX-License-Identifier: MIT */
/*
 * A program of this machine that speaks JSON over HTTP on a unix socket, such as a virtual machine
 * monitor.
 */
#ifndef TB2_REGISTRY_LOCAL_H
#define TB2_REGISTRY_LOCAL_H

#include <stdint.h>

#include "base/cancel.h"
#include "base/err.h"
#include "base/json.h"

struct local_api;

struct local_options {
    const char *name;   /* of the program, for messages; borrowed */
    const char *socket; /* path, below 108 bytes; copied */
    int64_t timeout_ms; /* of one request */
    const struct cancel *cancel;
};

int local_api_new(struct local_api **out, const struct local_options *o, struct err *e) MUST_USE;
void local_api_free(struct local_api *a); /* NULL is fine */

/*
 * One request. `body` (may be NULL: none) is taken over. *reply (may be NULL: dropped) gets the
 * answer's JSON, the caller's; NULL when the answer is empty. Answers are bounded (1 MiB).
 * A refusal is ERR_UNSUPPORTED (or ERR_NOTFOUND, ERR_NET, ... by its status) with the program's own
 * words, made printable. ERR_NET when the connection fails, ERR_TIMEOUT, ERR_CANCELLED. One thread
 * at a time.
 */
int local_call(struct local_api *a, const char *method, const char *path, struct json *body,
               struct json **reply, struct err *e) MUST_USE;

#endif
