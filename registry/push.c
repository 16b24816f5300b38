/* SPDX-License-Identifier: MIT */
/*
 * Pushes, and reads of parts of blobs.
 *
 * Where an upload goes on is told by the registry with each answer. It may be another host, which
 * then gets no authorization of ours: what it needs is in the URL.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "registry/internal.h"

/* Bigger blobs go in pieces of this size: registries and proxies bound the body of one request. */
enum { PIECE_LEN = 16 << 20 };

static const char *const octets[] = {"Content-Type: application/octet-stream", NULL};

int registry_has_blob(struct registry *r, const struct oci_ref *ref, const struct digest *d,
                      bool *found, struct err *e)
{
    struct retry retry = registry_retry(r);
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *path = mem_printf("blobs/%s", digest_print(d, text));

    if (!path)
        return err_nomem(e, "request");
    for (;;) {
        AUTO_HTTP_RESPONSE struct http_response answer;
        struct http_request request = {.method = "HEAD"};

        http_response_init(&answer);
        *found = registry_exchange(r, ref, path, &request, &answer, e) == 0;
        if (*found)
            return 0;
        if (e->class == ERR_NOTFOUND) {
            err_clear(e);
            return 0;
        }
        if (!retry_again(&retry, e))
            return -(int)e->class;
        r->counters.retries++;
    }
}

/* ---- Uploads ---------------------------------------------------------------------------- */

struct upload {
    struct registry *registry;
    const struct oci_ref *ref;
    const struct oci_descriptor *blob;
    const struct source *from;
    const char *mount_from; /* NULL: none, or it did not work */
    char *url;              /* where it goes on; NULL: it has not begun */
    bool own;               /* that is the registry itself */
    uint64_t taken;         /* bytes that the registry has */
    bool in_doubt;          /* it has to be asked how many */
    uint8_t *piece;         /* room for one */
    size_t piece_len;
};

static void forget(struct upload *u)
{
    free(u->url);
    u->url = NULL;
    u->taken = 0;
    u->in_doubt = false;
}

/* Takes where the upload goes on from an answer. */
static int take_location(struct upload *u, const char *base, const struct http_response *answer,
                         struct err *e)
{
    char *url = NULL;

    if (http_redirect(&url, &u->own, base, answer->location, e) < 0)
        return err_in(e, "registry %s: upload", u->ref->host);
    free(u->url);
    u->url = url;
    return 0;
}

static int ask(struct upload *u, const char *mount_from, bool *mounted, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    AUTO_BUF struct buf reply;
    struct http_request request = {.method = "POST", .reply = &reply};
    const struct endpoint *at = endpoint_origin(u->registry->endpoints, u->ref);
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *from = mount_from ? http_escape(mount_from) : NULL;
    AUTO_FREE char *path = from ? mem_printf("blobs/uploads/?mount=%s&from=%s",
                                             digest_print(&u->blob->digest, text), from)
                                : mem_strdup("blobs/uploads/");

    http_response_init(&answer);
    buf_init(&reply, LIMIT_TOKEN);
    if (!path || !at)
        return err_nomem(e, "request");
    AUTO_FREE char *base = mem_printf("%s/%s/blobs/uploads/", at->api, u->ref->repository);
    if (!base)
        return err_nomem(e, "request");
    if (registry_exchange(u->registry, u->ref, path, &request, &answer, e) < 0)
        return -(int)e->class;
    *mounted = answer.status == 201;
    if (*mounted)
        return 0;
    if (!answer.location)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: does not say where an upload goes on",
                       u->ref->host);
    return take_location(u, base, &answer, e);
}

/* Asks for an upload; *mounted: there is nothing left to do. Some registries refuse the whole request
 * when there is nothing to mount, or the other repository may not be read. */
static int begin(struct upload *u, bool *mounted, struct err *e)
{
    forget(u);
    if (!u->mount_from)
        return ask(u, NULL, mounted, e);
    int rc = ask(u, u->mount_from, mounted, e);
    u->mount_from = NULL;
    if (rc == 0 || err_retryable(e) || e->class == ERR_CANCELLED || e->class == ERR_NOMEM)
        return rc;
    err_clear(e);
    return ask(u, NULL, mounted, e);
}

/* One request to where the upload is; where it goes on after it is what the answer says last. */
static int send_to(struct upload *u, struct http_request *request, struct http_response *answer,
                   struct err *e)
{
    AUTO_BUF struct buf reply;
    AUTO_FREE char *base = mem_strdup(u->url);

    buf_init(&reply, LIMIT_TOKEN);
    if (!base)
        return err_nomem(e, "request");
    request->reply = &reply;
    int rc = registry_send(u->registry, u->ref, u->own, request, answer, e);
    request->reply = NULL;
    if (rc == 0 && answer->status / 100 != 2 && answer->status != 416)
        rc = http_status_error(e, answer, "upload");
    if (rc == 0 && answer->location && answer->status != 201)
        return take_location(u, base, answer, e);
    if (rc < 0 && (answer->status == 401 || answer->status == 404)) {
        forget(u); /* it ran out: all is sent again */
        e->class = ERR_NET;
        rc = -ERR_NET;
    }
    return rc < 0 ? err_in(e, "registry %s", u->ref->host) : 0;
}

/* How far did it get? What cannot be told begins anew. */
static int ask_status(struct upload *u, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    struct http_request request = {.method = "GET", .url = u->url, .no_redirects = true};

    http_response_init(&answer);
    int rc = send_to(u, &request, &answer, e);
    if (rc < 0)
        forget(u);
    if (rc == 0 && (!answer.has_taken || answer.taken > u->blob->size)) {
        forget(u);
        return err_set(e, ERR_NET, "registry %s: does not say how much of an upload it has",
                       u->ref->host);
    }
    u->in_doubt = false;
    if (rc == 0)
        u->taken = answer.taken;
    return rc;
}

/* Sends the next piece. Where the registry expects another one (416), it is asked which. */
static int send_piece(struct upload *u, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    uint64_t left = u->blob->size - u->taken;
    size_t len = left < u->piece_len ? (size_t)left : u->piece_len;
    char range[64];
    const char *const headers[] = {octets[0], range, NULL};
    struct http_request request = {
        .method = "PATCH", .url = u->url, .headers = headers, .body = u->piece, .body_len = len};

    http_response_init(&answer);
    snprintf(range, sizeof(range), "Content-Range: %llu-%llu", (unsigned long long)u->taken,
             (unsigned long long)(u->taken + len - 1));
    if (source_read_full(u->from, u->taken, u->piece, len, e) < 0)
        return -(int)e->class;
    u->in_doubt = true;
    if (send_to(u, &request, &answer, e) < 0)
        return -(int)e->class;
    if (answer.status == 416) {
        uint64_t before = u->taken;
        int rc = ask_status(u, e);
        if (rc == 0 && u->taken == before)
            rc = err_set(e, ERR_NET, "registry %s: refuses the very piece that it waits for",
                         u->ref->host);
        return rc;
    }
    u->in_doubt = false;
    u->taken += len;
    /* A registry may have kept less than all of it. */
    if (answer.has_taken && answer.taken < u->taken && answer.taken > u->taken - len)
        u->taken = answer.taken;
    return 0;
}

/* Closes the upload, with the whole blob if nothing of it was sent. */
static int finish(struct upload *u, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    char text[DIGEST_TEXT_MAX];
    size_t len = (size_t)(u->blob->size - u->taken);
    AUTO_FREE char *url = mem_printf("%s%cdigest=%s", u->url, strchr(u->url, '?') ? '&' : '?',
                                     digest_print(&u->blob->digest, text));
    struct http_request request = {
        .method = "PUT", .url = url, .headers = octets, .body = u->piece, .body_len = len};

    http_response_init(&answer);
    if (!url)
        return err_nomem(e, "request");
    if (len > 0 && source_read_full(u->from, u->taken, u->piece, len, e) < 0)
        return -(int)e->class;
    u->in_doubt = true;
    int rc = send_to(u, &request, &answer, e);
    if (rc == 0 && answer.status == 416)
        rc = err_set(e, ERR_NET, "registry %s: an upload ends elsewhere", u->ref->host);
    return rc;
}

static int upload_once(struct upload *u, bool *mounted, struct err *e)
{
    if (u->url && u->in_doubt && u->blob->size > u->piece_len && ask_status(u, e) < 0)
        return -(int)e->class;
    if ((!u->url || u->in_doubt) && (begin(u, mounted, e) < 0 || *mounted))
        return -(int)e->class;
    while (u->blob->size > u->piece_len && u->taken < u->blob->size) {
        if (cancel_check(u->registry->options.cancel, e) < 0 || send_piece(u, e) < 0)
            return -(int)e->class;
    }
    return finish(u, e);
}

static int upload_blob(struct upload *u, bool *mounted, struct err *e)
{
    struct retry retry = registry_retry(u->registry);
    uint64_t got = 0;

    while (upload_once(u, mounted, e) < 0) {
        if (u->taken > got) { /* tries are counted from the last piece that arrived */
            got = u->taken;
            retry.used = 0;
        }
        if (!retry_again(&retry, e))
            return -(int)e->class;
        u->registry->counters.retries++;
    }
    return 0;
}

int registry_push_blob(struct registry *r, const struct oci_ref *ref,
                       const struct registry_upload *upload, enum registry_push_result *result,
                       struct err *e)
{
    const struct oci_descriptor *d = upload->blob;
    size_t piece = r->tuning.piece_len > 0 ? (size_t)r->tuning.piece_len : (size_t)PIECE_LEN;
    struct upload u = {.registry = r,
                       .ref = ref,
                       .blob = d,
                       .from = upload->from,
                       .mount_from = upload->mount_from,
                       .piece_len = piece};
    char text[DIGEST_TEXT_MAX];
    bool there = false;
    bool mounted = false;

    int rc = registry_has_blob(r, ref, &d->digest, &there, e);
    if (rc == 0 && !there) {
        u.piece = mem_zalloc(d->size < piece ? (size_t)d->size + 1 : piece);
        rc = u.piece ? upload_blob(&u, &mounted, e) : err_nomem(e, "upload");
        free(u.piece);
        free(u.url);
    }
    if (rc < 0)
        return err_in(e, "blob %s", digest_print(&d->digest, text));
    if (result)
        *result = there ? PUSH_WAS_THERE : mounted ? PUSH_MOUNTED : PUSH_SENT;
    return 0;
}

int registry_push_manifest(struct registry *r, const struct oci_ref *ref, const char *media_type,
                           const struct buf *body, struct err *e)
{
    struct retry retry = registry_retry(r);
    AUTO_FREE char *path = mem_printf("manifests/%s", ref->tag ? ref->tag : "");
    AUTO_FREE char *type = mem_printf("Content-Type: %s", media_type);

    if (!path || !type)
        return err_nomem(e, "request");
    for (;;) {
        AUTO_HTTP_RESPONSE struct http_response answer;
        AUTO_BUF struct buf reply;
        const char *const headers[] = {type, NULL};
        struct http_request request = {.method = "PUT",
                                       .headers = headers,
                                       .body = body->data,
                                       .body_len = body->len,
                                       .reply = &reply};

        http_response_init(&answer);
        buf_init(&reply, LIMIT_TOKEN);
        if (registry_exchange(r, ref, path, &request, &answer, e) == 0)
            return 0;
        if (!retry_again(&retry, e))
            return err_in(e, "manifest %s", ref->tag ? ref->tag : "");
        r->counters.retries++;
    }
}

/* ---- Parts of blobs --------------------------------------------------------------------- */

struct slice {
    const struct registry_range *range;
    struct buf *out;
    uint64_t at; /* place in the blob of the next byte that comes */
    bool started;
};

/* Keeps what belongs to the range: registries that know no ranges send everything. */
static int take_slice(void *ctx, const struct http_response *r, const void *data, size_t len,
                      struct err *e)
{
    struct slice *s = ctx;
    uint64_t end = s->range->off + s->range->len;

    if (!s->started)
        s->at = r->status == 206 && r->has_range ? r->range_first : 0;
    s->started = true;
    uint64_t from = s->at < s->range->off ? s->range->off : s->at;
    uint64_t to = s->at + len < end ? s->at + len : end;
    const uint8_t *bytes = data;
    int rc = from < to ? buf_add(s->out, bytes + (from - s->at), (size_t)(to - from), e) : 0;
    s->at += len;
    return rc;
}

static int range_once(struct registry *r, const struct oci_ref *ref, const char *path,
                      const struct registry_range *range, struct buf *out, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    AUTO_BUF struct buf reply;
    struct slice slice = {.range = range, .out = out};
    size_t before = out->len;
    int64_t left = range->deadline_ms ? range->deadline_ms - clock_ms() : 0;
    struct http_request request = {.method = "GET",
                                   .headers = blob_headers,
                                   .reply = &reply,
                                   .sink = take_slice,
                                   .sink_ctx = &slice,
                                   .ranged = true,
                                   .range_first = range->off,
                                   .range_last = range->off + range->len - 1,
                                   .total_timeout_ms = left};

    http_response_init(&answer);
    buf_init(&reply, LIMIT_TOKEN);
    if (left < 0)
        return err_set(e, ERR_TIMEOUT, "no time left to ask for it");
    r->counters.blob_gets++;
    int rc = registry_exchange(r, ref, path, &request, &answer, e);
    if (rc == 0 && answer.status == 416)
        rc = err_set(e, ERR_CORRUPT, "registry %s: the blob is shorter than it should be",
                     ref->host);
    if (rc == 0 && out->len - before != range->len)
        rc = err_set(e, ERR_NET, "registry %s: the answer is not the range that was asked for",
                     ref->host);
    if (rc < 0)
        out->len = before;
    else
        r->counters.blob_bytes += range->len;
    return rc;
}

int registry_blob_range(struct registry *r, const struct oci_ref *ref,
                        const struct registry_range *range, struct buf *out, struct err *e)
{
    struct retry retry = registry_retry(r);
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *path = mem_printf("blobs/%s", digest_print(&range->blob, text));

    if (!path)
        return err_nomem(e, "request");
    if (range->len == 0)
        return 0;
    while (range_once(r, ref, path, range, out, e) < 0) {
        if ((range->deadline_ms && clock_ms() >= range->deadline_ms) || !retry_again(&retry, e))
            return err_in(e, "blob %s", digest_print(&range->blob, text));
        r->counters.retries++;
    }
    return 0;
}
