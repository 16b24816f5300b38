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
    char *url; /* where it goes on */
    bool same_origin;
};

/* Takes where the upload goes on from an answer. */
static int take_location(struct upload *u, const char *base, const struct http_response *answer,
                         struct err *e)
{
    char *url = NULL;

    if (!answer->location)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: does not say where an upload goes on",
                       u->ref->host);
    if (http_redirect(&url, &u->same_origin, base, answer->location, e) < 0)
        return err_in(e, "registry %s: upload", u->ref->host);
    free(u->url);
    u->url = url;
    return 0;
}

/* Asks for an upload; *mounted: there is nothing left to do. */
static int begin(struct upload *u, const char *mount_from, bool *mounted, struct err *e)
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
    return *mounted ? 0 : take_location(u, base, &answer, e);
}

/* One request to where the upload goes on. */
static int send_to(struct upload *u, struct http_request *request, struct err *e)
{
    AUTO_HTTP_RESPONSE struct http_response answer;
    AUTO_BUF struct buf reply;
    struct auth_use use = {0};

    http_response_init(&answer);
    buf_init(&reply, LIMIT_TOKEN);
    request->reply = &reply;
    if (u->same_origin && auth_current(u->registry->auth, u->ref, &use, e) < 0)
        return -(int)e->class;
    request->authorization = use.header;
    int rc = http_perform(u->registry->http, request, &answer, e);
    auth_use_fini(&use);
    if (rc == 0 && answer.status / 100 != 2) {
        rc = http_status_error(e, &answer, "upload");
        if (answer.status == 401 || answer.status == 404) { /* ran out: the whole is tried again */
            e->class = ERR_NET;
            rc = -ERR_NET;
        }
    }
    if (rc < 0)
        return err_in(e, "registry %s", u->ref->host);
    if (strcmp(request->method, "PATCH") != 0)
        return 0;
    AUTO_FREE char *base = mem_strdup(u->url);
    return base ? take_location(u, base, &answer, e) : err_nomem(e, "request");
}

static int send_piece(struct upload *u, uint64_t off, size_t len, uint8_t *data, struct err *e)
{
    char range[64];
    const char *const headers[] = {octets[0], range, NULL};
    struct http_request request = {
        .method = "PATCH", .url = u->url, .headers = headers, .body = data, .body_len = len};

    snprintf(range, sizeof(range), "Content-Range: %llu-%llu", (unsigned long long)off,
             (unsigned long long)(off + len - 1));
    if (source_read_full(u->from, off, data, len, e) < 0)
        return -(int)e->class;
    return send_to(u, &request, e);
}

/* Closes the upload with the last `len` bytes. */
static int finish(struct upload *u, uint64_t off, size_t len, uint8_t *data, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *url = mem_printf("%s%cdigest=%s", u->url, strchr(u->url, '?') ? '&' : '?',
                                     digest_print(&u->blob->digest, text));
    struct http_request request = {
        .method = "PUT", .url = url, .headers = octets, .body = data, .body_len = len};

    if (!url)
        return err_nomem(e, "request");
    if (len > 0 && source_read_full(u->from, off, data, len, e) < 0)
        return -(int)e->class;
    return send_to(u, &request, e);
}

static int upload_once(struct upload *u, const char *mount_from, bool *mounted, struct err *e)
{
    uint64_t size = u->blob->size;
    size_t most = size < PIECE_LEN ? (size_t)size : PIECE_LEN;
    AUTO_FREE uint8_t *data = mem_zalloc(most);

    if (!data)
        return err_nomem(e, "upload");
    if (begin(u, mount_from, mounted, e) < 0 || *mounted)
        return -(int)e->class;
    if (size <= PIECE_LEN)
        return finish(u, 0, most, data, e);
    for (uint64_t off = 0; off < size; off += PIECE_LEN) {
        uint64_t left = size - off;
        size_t len = left < PIECE_LEN ? (size_t)left : PIECE_LEN;

        if (cancel_check(u->registry->options.cancel, e) < 0 ||
            send_piece(u, off, len, data, e) < 0)
            return -(int)e->class;
    }
    return finish(u, size, 0, data, e);
}

int registry_push_blob(struct registry *r, const struct oci_ref *ref,
                       const struct registry_upload *upload, bool *sent, struct err *e)
{
    struct retry retry = registry_retry(r);
    const struct oci_descriptor *d = upload->blob;
    struct upload u = {.registry = r, .ref = ref, .blob = d, .from = upload->from};
    char text[DIGEST_TEXT_MAX];
    bool there = false;
    bool mounted = false;

    if (sent)
        *sent = false;
    int rc = registry_has_blob(r, ref, &d->digest, &there, e);
    if (rc < 0 || there)
        return rc < 0 ? err_in(e, "blob %s", digest_print(&d->digest, text)) : 0;
    while ((rc = upload_once(&u, upload->mount_from, &mounted, e)) < 0) {
        if (!retry_again(&retry, e))
            break;
        r->counters.retries++;
    }
    free(u.url);
    if (rc < 0)
        return err_in(e, "blob %s", digest_print(&d->digest, text));
    if (sent)
        *sent = !mounted;
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
