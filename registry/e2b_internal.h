/* SPDX-License-Identifier: MIT */
/*
 * The template server's client in three parts:
 *
 *     e2b.c           the sequence of a registration
 *     e2b_request.c   what is sent: checks up front, JSON bodies
 *     e2b_call.c      one call and its answer; what a refusal means
 */
#ifndef TB2_REGISTRY_E2B_INTERNAL_H
#define TB2_REGISTRY_E2B_INTERNAL_H

#include "registry/internal.h"

struct e2b {
    struct e2b_options options; /* times filled in; api_url and api_key are not used from here */
    char *api_url;              /* without a final slash */
    char *key_header;           /* "X-API-Key: …"; never printed */
    struct http *http;
    struct http *cleanup_http; /* not cancelled: takes a claimed alias back after Ctrl-C */
};

/* What ids and aliases are made of. */
#define E2B_ID_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

/* ---- e2b_call.c ---------------------------------------------------------------------------- */

struct e2b_call {
    const char *method;
    const char *path;        /* from the slash on */
    const char *doing;       /* for messages: "creating the template" */
    const struct json *body; /* NULL: none */
    bool cleanup;            /* short, without re-tries, also when cancelled */
};

struct e2b_reply {
    int code;          /* the status, or what a 500 says inside */
    struct json *json; /* NULL when the answer was not JSON */
    char *detail;      /* what the server said about it, on one line; may be NULL */
    int64_t retry_after_ms;
};

void e2b_reply_fini(struct e2b_reply *r);
#define AUTO_E2B_REPLY CLEANUP(e2b_reply_fini)

/*
 * One call, repeated while that can help: GET and DELETE after network errors and 5xx, all after a
 * 429. 0 once there is an answer, whatever its code. Messages name the server.
 */
int e2b_send(struct e2b *c, const struct e2b_call *call, struct e2b_reply *out,
             struct err *e) MUST_USE;

/* Sets the error for an answer that is not what `doing` needed. */
int e2b_refused(const struct e2b *c, const struct e2b_reply *r, const char *doing, struct err *e);

/* A copy of text from the server that is fit for a terminal: at most `max_len` bytes, no trailing
 * blanks, made harmless (base/text.h), one line unless `lines`. NULL when memory is short. */
char *e2b_clean(const char *text, size_t max_len, bool lines) MUST_USE;

/* ERR_CORRUPT: an answer that lacks something or holds nonsense. */
int e2b_malformed(const struct e2b *c, const char *doing, const char *why, struct err *e);

/* Copies an id, which goes into paths: 1 to 128 of letters, digits, '-' and '_'. */
int e2b_take_id(char **out, const struct e2b *c, const struct json *object, const char *key,
                const char *doing, struct err *e) MUST_USE;

/* True for an answer that means success. */
bool e2b_is_ok(const struct e2b_reply *r);

/* ---- e2b_request.c ------------------------------------------------------------------------- */

/* What any server would refuse, said before the first call. ERR_INPUT or ERR_UNSUPPORTED. */
int e2b_check_template(const struct e2b_template *t, struct err *e) MUST_USE;

/* Bodies of POST /v3/templates and of the build start; NULL when memory is short. */
struct json *e2b_create_body(const struct e2b_template *t);
struct json *e2b_build_body(const struct e2b_template *t);

#endif
