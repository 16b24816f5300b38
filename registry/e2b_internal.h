/* SPDX-License-Identifier: MIT */
/*
 * The template server's client:
 *
 *     e2b.c           the sequence of a registration    e2b_smoke.c  a sandbox from a template
 *     e2b_build.c     looking up, creating, building,   e2b_list.c   what the server has
 *                     polling, deleting
 *     e2b_request.c   what is sent: checks up front, JSON bodies
 *     e2b_call.c      one call and its answer; what a refusal means; limits; time
 */
#ifndef TB2_REGISTRY_E2B_INTERNAL_H
#define TB2_REGISTRY_E2B_INTERNAL_H

#include "registry/internal.h"

enum e2b_name_field { E2B_NAME_UNKNOWN, E2B_NAME_NAME, E2B_NAME_ALIAS };

struct e2b {
    struct e2b_options options; /* times filled in; the texts are not used from here */
    char *api_url;              /* without a final slash; may hold a login */
    char *name;                 /* the same without one, for messages */
    char *sandbox_url;          /* the same; NULL: as the server says */
    char *key_header;           /* "X-API-Key: …"; never printed */
    struct http *http;
    struct http *cleanup_http;    /* not cancelled: takes a claimed alias back after Ctrl-C */
    atomic_int name_field;        /* enum e2b_name_field: what creating calls a template */
    atomic_int_least64_t open_ms; /* when builds may be asked for again, by this client's clock */
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
    bool finishing;          /* also when cancelled */
    bool build;              /* asks for a build: waits while the server is full */
};

struct e2b_reply {
    int code;          /* the status, or what a 500 says inside */
    struct json *json; /* NULL when the answer was not JSON */
    char *detail;      /* what the server said about it, on one line; may be NULL */
    char *next_token;  /* of a list; may be NULL */
    int64_t retry_after_ms;
};

void e2b_reply_fini(struct e2b_reply *r);
#define AUTO_E2B_REPLY CLEANUP(e2b_reply_fini)

/*
 * One call, repeated while that can help: GET and DELETE after network errors and 5xx, all while the
 * server says that it is full. 0 once there is an answer, whatever its code. Messages name the server.
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

/* True where a server's words say that it has no room now: servers have no status for it in common. */
bool e2b_is_full(const char *text);

/* True for a refusal that says that something has the name already. */
bool e2b_is_taken(const struct e2b_reply *r);

/* True where a server's words may be about how the request names the template. */
bool e2b_is_about_names(const char *text);

/* Milliseconds by the client's clock, and sleeping by it; `finishing`: also when cancelled. */
int64_t e2b_now_ms(const struct e2b *c);
int e2b_sleep_ms(const struct e2b *c, int64_t ms, bool finishing, struct err *e) MUST_USE;

/* ---- e2b_build.c --------------------------------------------------------------------------- */

enum e2b_build_state { BUILD_ABSENT, BUILD_WAITING, BUILD_RUNNING, BUILD_READY, BUILD_FAILED };

enum { E2B_TAIL_LINES = 5 };

/* What stands behind an alias, or what we have made. */
struct e2b_build {
    enum e2b_build_state state;
    char *template_id;
    char *build_id;
    size_t others;  /* builds of the template beside this one */
    int64_t age_ms; /* -1: unknown */
    bool late;      /* polling ended because its time was over */
    bool full;      /* it failed because the server had no room */
};
void e2b_build_fini(struct e2b_build *b);
#define AUTO_E2B_BUILD CLEANUP(e2b_build_fini)

/* One registration. */
struct e2b_session {
    struct e2b *client;
    const struct e2b_template *wanted;
    e2b_log *log;
    void *log_ctx;
    bool finishing; /* what was begun is finished also when cancelled */
};

/* AgentENV: template and build have one id, and an alias is built again only after a delete. */
bool e2b_one_build(const struct e2b_build *b);

void e2b_say(const struct e2b_session *s, const char *line);

/* The build behind an alias; BUILD_ABSENT when there is none. */
int e2b_look_up(const struct e2b_session *s, struct e2b_build *out, struct err *e) MUST_USE;

/* Claims the alias. With `fresh` (it seemed free), *lost says that someone was faster. */
int e2b_create(const struct e2b_session *s, struct e2b_build *out, bool fresh, bool *lost,
               struct err *e) MUST_USE;
/* Starts the build: from the image, or from another template. */
int e2b_start(const struct e2b_session *s, const struct e2b_build *b, const char *from_template,
              struct err *e) MUST_USE;

/*
 * Polls until the build is ready (0), failed (ERR_STEP, or ERR_RATE when the server had no room) or
 * `budget_ms` is over (ERR_TIMEOUT). With `while_waiting` it returns 0 as soon as the build has left
 * the waiting state.
 */
int e2b_poll(const struct e2b_session *s, struct e2b_build *b, int64_t budget_ms,
             bool while_waiting, struct err *e) MUST_USE;

/* Deletes by id; one that is not there is fine. */
int e2b_delete(const struct e2b_session *s, const char *template_id, bool cleanup,
               struct err *e) MUST_USE;
/* Takes a claim back after a failure, which stays the error. */
void e2b_discard(const struct e2b_session *s, const struct e2b_build *b, struct err *e);

/* ---- e2b_request.c ------------------------------------------------------------------------- */

/* What any server would refuse, said before the first call. ERR_INPUT or ERR_UNSUPPORTED. */
int e2b_check_alias(const char *alias, struct err *e) MUST_USE;
int e2b_check_template(const struct e2b_template *t, struct err *e) MUST_USE;

/* Bodies of POST /v3/templates and of the build start; NULL when memory is short. */
struct json *e2b_create_body(const struct e2b_template *t, enum e2b_name_field field);
struct json *e2b_build_body(const struct e2b_template *t, const char *from_template);

#endif
