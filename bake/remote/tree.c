/* SPDX-License-Identifier: MIT */
/*
 * A remote store as a tree of objects, named as the files of a store are: a chunk is an object. So a
 * directory that was copied is a remote store, and the other way round
 * (docs/decisions/0014-remote-stores.md).
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/remote.h"
#include "bake/remote/internal.h"
#include "bake/remote/remote.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"
#include "registry/object.h"

#define FORMAT_TEXT "tb2-bake store 1\n"
#define FORMAT_PREFIX "tb2-bake store "

/* Requests at once while chunks are sent: they are bound by the line's delay, not by its width. */
enum { SENDERS = 8, FORMAT_SIZE_MAX = 4096 };

struct tree {
    struct remote *remote;
    struct object_store *objects;
};

/* The file that appears last. */
static int tree_has(void *self, enum remote_kind kind, const char *name, bool *there, struct err *e)
{
    struct tree *t = self;
    char path[REMOTE_PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s%s",
             kind == REMOTE_LAYER      ? "layers"
             : kind == REMOTE_TEMPLATE ? "keys"
                                       : "catalog",
             name, kind == REMOTE_LAYER ? "" : ".json");
    return object_has(t->objects, path, there, e);
}

/* Every file is where its path says. */
static int tree_find(void *self, enum remote_kind kind, const char *name, struct err *e)
{
    (void)self;
    (void)kind;
    (void)name;
    (void)e;
    return 0;
}

static int tree_file(void *self, const char *path, struct buf *out, struct err *e)
{
    struct tree *t = self;
    return object_get(t->objects, path, 0, out, NULL, e);
}

static void chunk_path(char path[REMOTE_PATH_MAX], const struct digest *d)
{
    char hex[DIGEST_TEXT_MAX];
    digest_hex(d, hex);
    snprintf(path, REMOTE_PATH_MAX, "chunks/%.2s/%s", hex, hex);
}

static int tree_chunk(void *self, const struct digest *d, int64_t deadline_ms, struct buf *stored,
                      struct err *e)
{
    struct tree *t = self;
    char path[REMOTE_PATH_MAX];
    chunk_path(path, d);
    return object_get(t->objects, path, deadline_ms, stored, NULL, e);
}

/* ---- Sending ---- */

static int send_chunk(struct tree *t, const struct digest *d, struct err *e)
{
    char path[REMOTE_PATH_MAX];
    bool there = false;
    AUTO_BUF struct buf stored;
    buf_init(&stored, CHUNK_STORED_MAX);
    chunk_path(path, d);
    int rc = object_has(t->objects, path, &there, e);
    if (rc < 0 || there)
        return rc;
    rc = store_get_stored_chunk(t->remote->store, d, &stored, e);
    struct object_version ignored;
    if (rc == 0)
        rc = object_put(t->objects, path, &stored, OBJECT_ABSENT, &ignored, e);
    if (rc == -ERR_BUSY) { /* someone sent it at the same time */
        err_clear(e);
        return 0;
    }
    if (rc < 0)
        return rc;
    atomic_fetch_add(&t->remote->chunks_sent, 1);
    atomic_fetch_add(&t->remote->chunk_bytes_sent, stored.len);
    return 0;
}

static int send_work(void *ctx, void *item, struct err *e)
{
    struct tree *t = ctx;
    const struct digest *d = item;
    struct remote_place place = {.chunk = *d};
    int rc = cancel_check(t->remote->cancel, e);
    if (rc == 0)
        rc = send_chunk(t, d, e);
    return rc < 0 ? rc : remote_known_add(t->remote->known, &place, e);
}

static int send_done(void *ctx, void *item, struct err *e)
{
    (void)ctx;
    (void)item;
    (void)e;
    return 0;
}

static int send_chunks(struct tree *t, const struct remote_unit *u, struct err *e)
{
    static const struct pool_ops ops = {.work = send_work, .done = send_done};
    AUTO_POOL struct pool *pool = NULL;
    int rc = pool_new(&pool, &ops, t, SENDERS, e);
    for (size_t i = 0; rc == 0 && i < u->chunk_count; i++) {
        if (!remote_known_find(t->remote->known, &u->chunks[i], NULL))
            rc = pool_submit(pool, &u->chunks[i], e);
    }
    return rc < 0 ? rc : pool_finish(pool, e);
}

/* Names that say what is in the file never change; the others point, and may be pointed anew. */
static bool is_pointer(const char *path)
{
    return strncmp(path, "keys/", 5) == 0 || strncmp(path, "catalog/", 8) == 0;
}

static int send_file(struct tree *t, const char *path, struct err *e)
{
    AUTO_BUF struct buf bytes;
    bool there = false;
    bool pointer = is_pointer(path);
    buf_init(&bytes, LIMIT_LAYER_INDEX + 128);
    int rc = pointer ? 0 : object_has(t->objects, path, &there, e);
    if (rc < 0 || there)
        return rc;
    rc = file_read(store_dir(t->remote->store), path, &bytes, e);
    struct object_version ignored;
    if (rc == 0)
        rc =
            object_put(t->objects, path, &bytes, pointer ? OBJECT_ANY : OBJECT_ABSENT, &ignored, e);
    if (rc == -ERR_BUSY && !pointer) { /* someone sent it at the same time */
        err_clear(e);
        return 0;
    }
    return rc;
}

static int tree_publish(void *self, const struct remote_unit *u, struct err *e)
{
    struct tree *t = self;
    int rc = send_chunks(t, u, e);
    for (size_t i = 0; rc == 0 && i < u->file_count; i++)
        rc = send_file(t, u->files[i], e);
    return rc;
}

static uint64_t tree_requests(void *self)
{
    struct tree *t = self;
    struct object_stats s = object_stats(t->objects);
    return s.gets + s.heads + s.puts + s.deletes + s.retries;
}

static void tree_close(void *self)
{
    struct tree *t = self;
    if (!t)
        return;
    object_store_free(t->objects);
    free(t);
}

/* ---- Opening ---- */

static int make_format(struct tree *t, struct err *e)
{
    AUTO_BUF struct buf text;
    struct object_version ignored;
    buf_init(&text, FORMAT_SIZE_MAX);
    int rc = buf_add_text(&text, FORMAT_TEXT, e);
    if (rc == 0)
        rc = object_put(t->objects, "format", &text, OBJECT_ABSENT, &ignored, e);
    if (rc == -ERR_BUSY) {
        err_clear(e);
        rc = 0;
    }
    return rc;
}

/* One request that tells whether the place, the keys and the clock are right. */
static int check_format(struct tree *t, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, FORMAT_SIZE_MAX);
    int rc = object_get(t->objects, "format", 0, &text, NULL, e);
    if (rc == -ERR_NOTFOUND && object_store_is_writable(t->objects)) {
        err_clear(e);
        return make_format(t, e);
    }
    if (rc == -ERR_NOTFOUND || rc == -ERR_LIMIT) {
        err_set(e, ERR_INPUT, "%s: no store is there: it has no file named format",
                object_store_name(t->objects));
        return err_hint(e, "the URL is that of a store's directory, as --store names it");
    }
    if (rc < 0)
        return rc;
    if (strcmp(buf_text(&text), FORMAT_TEXT) == 0)
        return 0;
    if (strncmp(buf_text(&text), FORMAT_PREFIX, strlen(FORMAT_PREFIX)) == 0)
        return err_set(e, ERR_UNSUPPORTED, "%s: a store of a version that is not known here",
                       object_store_name(t->objects));
    return err_set(e, ERR_INPUT, "%s: not a store: its file named format says something else",
                   object_store_name(t->objects));
}

int remote_tree_open(struct remote *r, const struct remote_options *o, struct err *e)
{
    static const struct remote_ops ops = {tree_has,     tree_find,     tree_file, tree_chunk,
                                          tree_publish, tree_requests, tree_close};
    struct object_options objects = {.plain_http_hosts = o->plain_http_hosts, .cancel = o->cancel};
    struct tree *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "remote store");
    t->remote = r;
    r->self = t;
    r->ops = &ops;
    int rc = object_store_open(&t->objects, o->url, &objects, e);
    if (rc == 0)
        rc = check_format(t, e);
    if (rc < 0)
        return rc;
    r->writable = object_store_is_writable(t->objects);
    r->name = mem_strdup(object_store_name(t->objects));
    if (!r->name)
        return err_nomem(e, "remote store");
    return r->writable ? remote_claims_new(&r->claims, t->objects, o->lease_ms, e) : 0;
}
