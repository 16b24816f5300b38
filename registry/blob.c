/* SPDX-License-Identifier: MIT */
/*
 * Pulls of blobs into files.
 *
 * A blob is hashed as it arrives, beginning with what the file already holds, and each try asks for
 * what is missing, whoever brought the rest. How the answer relates to the file decides what is done
 * with it: 206 for the range asked for is appended, 200 starts over, anything else is not touched.
 * Tries that get further than any before do not use up the budget of tries, so that a big blob
 * survives a bad line.
 */
#include "registry/internal.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    HASH_BUFFER = 1 << 20,
    PROGRESS_BYTES = 1 << 20,
    MAX_BAD_RANGES = 2 /* then the whole is asked for */
};

/* Some servers compress unless told not to; digests are over the bytes as they are. */
const char *const blob_headers[] = {"Accept-Encoding: identity", NULL};

static int start_over(struct download *d, struct err *e)
{
    struct digest ignored;

    segments_free(d->segments);
    d->segments = NULL;
    if (ftruncate(d->fd, 0) < 0)
        return err_sys(e, "truncating a partial download");
    hasher_finish(d->hasher, &ignored);
    d->have = 0;
    return 0;
}

int download_hash(struct download *d, uint64_t end, struct err *e)
{
    AUTO_FREE uint8_t *data = mem_zalloc(HASH_BUFFER);

    if (!data)
        return err_nomem(e, "partial download");
    while (d->have < end) {
        uint64_t left = end - d->have;
        size_t len = left < HASH_BUFFER ? (size_t)left : HASH_BUFFER;

        if (cancel_check(d->registry->options.cancel, e) < 0 ||
            file_pread_full(d->fd, data, len, d->have, e) < 0)
            return -(int)e->class;
        hasher_add(d->hasher, data, len);
        d->have += len;
    }
    return 0;
}

/* Looks at what an earlier try or run has left in the file. */
static int take_existing(struct download *d, struct err *e)
{
    struct stat status;

    if (fstat(d->fd, &status) < 0)
        return err_sys(e, "reading the size of a partial download");
    uint64_t size = (uint64_t)status.st_size;
    if (segments_load(&d->segments, d, size, e) < 0)
        return -(int)e->class;
    if (d->segments)
        return 0;
    return size > d->blob->size ? start_over(d, e) : download_hash(d, size, e);
}

/* Whether the body of this answer goes on where the file ends. */
static int judge_answer(struct download *d, const struct http_response *r, struct err *e)
{
    d->encoded = r->encoding != NULL;
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
    d->registry->counters.blob_bytes += len;
    if (d->progress)
        d->progress->arrived(d->progress->ctx, len);
    return 0;
}

/* One request for what is missing. */
static int blob_once(struct download *d, const struct stop *stop, struct err *e)
{
    AUTO_BUF struct buf reply;
    AUTO_HTTP_RESPONSE struct http_response response;
    bool ranged = d->have > 0 && d->bad_ranges < MAX_BAD_RANGES;
    struct http_request request = {.method = "GET",
                                   .headers = blob_headers,
                                   .reply = &reply,
                                   .sink = take_bytes,
                                   .sink_ctx = d,
                                   .ranged = ranged,
                                   .range_first = d->have,
                                   .answer_timeout_ms = stop->endpoint->timeout_ms};

    buf_init(&reply, LIMIT_TOKEN);
    http_response_init(&response);
    d->started = false;
    d->registry->counters.blob_gets++;
    if (stop_exchange(d->registry, stop, d->path, &request, &response, e) < 0)
        return -(int)e->class;
    if (response.status == 416) {
        if (start_over(d, e) < 0)
            return -(int)e->class;
        return err_set(e, ERR_NET, "registry %s: refuses the range asked for", stop->ref->host);
    }
    if (d->have < d->blob->size)
        return err_set(e, ERR_NET, "registry %s: the answer ended after %llu of %llu bytes",
                       stop->ref->host, (unsigned long long)d->have,
                       (unsigned long long)d->blob->size);
    return 0;
}

/* Requests, one after another, until the file is whole. */
static int fill_in_order(struct download *d, const struct stop *stop, struct err *e)
{
    struct retry retry = stop_retry(d->registry, stop);

    while (d->have < d->blob->size) {
        if (blob_once(d, stop, e) == 0)
            break;
        /* A server that starts over each time gets nowhere, however much it sends. */
        if (d->have >= d->best + PROGRESS_BYTES) {
            d->best = d->have;
            retry.used = 0;
        }
        if (!retry_again(&retry, e))
            return -(int)e->class;
        d->registry->counters.retries++;
    }
    return 0;
}

static int check_digest(struct download *d, const struct stop *stop, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    struct digest got;

    hasher_finish(d->hasher, &got);
    if (digest_equal(&got, &d->blob->digest))
        return 0;
    return err_set(e, ERR_DIGEST, "%s %s: the bytes received have the digest %s%s",
                   stop->endpoint->mirror ? "mirror" : "registry", stop->ref->host,
                   digest_print(&got, text),
                   d->encoded ? " (they came with a Content-Encoding)" : "");
}

/* Makes the file whole, then checks it. */
static int fill(struct download *d, const struct stop *stop, struct err *e)
{
    if (segments_wanted(d) && segments_fill(d, stop, e) < 0)
        return -(int)e->class;
    if (fill_in_order(d, stop, e) < 0)
        return -(int)e->class;
    return check_digest(d, stop, e);
}

static int blob_at(void *ctx, const struct stop *stop, struct err *e)
{
    struct download *d = ctx;
    char text[DIGEST_TEXT_MAX];
    /* Bytes of an earlier run or of others that turn out wrong do not count as a failed fetch. */
    bool others = d->have > 0 || d->segments;
    unsigned refetches = !stop->last ? 0 : others ? 2 : 1;

    d->bad_ranges = 0;
    while (fill(d, stop, e) < 0) {
        if (e->class != ERR_DIGEST)
            return -(int)e->class;
        struct err saved = *e;
        d->no_ranges = true; /* nor by the next: some say one range and send another */
        if (start_over(d, e) < 0)
            return -(int)e->class;
        if (refetches-- == 0) {
            *e = saved;
            return -(int)e->class;
        }
        d->registry->counters.retries++;
    }
    log_event(LOG_DEBUG, "registry", "blob %s came from %s", digest_print(&d->blob->digest, text),
              stop->endpoint->host);
    return 0;
}

static int download(struct download *d, const struct oci_ref *ref, struct err *e)
{
    const struct errand errand = {ref, true, blob_at, d, NULL};

    if (take_existing(d, e) < 0)
        return -(int)e->class;
    return route_walk(d->registry, &errand, e);
}

int registry_blob(struct registry *r, const struct oci_ref *ref, const struct oci_descriptor *d,
                  int fd, const struct registry_progress *progress, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_HASHER struct hasher *hasher = NULL;

    if (ref->transport != OCI_REGISTRY)
        return err_set(e, ERR_INPUT, "%s is an image layout, not a registry", ref->repository);
    if (hasher_new(&hasher, d->digest.algorithm, e) < 0)
        return -(int)e->class;
    AUTO_FREE char *path = mem_printf("blobs/%s", digest_print(&d->digest, text));
    if (!path)
        return err_nomem(e, "request");
    struct download state = {
        .registry = r, .blob = d, .path = path, .fd = fd, .hasher = hasher, .progress = progress};
    int rc = download(&state, ref, e);
    segments_free(state.segments);
    return rc < 0 ? err_in(e, "blob %s", text) : 0;
}
