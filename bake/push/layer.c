/* SPDX-License-Identifier: MIT */
/*
 * Layers on their way: made once, then sent. What became of one is noted in the store
 * (docs/formats/store.md, "Pushed layers"), with the repository that has it: another one of that
 * registry can take it from there.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "bake/push/internal.h"
#include "bake/upkeep/census.h"
#include "base/file.h"
#include "base/mem.h"

enum { PUSHED_PATH_MAX = 16 + DIGEST_TEXT_MAX };

/* A blob's record. */
struct pushed {
    const struct digest *key;
    char path[PUSHED_PATH_MAX];
    struct push_blob *blob;
    char *host; /* of the registry that has it; NULL: none */
    char *repository;
    bool found;
};

static void pushed_fini(struct pushed *p)
{
    free(p->host);
    free(p->repository);
}

static void pushed_path(char path[PUSHED_PATH_MAX], const struct digest *key)
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, PUSHED_PATH_MAX, "pushed/%s.json", digest_hex(key, hex));
}

/* ---- Records ---- */

static int read_record(struct pushed *p, const struct json *j, struct err *e)
{
    int rc = json_get_digest(j, "blob", &p->blob->digest, e);
    if (rc == 0)
        rc = json_get_u64(j, "size", &p->blob->size, e);
    p->blob->diff_id = p->blob->digest;
    if (rc == 0 && json_member(j, "diff_id"))
        rc = json_get_digest(j, "diff_id", &p->blob->diff_id, e);
    return rc;
}

/* What is damaged counts as missing. */
static int load_record(struct pushed *p, struct store *s, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    const char *host = NULL;
    const char *repository = NULL;
    pushed_path(p->path, p->key);
    store_use(s, p->path); /* reading says whether it is there */
    int rc = pushed_peek(&j, s, p->key, e);
    if (rc == 0)
        rc = read_record(p, j, e);
    if (rc == 0)
        rc = json_get_string_opt(j, "host", &host, e);
    if (rc == 0)
        rc = json_get_string_opt(j, "repository", &repository, e);
    if (rc < 0) {
        bool bad = e->class == ERR_NOTFOUND || e->class == ERR_CORRUPT || e->class == ERR_INPUT ||
                   e->class == ERR_LIMIT;
        if (bad)
            err_clear(e);
        return bad ? 0 : rc;
    }
    p->found = true;
    if (!host || !repository)
        return 0;
    p->host = mem_strdup(host);
    p->repository = mem_strdup(repository);
    return p->host && p->repository ? 0 : err_nomem(e, "pushed layer");
}

static int store_record(const struct pushed *p, struct store *s, const struct oci_ref *at,
                        struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_FREE char *text = NULL;
    json_set(j, "blob", json_digest(&p->blob->digest));
    json_set(j, "size", json_new_integer((int64_t)p->blob->size));
    if (!digest_equal(&p->blob->diff_id, &p->blob->digest))
        json_set(j, "diff_id", json_digest(&p->blob->diff_id));
    if (at) {
        json_set(j, "host", json_new_string(at->host));
        json_set(j, "repository", json_new_string(at->repository));
    }
    int rc = catalog_seal(j, e);
    if (rc == 0)
        rc = json_print(j, 0, &text, e);
    if (rc == 0)
        rc = file_make_dirs(store_dir(s), "pushed", e);
    return rc < 0 ? rc : file_put(store_tmp_dir(s), store_dir(s), p->path, text, strlen(text), e);
}

/* ---- Making ---- */

static int make(struct pushed *p, const struct push_target *t, struct err *e)
{
    struct store *s = t->push->store;
    AUTO_FILE_TMP struct file_tmp tmp = {.fd = -1};
    char path[BLOB_PATH_MAX];
    int rc = file_tmp_open(&tmp, store_tmp_dir(s), e);
    if (rc == 0)
        rc = p->blob->make(p->blob, t, tmp.fd, e);
    if (rc < 0)
        return rc;
    image_blob_path(path, "blobs", &p->blob->digest);
    rc = file_make_dirs(store_dir(s), "blobs", e);
    if (rc == 0)
        rc = file_tmp_commit(&tmp, store_dir(s), path, true, e);
    if (rc == 0)
        rc = store_record(p, s, NULL, e);
    p->blob->converted = rc == 0;
    return rc;
}

/* Sees to it that the blob is in the store. Two tasks may want the same: one makes it. */
static int have_blob(struct pushed *p, const struct push_target *t, struct err *e)
{
    char path[BLOB_PATH_MAX];
    char text[DIGEST_TEXT_MAX];
    bool mine = false;
    if (p->found) {
        image_blob_path(path, "blobs", &p->blob->digest);
        if (store_use(t->push->store, path))
            return 0;
    }
    AUTO_FREE char *key = mem_printf("convert %s", digest_print(p->key, text));
    if (!key)
        return err_nomem(e, "layer");
    int rc = once_begin(t->push->room.once, key, &mine, NULL, e);
    if (rc < 0)
        return rc;
    if (!mine) /* made meanwhile */
        return load_record(p, t->push->store, e);
    rc = make(p, t, e);
    once_end(t->push->room.once, key, rc, NULL, e);
    return rc;
}

/* ---- Sending ---- */

static int send_blob(struct pushed *p, const struct push_target *t, struct err *e)
{
    char type[] = "application/octet-stream";
    struct oci_descriptor d = {
        .media_type = type, .digest = p->blob->digest, .size = p->blob->size};
    bool elsewhere = p->host && strcmp(p->host, t->ref.host) == 0 &&
                     strcmp(p->repository, t->ref.repository) != 0;
    struct source from = {0};
    char path[BLOB_PATH_MAX];
    int fd = -1;
    image_blob_path(path, "blobs", &p->blob->digest);
    int rc = file_open(&fd, store_dir(t->push->store), path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = source_from_fd(&from, fd, e);
    if (rc < 0)
        return rc;
    struct registry_upload upload = {&d, &from, elsewhere ? p->repository : NULL};
    rc = registry_push_blob(t->push->room.registry, &t->ref, &upload, &p->blob->result, e);
    source_close(&from);
    return rc;
}

static int send(struct pushed *p, const struct push_target *t, struct err *e)
{
    bool there = false;
    int rc = load_record(p, t->push->store, e);
    if (rc == 0 && p->found)
        rc = registry_has_blob(t->push->room.registry, &t->ref, &p->blob->digest, &there, e);
    if (rc == 0 && !there)
        rc = have_blob(p, t, e);
    if (rc == 0 && !there)
        rc = send_blob(p, t, e);
    bool known = p->host && strcmp(p->host, t->ref.host) == 0;
    return rc == 0 && !known ? store_record(p, t->push->store, &t->ref, e) : rc;
}

int push_blob_send(const struct push_target *t, struct push_blob *b, struct err *e)
{
    struct pushed p = {.key = &b->key, .blob = b};
    b->result = PUSH_WAS_THERE;
    int rc = send(&p, t, e);
    pushed_fini(&p);
    return rc;
}

/* ---- OverlayBD layers ---- */

static int add_map(struct hasher *h, const struct block_map *m, struct err *e)
{
    AUTO_BUF struct buf bytes;
    struct digest d = {0};
    int rc = 0;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    if (m)
        rc = block_map_encode(m, &bytes, e);
    if (rc == 0 && m)
        digest_bytes(&d, bytes.data, bytes.len);
    hasher_add(h, d.bytes, DIGEST_SHA256_LEN);
    return rc;
}

static int find_key(struct digest *out, const struct push_options *o, const struct push_layer *l,
                    struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    char head[64];
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc < 0)
        return rc;
    snprintf(head, sizeof(head), "tb2-bake OverlayBD 1 %d %u\n", (int)push_overlaybd_compression(o),
             o->block_size);
    hasher_add(h, head, strlen(head));
    rc = add_map(h, l->data, e);
    if (rc == 0)
        rc = add_map(h, l->zeros, e);
    hasher_finish(h, out);
    return rc;
}

static int convert(struct push_blob *b, const struct push_target *t, int fd, struct err *e)
{
    const struct push_layer *l = b->ctx;
    const struct push_options *o = &t->push->options;
    struct overlaybd_blob blob;
    struct overlaybd_write_options options = {.data = l->data,
                                              .zeros = l->zeros,
                                              .compression = push_overlaybd_compression(o),
                                              .block_size = o->block_size,
                                              .workers = machine_cores(),
                                              .cancel = o->cancel};
    int rc = overlaybd_write(fd, t->push->store, &options, &blob, e);
    if (rc < 0)
        return rc;
    b->digest = blob.digest;
    b->diff_id = blob.digest; /* the wrapper is a plain tar */
    b->size = blob.size;
    return 0;
}

int push_layer_send(const struct push_target *t, struct push_layer *l, struct err *e)
{
    l->blob.make = convert;
    l->blob.ctx = l;
    int rc = find_key(&l->blob.key, &t->push->options, l, e);
    return rc < 0 ? rc : push_blob_send(t, &l->blob, e);
}
