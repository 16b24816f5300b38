/* SPDX-License-Identifier: MIT */
/*
 * Pulls: manifests into memory, blobs into files.
 *
 * A blob is hashed as it arrives, beginning with what the file already holds, and each try asks for
 * what is missing. How the answer relates to the file decides what is done with it: 206 for the
 * range asked for is appended, 200 starts over, anything else is not touched. Tries that bring
 * bytes do not use up the budget of tries, so that a big blob survives a bad line.
 */
#include "registry/internal.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define ACCEPT_MANIFESTS                                                                           \
    "Accept: application/vnd.oci.image.index.v1+json, "                                            \
    "application/vnd.oci.image.manifest.v1+json, "                                                 \
    "application/vnd.docker.distribution.manifest.list.v2+json, "                                  \
    "application/vnd.docker.distribution.manifest.v2+json"

enum {
    HASH_BUFFER = 1 << 20,
    PROGRESS_BYTES = 1 << 20,
    MAX_BAD_RANGES = 2 /* then the whole is asked for */
};

static const char *const manifest_headers[] = {ACCEPT_MANIFESTS, NULL};

/* ---- Manifests -------------------------------------------------------------------------- */

/* "manifests/<digest or tag>" */
static char *manifest_path(const struct oci_ref *ref)
{
    char digest[DIGEST_TEXT_MAX];

    return mem_printf("manifests/%s",
                      ref->has_digest ? digest_print(&ref->digest, digest) : ref->tag);
}

/* Says which image an error is about, where the registry has judged it. */
static int image_error(const struct oci_ref *ref, struct err *e)
{
    AUTO_FREE char *name = oci_ref_print(ref);

    if (e->class == ERR_NOTFOUND) {
        err_set(e, ERR_NOTFOUND, "image %s: not found in the registry", name ? name : "");
        return err_hint(e, "check the name and the tag");
    }
    if (e->class == ERR_DENIED || e->class == ERR_DIGEST || e->class == ERR_UNSUPPORTED)
        return err_in(e, "image %s", name ? name : "");
    return -(int)e->class;
}

static int check_registry_ref(const struct oci_ref *ref, struct err *e)
{
    return ref->transport == OCI_REGISTRY
               ? 0
               : err_set(e, ERR_INPUT, "%s is an image layout, not a registry", ref->repository);
}

static int head_once(struct registry *r, const struct oci_ref *ref, const char *path,
                     struct digest *out, struct err *e)
{
    struct http_request request = {.method = "HEAD", .headers = manifest_headers};
    AUTO_HTTP_RESPONSE struct http_response response;

    http_response_init(&response);
    r->counters.manifest_heads++;
    if (registry_exchange(r, ref, path, &request, &response, e) < 0)
        return -(int)e->class;
    if (!response.content_digest)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: sends no digest with a HEAD", ref->host);
    if (digest_parse(out, response.content_digest, e) < 0)
        return err_in(e, "registry %s", ref->host);
    return 0;
}

int registry_head(struct registry *r, const struct oci_ref *ref, struct digest *out, struct err *e)
{
    struct retry retry = registry_retry(r);

    if (check_registry_ref(ref, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *path = manifest_path(ref);
    if (!path)
        return err_nomem(e, "request");
    while (head_once(r, ref, path, out, e) < 0) {
        if (!retry_again(&retry, e))
            return image_error(ref, e);
        r->counters.retries++;
    }
    return 0;
}

/* Digest of a manifest's bytes, in the algorithm that is asked for. */
static int hash_bytes(struct digest *out, enum digest_algorithm algorithm, const struct buf *body,
                      struct err *e)
{
    AUTO_HASHER struct hasher *hasher = NULL;

    if (hasher_new(&hasher, algorithm, e) < 0)
        return -(int)e->class;
    hasher_add(hasher, body->data, body->len);
    hasher_finish(hasher, out);
    return 0;
}

/* The bytes must have the digest that was asked for, else the one that the registry states. */
static int check_manifest(struct digest *out, const struct oci_ref *ref,
                          const struct http_response *response, const struct buf *body,
                          struct err *e)
{
    char wanted_text[DIGEST_TEXT_MAX];
    char got_text[DIGEST_TEXT_MAX];
    struct digest wanted = ref->digest;

    if (!ref->has_digest) {
        if (!response->content_digest) {
            digest_bytes(out, body->data, body->len);
            return 0;
        }
        if (digest_parse(&wanted, response->content_digest, e) < 0)
            return err_in(e, "registry %s", ref->host);
    }
    if (hash_bytes(out, wanted.algorithm, body, e) < 0)
        return -(int)e->class;
    if (!digest_equal(out, &wanted))
        return err_set(e, ERR_DIGEST, "manifest: expected %s, received %s",
                       digest_print(&wanted, wanted_text), digest_print(out, got_text));
    return 0;
}

static int manifest_once(struct registry *r, const struct oci_ref *ref, const char *path,
                         struct oci_descriptor *out, struct buf *body, struct err *e)
{
    struct http_request request = {.method = "GET", .headers = manifest_headers, .reply = body};
    AUTO_HTTP_RESPONSE struct http_response response;
    struct oci_descriptor d = {0};

    http_response_init(&response);
    r->counters.manifest_gets++;
    if (registry_exchange(r, ref, path, &request, &response, e) < 0)
        return -(int)e->class;
    if (response.status == 416)
        return err_set(e, ERR_UNSUPPORTED, "registry %s: status 416", ref->host);
    if (check_manifest(&d.digest, ref, &response, body, e) < 0)
        return -(int)e->class;
    d.size = body->len;
    d.media_type = response.content_type ? MOVE(response.content_type) : mem_strdup("");
    if (!d.media_type)
        return err_nomem(e, "manifest");
    *out = d;
    return 0;
}

int registry_manifest(struct registry *r, const struct oci_ref *ref, struct oci_descriptor *out,
                      struct buf *body, struct err *e)
{
    struct retry retry = registry_retry(r);
    bool refetched = false;

    buf_init(body, LIMIT_MANIFEST);
    if (check_registry_ref(ref, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *path = manifest_path(ref);
    if (!path)
        return err_nomem(e, "request");
    while (manifest_once(r, ref, path, out, body, e) < 0) {
        bool again = e->class == ERR_DIGEST && !refetched;
        if (again)
            refetched = true;
        else
            again = retry_again(&retry, e);
        if (!again) {
            buf_fini(body);
            return image_error(ref, e);
        }
        r->counters.retries++;
    }
    return 0;
}

/* ---- Blobs ------------------------------------------------------------------------------ */

struct download {
    struct registry *registry;
    const struct oci_descriptor *blob;
    int fd;
    struct hasher *hasher; /* of the first `have` bytes of the file */
    uint64_t have;
    uint64_t fresh;                           /* bytes that came over the line, in all tries */
    bool started;                             /* the answer at hand has been judged */
    unsigned bad_ranges;                      /* answers that were not the range asked for */
    const struct registry_progress *progress; /* may be NULL */
};

static int start_over(struct download *d, struct err *e)
{
    struct digest ignored;

    if (ftruncate(d->fd, 0) < 0)
        return err_sys(e, "truncating a partial download");
    hasher_finish(d->hasher, &ignored);
    d->have = 0;
    return 0;
}

/* Hashes what an earlier try or run has left in the file. */
static int hash_existing(struct download *d, struct err *e)
{
    struct stat status;
    AUTO_FREE uint8_t *data = NULL;

    if (fstat(d->fd, &status) < 0)
        return err_sys(e, "reading the size of a partial download");
    uint64_t size = (uint64_t)status.st_size;
    if (size > d->blob->size)
        return start_over(d, e);
    data = mem_zalloc(HASH_BUFFER);
    if (!data)
        return err_nomem(e, "partial download");
    while (d->have < size) {
        uint64_t left = size - d->have;
        size_t len = left < HASH_BUFFER ? (size_t)left : HASH_BUFFER;

        if (cancel_check(d->registry->options.cancel, e) < 0 ||
            file_pread_full(d->fd, data, len, d->have, e) < 0)
            return -(int)e->class;
        hasher_add(d->hasher, data, len);
        d->have += len;
    }
    return 0;
}

/* Whether the body of this answer goes on where the file ends. */
static int judge_answer(struct download *d, const struct http_response *r, struct err *e)
{
    if (r->status != 206 && r->status != 200)
        return err_set(e, ERR_UNSUPPORTED, "status %d for a blob", r->status);
    if (r->status == 200)
        return d->have > 0 ? start_over(d, e) : 0;
    if (r->has_range && r->range_first == d->have &&
        (!r->has_range_total || r->range_total == d->blob->size))
        return 0;
    bool other_size = r->has_range && r->has_range_total && r->range_total != d->blob->size;
    d->bad_ranges++;
    if (other_size && start_over(d, e) < 0)
        return -(int)e->class;
    return err_set(e, ERR_NET, "the answer is not the range that was asked for");
}

static int take_bytes(void *ctx, const struct http_response *r, const void *data, size_t len,
                      struct err *e)
{
    struct download *d = ctx;

    if (!d->started && judge_answer(d, r, e) < 0)
        return -(int)e->class;
    d->started = true;
    if (len > d->blob->size - d->have)
        return err_set(e, ERR_DIGEST, "expected %llu bytes, the registry sends more",
                       (unsigned long long)d->blob->size);
    if (file_pwrite_full(d->fd, data, len, d->have, e) < 0)
        return -(int)e->class;
    hasher_add(d->hasher, data, len);
    d->have += len;
    d->fresh += len;
    d->registry->counters.blob_bytes += len;
    if (d->progress)
        d->progress->arrived(d->progress->ctx, len);
    return 0;
}

/* One request for what is missing. */
static int blob_once(struct download *d, const struct oci_ref *ref, const char *path, struct err *e)
{
    AUTO_BUF struct buf reply;
    AUTO_HTTP_RESPONSE struct http_response response;
    bool ranged = d->have > 0 && d->bad_ranges < MAX_BAD_RANGES;
    struct http_request request = {.method = "GET",
                                   .reply = &reply,
                                   .sink = take_bytes,
                                   .sink_ctx = d,
                                   .ranged = ranged,
                                   .range_first = d->have};

    buf_init(&reply, LIMIT_TOKEN);
    http_response_init(&response);
    d->started = false;
    d->registry->counters.blob_gets++;
    if (registry_exchange(d->registry, ref, path, &request, &response, e) < 0)
        return -(int)e->class;
    if (response.status == 416) {
        if (start_over(d, e) < 0)
            return -(int)e->class;
        return err_set(e, ERR_NET, "registry %s: refuses the range asked for", ref->host);
    }
    if (d->have < d->blob->size)
        return err_set(e, ERR_NET, "registry %s: the answer ended after %llu of %llu bytes",
                       ref->host, (unsigned long long)d->have, (unsigned long long)d->blob->size);
    return 0;
}

static int check_digest(struct download *d, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    struct digest got;

    hasher_finish(d->hasher, &got);
    if (digest_equal(&got, &d->blob->digest))
        return 0;
    return err_set(e, ERR_DIGEST, "the bytes received have the digest %s",
                   digest_print(&got, text));
}

/* Requests until the file is whole, then checks it. */
static int fill(struct download *d, const struct oci_ref *ref, const char *path, struct err *e)
{
    struct retry retry = registry_retry(d->registry);
    uint64_t before = d->fresh;

    while (d->have < d->blob->size) {
        if (blob_once(d, ref, path, e) == 0)
            break;
        if (d->fresh - before >= PROGRESS_BYTES) {
            before = d->fresh;
            retry.used = 0;
        }
        if (!retry_again(&retry, e))
            return -(int)e->class;
        d->registry->counters.retries++;
    }
    return check_digest(d, e);
}

static int download(struct download *d, const struct oci_ref *ref, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *path = mem_printf("blobs/%s", digest_print(&d->blob->digest, text));

    if (!path)
        return err_nomem(e, "request");
    if (hash_existing(d, e) < 0)
        return -(int)e->class;
    /* Bytes of an earlier run that turn out wrong do not count as a failed fetch. */
    unsigned refetches = d->have > 0 ? 2 : 1;
    while (fill(d, ref, path, e) < 0) {
        if (e->class != ERR_DIGEST)
            return -(int)e->class;
        struct err saved = *e;
        if (start_over(d, e) < 0)
            return -(int)e->class;
        if (refetches-- == 0) {
            *e = saved;
            return -(int)e->class;
        }
        d->registry->counters.retries++;
    }
    return 0;
}

int registry_blob(struct registry *r, const struct oci_ref *ref, const struct oci_descriptor *d,
                  int fd, const struct registry_progress *progress, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_HASHER struct hasher *hasher = NULL;

    if (check_registry_ref(ref, e) < 0 || hasher_new(&hasher, d->digest.algorithm, e) < 0)
        return -(int)e->class;
    struct download state = {
        .registry = r, .blob = d, .fd = fd, .hasher = hasher, .progress = progress};
    if (download(&state, ref, e) < 0)
        return err_in(e, "blob %s", digest_print(&d->digest, text));
    return 0;
}
