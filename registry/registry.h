/* SPDX-License-Identifier: MIT */
/*
 * Every conversation with a remote: HTTP transport, OCI distribution, the template server.
 */
#ifndef TB2_REGISTRY_REGISTRY_H
#define TB2_REGISTRY_REGISTRY_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"
#include "oci/oci.h"

/* ---- Where registries are (docs/registries.md) --------------------------------------------- */

/* Another place that has what a registry has. */
struct registry_mirror {
    /* "https://cache.corp" or with a prefix, "https://cache.corp/hub": what is team/app at the
     * registry is hub/team/app there. A path with "v2" in it is where the API is. */
    char *url;
    char *ca_file;      /* PEM; trusted for this host beside the system's; NULL: none */
    int64_t timeout_ms; /* until an answer begins, and for a whole manifest; 0: no such limit */
    bool digests_only;  /* is not asked for tags */
};

/* What is known of one registry, or of one namespace of it. Of several that fit, the longest name
 * counts. */
struct registry_host {
    char *name; /* "docker.io", "docker.io/library", "*.corp", "*" */
    struct registry_mirror *mirrors;
    size_t mirror_count;
    bool mirrors_only; /* the registry itself is never spoken to, not even for a token */
    bool plain_http;   /* the registry speaks plain HTTP */
    char *ca_file;     /* as above, for the registry itself */
};

/* All zero: nothing known. */
struct registry_network {
    struct registry_host *hosts;
    size_t host_count;
    char *ca_file; /* PEM; trusted for every host beside the system's; NULL: none */
    /* For registry_options, where they are 0. */
    int64_t connect_timeout_ms, stall_timeout_ms;
    int64_t retry_wait_ms; /* before the second try; doubles; 0: 500 */
    int64_t rate_wait_ms;  /* after a 429 that does not say how long; doubles; 0: 5,000 */
    unsigned tries;
    unsigned requests_per_minute; /* to one host; 0: as many as there are */
};
void registry_network_fini(struct registry_network *n);

/* ERR_INPUT when a mirror's url is none. */
int registry_mirror_check(const char *url, struct err *e) MUST_USE;

/* ---- Registry client --------------------------------------------------------------------- */

/* Pointers are borrowed until registry_free. */
struct registry_options {
    const struct registry_network *network; /* mirrors, certificates, limits; NULL: none */
    /* Hosts spoken to over plain HTTP, besides loopback addresses and localhost; NULL-terminated
     * or NULL. */
    const char *const *plain_http_hosts;
    /* docker's config.json; NULL: the file $REGISTRY_AUTH_FILE, else the first of these that has a
     * login: config.json in $DOCKER_CONFIG (without that: $XDG_RUNTIME_DIR/containers/auth.json,
     * ~/.config/containers/auth.json, ~/.docker/config.json). */
    const char *config_path;
    int64_t connect_timeout_ms; /* 0: 10,000 */
    int64_t stall_timeout_ms;   /* no bytes for this long ends a try; 0: 30,000 */
    unsigned tries;             /* for what err_retryable says; 0: 5 */
    /* Directories with HOST[:PORT]/NAME.crt; NULL: those of docker, podman and containerd. */
    const char *const *certs_dirs;
    const struct cancel *cancel; /* may be NULL */
};

/*
 * One client serves all threads of a run: it holds the tokens, the rate gates of the hosts
 * (a 429 pauses everyone who talks to that host) and the counters.
 *
 * Where a registry has mirrors, each operation asks them in order, once each, and the registry last
 * (with all tries), unless that is not to be asked: whatever goes wrong with one, wrong bytes too,
 * leads to the next. A mirror that fails three times in a row is left alone for the client's life.
 * An error names every place that was asked, and what it said.
 */
struct registry;
struct registry_stats {
    uint64_t manifest_heads, manifest_gets, blob_gets, blob_bytes, retries;
    uint64_t mirrored;   /* manifests, tags and blobs that a mirror gave */
    uint64_t rate_waits; /* answers of status 429 */
    /* The least that a host has left us (RateLimit-Remaining of its last answer), if any says. */
    bool has_quota;
    uint64_t quota_remaining, quota_limit; /* 0: it does not say out of how many */
    int64_t limited_ms; /* until a host that limits us is asked again; 0: none does */
};

int registry_new(struct registry **out, const struct registry_options *options,
                 struct err *e) MUST_USE;
void registry_free(struct registry *r);
DEFINE_AUTO(registry, registry_free)
#define AUTO_REGISTRY CLEANUP(registry_free_auto_)
struct registry_stats registry_stats(struct registry *r);

/* Whether manifests come from mirrors, by their digests, that are not asked for tags. */
bool registry_has_digest_mirror(struct registry *r, const struct oci_ref *ref);

/* HEAD of a manifest: the digest the tag points to now (distribution-spec, Pulling manifests).
 * ERR_UNSUPPORTED when the registry sends no Docker-Content-Digest; then use registry_manifest. */
int registry_head(struct registry *r, const struct oci_ref *ref, struct digest *out,
                  struct err *e) MUST_USE;

/* GET of a manifest or index by the ref's digest, else tag; bytes into `body` (ceiling
 * LIMIT_MANIFEST), verified against the digest if there is one, else against the one the registry
 * states. *out has media type, digest of the bytes and size, and is for oci_descriptor_fini. `body`
 * is initialised here, and is to be finished by the caller whatever the result. */
int registry_manifest(struct registry *r, const struct oci_ref *ref, struct oci_descriptor *out,
                      struct buf *body, struct err *e) MUST_USE;

/* Told about bytes of a transfer that have arrived in addition; from the calling thread. */
struct registry_progress {
    void (*arrived)(void *ctx, uint64_t bytes);
    void *ctx;
};

/*
 * Downloads a blob to `fd` (open for reading and writing), continuing what it already holds (a
 * partial file of an earlier try or run), verifies size and digest of the whole. A big blob comes
 * over several connections; until it is whole, its file is longer than the blob and ends with a map
 * of the parts that are there (registry/ranges.c). Wrong bytes are fetched once more; on ERR_DIGEST
 * the file is truncated to 0, after other errors it keeps what has arrived. The caller syncs and
 * renames.
 */
int registry_blob(struct registry *r, const struct oci_ref *ref, const struct oci_descriptor *d,
                  int fd, const struct registry_progress *progress, struct err *e) MUST_USE;

/* ---- Pushes (distribution-spec, section Push) ----------------------------------------------- */

/* These speak to the ref's own registry, never to a mirror, and try again as pulls do. */

int registry_has_blob(struct registry *r, const struct oci_ref *ref, const struct digest *d,
                      bool *found, struct err *e) MUST_USE;

/* A blob on its way; borrowed for the call. */
struct registry_upload {
    const struct oci_descriptor *blob;
    const struct source *from;
    const char *mount_from; /* a repository of the same registry that may have it; NULL: none */
};

enum registry_push_result { PUSH_WAS_THERE, PUSH_MOUNTED, PUSH_SENT };

/*
 * Sends a blob unless the repository has it: mounted from another one where that works, in one
 * request, or in pieces when it is big. A broken upload goes on where the registry says that it
 * stopped. The registry checks the digest. `result` may be NULL.
 */
int registry_push_blob(struct registry *r, const struct oci_ref *ref,
                       const struct registry_upload *upload, enum registry_push_result *result,
                       struct err *e) MUST_USE;

/* Puts a manifest or index under the ref's tag; what it names must be there. */
int registry_push_manifest(struct registry *r, const struct oci_ref *ref, const char *media_type,
                           const struct buf *body, struct err *e) MUST_USE;

/* Appends bytes [off, off + len) of a blob, as they come: whoever uses them verifies them. Gives up at
 * `deadline_ms` of clock_ms (0: none). */
struct registry_range {
    struct digest blob;
    uint64_t off;
    size_t len;
    int64_t deadline_ms;
};
int registry_blob_range(struct registry *r, const struct oci_ref *ref,
                        const struct registry_range *range, struct buf *out,
                        struct err *e) MUST_USE;

/* ---- Template server (E2B API) ------------------------------------------------------------ */

/* Time, where it is not the machine's. */
struct e2b_clock {
    int64_t (*now_ms)(void *ctx);
    int (*sleep_ms)(void *ctx, int64_t ms, struct err *e);
    void *ctx;
};

/* Borrowed for e2b_new, but for `cancel` and `clock`: until e2b_free. */
struct e2b_options {
    const char *api_url;           /* "http://127.0.0.1:8000" */
    const char *api_key;           /* sent as X-API-Key; never printed */
    const char *sandbox_url;       /* where sandboxes are spoken to; NULL: as the server says */
    int64_t poll_interval_ms;      /* 0: 1,000 growing to 5,000 */
    int64_t build_timeout_ms;      /* 0: 1,800,000 */
    const struct cancel *cancel;   /* may be NULL */
    const struct e2b_clock *clock; /* NULL: the machine's */
};

/* A step as the server takes it: type RUN, ENV, WORKDIR, USER and its arguments. */
struct e2b_step {
    const char *type;
    const char *const *args; /* NULL-terminated */
};

struct e2b_template {
    const char *alias;
    const char *from_image;
    const struct e2b_step *steps;
    size_t step_count;
    const char *start_command; /* NULL: none */
    const char *ready_command; /* NULL: none */
    uint32_t cpus;
    uint64_t memory_mb;
    bool force; /* build again although a ready template has the alias */
    /* Hex text that names the inputs, for the name that a replacement has until it takes the
     * alias over; NULL: not known. */
    const char *revision;
    /* Called with the name of a template that has become ready, or was; its error becomes the
     * registration's. Of a class that err_retryable knows, it says nothing about the template; any
     * other one has the template taken back. NULL: ready is enough. */
    int (*verify)(void *ctx, const char *alias, struct err *e);
    void *verify_ctx;
};

/* Finish with e2b_result_fini. */
struct e2b_result {
    char *template_id;
    char *build_id;
    bool built; /* false: it was there already */
};

/* Called with each state change and log line of the build; may be NULL. */
typedef void e2b_log(void *ctx, const char *line);

/* One for all threads of a run: a limit that one meets holds the others' builds back too. */
struct e2b;
int e2b_new(struct e2b **out, const struct e2b_options *options, struct err *e) MUST_USE;
void e2b_free(struct e2b *c);
DEFINE_AUTO(e2b, e2b_free)
#define AUTO_E2B CLEANUP(e2b_free_auto_)

/*
 * Registers a template under its alias: looks the alias up, waits for a build of it that is under
 * way, removes a failed or stuck one, creates (POST /v3/templates), starts the build (POST
 * /v2/templates/{id}/builds/{id}), polls the status until ready or error; a failed build's alias is
 * freed again, also after a cancellation.
 *
 * A ready template is replaced where `force` says so. A server that keeps one
 * build per template must lose the old one first: then the new one is built and verified under
 * another name ("ALIAS-next", "ALIAS-next-REVISION"), and only when it is good is the old one
 * deleted and a build from the new one started, which copies it. A failure before that leaves the
 * old one as it was; what was begun then is finished also when cancelled.
 *
 * Answers that say the server is full (429, or in words) are waited out, up to the build's time.
 *
 * ERR_STEP: the build failed, with the server's reason. ERR_TIMEOUT: not ready in time. ERR_DENIED:
 * key, or an alias of someone else. ERR_BUSY: others keep taking the alias. ERR_UNSUPPORTED:
 * refused by the server, or a text holds '<', which servers may take for markup. ERR_NET,
 * ERR_RATE, ERR_LIMIT, ERR_CORRUPT. Thread-safe.
 */
int e2b_register(struct e2b *c, const struct e2b_template *t, e2b_log *log, void *ctx,
                 struct e2b_result *out, struct err *e) MUST_USE;
void e2b_result_fini(struct e2b_result *r);

/* A template as the server lists it. */
struct e2b_entry {
    char *alias; /* without a namespace; an id where it has none */
    char *template_id;
    char *build_id; /* may be NULL */
    char *status;   /* "ready", "error", "building", "waiting", ... */
    char *created;  /* RFC 3339; may be NULL */
    uint64_t cpus, memory_mb, disk_mb;
};

/* All templates of the key's owner, sorted by alias. Free with e2b_entries_free. */
int e2b_list(struct e2b *c, struct e2b_entry **out, size_t *count, struct err *e) MUST_USE;
void e2b_entries_free(struct e2b_entry *entries, size_t count);

/* Removes the template of an alias. ERR_NOTFOUND when there is none. */
int e2b_remove(struct e2b *c, const char *alias, struct err *e) MUST_USE;

enum e2b_smoke_stage {
    E2B_SMOKE_RESOLVE,
    E2B_SMOKE_CREATE,
    E2B_SMOKE_EXEC,
    E2B_SMOKE_DESTROY,
    E2B_SMOKE_STAGES
};

struct e2b_smoke {
    const char *alias;
    const char *command; /* shell text that must exit with 0 */
    int64_t timeout_ms;  /* of the command; 0: 60,000 */
};

struct e2b_smoke_result {
    enum e2b_smoke_stage stage;         /* the last one that was entered */
    int64_t stage_ms[E2B_SMOKE_STAGES]; /* what each took */
    int64_t exit_status;                /* of the command, once it has ended; else -1 */
};

/*
 * Looks the alias up, starts a sandbox from it, runs the command there through envd (the Connect
 * protocol, on port 49983), and kills the sandbox, also after a failure or a cancellation. ERR_STEP:
 * the command failed, with the end of its output; ERR_NOTFOUND: no template; otherwise as
 * e2b_register. *out is filled in any case. Thread-safe.
 */
int e2b_smoke(struct e2b *c, const struct e2b_smoke *s, struct e2b_smoke_result *out,
              struct err *e) MUST_USE;

#endif
