/* SPDX-License-Identifier: MIT */
/*
 * Objects under names, kept by someone else: a directory that a web server serves (read only), or a
 * bucket that speaks S3. What bake's remote stores are built on (docs/formats/remote-store.md).
 *
 * Sources: Amazon S3 API reference (GetObject, HeadObject, PutObject, DeleteObject, conditional
 * requests), "Signature Version 4" in the AWS General Reference; RFC 9110.
 */
#ifndef TB2_REGISTRY_OBJECT_H
#define TB2_REGISTRY_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

/* Pointers are borrowed until object_store_free. */
struct object_options {
    const char *const *plain_http_hosts; /* as in registry_options */
    unsigned tries;                      /* of one request; 0: 6 */
    int64_t retry_wait_ms;               /* before the second; doubles; 0: 200 */
    const struct cancel *cancel;         /* may be NULL */
};

/* What an object was when it was read or written; empty when the far end does not say. */
enum { OBJECT_VERSION_MAX = 160 };
struct object_version {
    char text[OBJECT_VERSION_MAX]; /* an ETag, quotes included */
};

struct object_stats {
    uint64_t gets, heads, puts, deletes; /* answered, whatever the answer */
    uint64_t retries;
    uint64_t bytes_in, bytes_out; /* of objects that were read and written */
};

struct object_store;

/*
 * Opens a place by its URL; nothing is asked of it yet.
 *
 *   http://HOST/PATH, https://HOST/PATH
 *   s3://BUCKET[/PREFIX][?endpoint=URL][&region=NAME][&style=path|virtual]
 *
 * What an s3 URL leaves out comes from AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
 * AWS_DEFAULT_REGION, then the profile in ~/.aws/config. Keys: AWS_ACCESS_KEY_ID,
 * AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, else the profile (AWS_PROFILE, else "default") in
 * ~/.aws/credentials. With an endpoint of one's own the bucket is part of the path unless `style`
 * says otherwise. ERR_INPUT for a URL that is none of these, ERR_DENIED without keys. Keys are in
 * no message.
 */
int object_store_open(struct object_store **out, const char *url, const struct object_options *o,
                      struct err *e) MUST_USE;
void object_store_free(struct object_store *s);
DEFINE_AUTO(object_store, object_store_free)
#define AUTO_OBJECT_STORE CLEANUP(object_store_free_auto_)

/* For people: without keys or query; borrowed. */
const char *object_store_name(const struct object_store *s);
bool object_store_is_writable(const struct object_store *s);
struct object_stats object_stats(const struct object_store *s);

/*
 * The operations below are thread-safe. Names are relative paths of letters, digits, '-', '_', '.'
 * and '/'. Busy and failing servers (5xx, 429, lost connections) are tried again, after random
 * waits that grow. Errors name the place: ERR_NET, ERR_DENIED (also: this machine's clock is wrong),
 * ERR_INPUT (no such bucket, wrong region), ERR_UNSUPPORTED, ERR_TIMEOUT, ERR_CANCELLED.
 */

/* Appends the object's bytes to `out`; ERR_NOTFOUND, ERR_LIMIT past the buffer's ceiling. `version`
 * may be NULL. Gives up at `deadline_ms` of clock_ms (0: none). */
int object_get(struct object_store *s, const char *name, int64_t deadline_ms, struct buf *out,
               struct object_version *version, struct err *e) MUST_USE;

int object_has(struct object_store *s, const char *name, bool *found, struct err *e) MUST_USE;

enum object_condition {
    OBJECT_ANY,    /* whatever is there is replaced */
    OBJECT_ABSENT, /* only if nothing is there (If-None-Match: *) */
    OBJECT_SAME,   /* only if it is still `*version` (If-Match) */
};

/*
 * Writes an object whole. ERR_BUSY when the condition does not hold; after lost answers that may be
 * this caller's own doing, so look who is there. `version` (NULL with OBJECT_ANY: not wanted) gets
 * what it is now.
 */
int object_put(struct object_store *s, const char *name, const struct buf *data,
               enum object_condition condition, struct object_version *version,
               struct err *e) MUST_USE;

/* Removes an object; one that is gone is success. With `version`, only if it is still that: else
 * ERR_BUSY. Servers that cannot compare on removal remove. When cancelled or out of time it is tried
 * once all the same, for a few seconds: what was claimed is to be given back. */
int object_delete(struct object_store *s, const char *name, const struct object_version *version,
                  struct err *e) MUST_USE;

#endif
