/* SPDX-License-Identifier: MIT */
/*
 * A remote store: its files verified and kept, its chunks as the local store's source. What it sends
 * is as hostile as an image: everything named by a digest is held to it, everything else is decoded
 * before it is kept.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/remote.h"
#include "bake/remote/internal.h"
#include "bake/remote/remote.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { WAIT_FIRST_MS = 250, WAIT_MAX_MS = 4000 };

const char *remote_kind_name(enum remote_kind kind)
{
    return kind == REMOTE_LAYER ? "layer" : kind == REMOTE_TEMPLATE ? "template" : "alias";
}

/* ---- Life ---- */

static int fetch_chunk(void *ctx, const struct digest *chunk, int64_t deadline_ms,
                       struct buf *stored, struct err *e)
{
    struct remote *r = ctx;
    size_t before = stored->len;
    int rc = r->ops->chunk(r->self, chunk, deadline_ms, stored, e);
    if (rc == 0) {
        atomic_fetch_add(&r->chunks_fetched, 1);
        atomic_fetch_add(&r->chunk_bytes_fetched, stored->len - before);
    }
    return rc;
}

int remote_open(struct remote **out, struct store *s, const struct remote_options *o, struct err *e)
{
    AUTO_REMOTE struct remote *r = mem_zalloc(sizeof(*r));
    if (!r)
        return err_nomem(e, "remote store");
    r->store = s;
    r->cancel = o->cancel;
    int rc = remote_known_new(&r->known, e);
    if (rc == 0)
        rc = strncmp(o->url, "oci://", 6) == 0 ? remote_oci_open(r, o, e)
                                               : remote_tree_open(r, o, e);
    if (rc < 0)
        return rc;
    r->source = (struct chunk_source){fetch_chunk, r};
    store_set_source(s, &r->source);
    *out = MOVE(r);
    return 0;
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    if (r->source.fetch)
        store_set_source(r->store, NULL);
    remote_claims_free(r->claims);
    if (r->ops)
        r->ops->close(r->self);
    remote_known_free(r->known);
    free(r->name);
    free(r);
}

const char *remote_name(const struct remote *r)
{
    return r->name;
}

bool remote_is_writable(const struct remote *r)
{
    return r->writable;
}

struct remote_stats remote_stats(const struct remote *r)
{
    return (struct remote_stats){
        .layers_taken = atomic_load(&r->layers_taken),
        .templates_taken = atomic_load(&r->templates_taken),
        .layers_sent = atomic_load(&r->layers_sent),
        .templates_sent = atomic_load(&r->templates_sent),
        .chunks_sent = atomic_load(&r->chunks_sent),
        .chunk_bytes_sent = atomic_load(&r->chunk_bytes_sent),
        .chunks_fetched = atomic_load(&r->chunks_fetched),
        .chunk_bytes_fetched = atomic_load(&r->chunk_bytes_fetched),
        .requests = r->ops->requests(r->self),
        .claims_lost = remote_claims_lost(r->claims),
    };
}

int remote_wait(struct remote *r, unsigned *round, struct err *e)
{
    long wait = WAIT_FIRST_MS;
    for (unsigned i = 0; i < *round && wait < WAIT_MAX_MS; i++)
        wait *= 2;
    (*round)++;
    return cancel_sleep_ms(r->cancel, wait < WAIT_MAX_MS ? wait : WAIT_MAX_MS, e);
}

/* ---- Files ---- */

int remote_fetch_file(struct remote *r, const char *path, const struct digest *wanted,
                      struct buf *out, struct err *e)
{
    int rc = r->ops->file(r->self, path, out, e);
    struct digest got;
    if (rc < 0 || !wanted)
        return rc;
    digest_bytes(&got, out->data, out->len);
    if (digest_equal(&got, wanted))
        return 0;
    return err_set(e, ERR_DIGEST, "%s: %s: its bytes hash to something else", r->name, path);
}

int remote_keep_file(struct remote *r, const char *path, const struct buf *bytes, struct err *e)
{
    char directory[REMOTE_PATH_MAX];
    snprintf(directory, sizeof(directory), "%.*s", (int)strcspn(path, "/"), path);
    int rc = file_make_dirs(store_dir(r->store), directory, e);
    return rc < 0 ? rc
                  : file_put(store_tmp_dir(r->store), store_dir(r->store), path, bytes->data,
                             bytes->len, e);
}

int remote_take_map(struct remote *r, const struct digest *map, struct block_map **out,
                    struct err *e)
{
    struct err here = ERR_INIT;
    if (store_get_map(r->store, map, out, &here) == 0)
        return 0;
    char path[REMOTE_PATH_MAX];
    char hex[DIGEST_TEXT_MAX];
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    snprintf(path, sizeof(path), "disks/%s", digest_hex(map, hex));
    if (map->algorithm != DIGEST_SHA256)
        return err_set(e, ERR_CORRUPT, "%s: a block map that is not named by its sha256", r->name);
    int rc = remote_fetch_file(r, path, map, &bytes, e);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    if (rc == 0)
        rc = block_map_decode(&m, bytes.data, bytes.len, e);
    if (rc == 0)
        rc = remote_keep_file(r, path, &bytes, e);
    if (rc == 0)
        *out = MOVE(m);
    return rc;
}

/* ---- Units ---- */

void remote_unit_fini(struct remote_unit *u)
{
    free(u->chunks);
    *u = (struct remote_unit){0};
}

int remote_unit_add_file(struct remote_unit *u, struct err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int len = u->file_count < REMOTE_FILES_MAX
                  ? vsnprintf(u->files[u->file_count], REMOTE_PATH_MAX, fmt, args)
                  : -1;
    va_end(args);
    if (len < 0 || len >= REMOTE_PATH_MAX)
        return err_set(e, ERR_LIMIT, "too many files, or too long a name, for a remote store");
    u->file_count++;
    return 0;
}

int remote_unit_add_map(struct remote_unit *u, struct store *s, const struct digest *map,
                        struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    char hex[DIGEST_TEXT_MAX];
    int rc = store_get_map(s, map, &m, e);
    if (rc == 0)
        rc = remote_unit_add_file(u, e, "disks/%s", digest_hex(map, hex));
    if (rc < 0)
        return rc;
    size_t count = block_map_count(m);
    size_t capacity = u->chunk_count;
    rc = mem_grow(&u->chunks, &capacity, u->chunk_count + count, sizeof(*u->chunks), e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct digest *chunk = &block_map_extent(m, i)->chunk;
        if (i == 0 || !digest_equal(chunk, &block_map_extent(m, i - 1)->chunk))
            u->chunks[u->chunk_count++] = *chunk;
    }
    return rc;
}

static int compare(const void *a, const void *b)
{
    return digest_compare(a, b);
}

void remote_unit_sort(struct remote_unit *u)
{
    size_t kept = 0;
    if (u->chunk_count > 1)
        qsort(u->chunks, u->chunk_count, sizeof(*u->chunks), compare);
    for (size_t i = 0; i < u->chunk_count; i++) {
        if (i == 0 || !digest_equal(&u->chunks[i], &u->chunks[kept - 1]))
            u->chunks[kept++] = u->chunks[i];
    }
    u->chunk_count = kept;
}

int remote_publish(struct remote *r, const struct remote_unit *u, struct err *e)
{
    int rc = r->ops->publish(r->self, u, e);
    if (rc < 0)
        return err_in(e, "publishing %s %s", remote_kind_name(u->kind), u->name);
    if (u->kind == REMOTE_LAYER)
        atomic_fetch_add(&r->layers_sent, 1);
    if (u->kind == REMOTE_TEMPLATE)
        atomic_fetch_add(&r->templates_sent, 1);
    return 0;
}

int remote_taken(int rc, bool *taken, struct err *e)
{
    *taken = rc == 0;
    if (rc == -ERR_CORRUPT || rc == -ERR_DIGEST)
        log_event(LOG_WARN, "bake", "made here instead: %s", e->text);
    if (rc != -ERR_NOTFOUND && rc != -ERR_CORRUPT && rc != -ERR_DIGEST)
        return rc;
    err_clear(e);
    return 0;
}
