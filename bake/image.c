/* SPDX-License-Identifier: MIT */
/*
 * Images: name to documents. Documents that were fetched once stay in the store under their digests,
 * so a tag that has not moved costs one HEAD.
 */
#include "bake/pipeline.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* An index may point to an index; deeper nesting than this is no image that exists. */
enum { INDEX_DEPTH_MAX = 4 };

int image_room_open(struct image_room *r, struct store *s, const struct registry_options *o,
                    struct err *e)
{
    *r = (struct image_room){.store = s, .cancel = o->cancel};
    int rc = registry_new(&r->registry, o, e);
    return rc < 0 ? rc : once_new(&r->once, e);
}

void image_room_close(struct image_room *r)
{
    registry_free(r->registry);
    once_free(r->once);
    *r = (struct image_room){0};
}

void image_blob_path(char path[BLOB_PATH_MAX], const char *directory, const struct digest *d)
{
    char text[DIGEST_TEXT_MAX];
    char *colon = strchr(digest_print(d, text), ':');
    *colon = '-';
    snprintf(path, BLOB_PATH_MAX, "%s/%s", directory, text);
}

void image_free(struct image *i)
{
    if (!i)
        return;
    free(i->text);
    oci_ref_fini(&i->ref);
    oci_layout_close(i->layout);
    oci_manifest_fini(&i->manifest);
    oci_config_fini(&i->config);
    free(i);
}

static int check_document(const struct digest *d, const struct buf *bytes, struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, d->algorithm, e);
    if (rc < 0)
        return rc;
    hasher_add(h, bytes->data, bytes->len);
    struct digest sum;
    hasher_finish(h, &sum);
    return digest_equal(&sum, d) ? 0 : err_set(e, ERR_DIGEST, "document does not match its digest");
}

/* A document that is in the store already. ERR_NOTFOUND when it is not, or is damaged. */
static int read_stored(struct store *s, const struct digest *d, struct buf *out, struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    int rc = file_read(store_dir(s), path, out, e);
    if (rc < 0)
        return rc;
    if (check_document(d, out, e) == 0)
        return 0;
    buf_fini(out);
    return err_set(e, ERR_NOTFOUND, "%s is damaged", path);
}

static int put_stored(struct store *s, const struct digest *d, const struct buf *bytes,
                      struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    return file_put(store_tmp_dir(s), store_dir(s), path, bytes->data, bytes->len, e);
}

static int read_source(const struct source *from, struct buf *out, struct err *e)
{
    if (from->size > out->ceiling)
        return err_set(e, ERR_LIMIT, "document of %llu bytes", (unsigned long long)from->size);
    AUTO_FREE char *data = mem_zalloc((size_t)from->size);
    if (!data)
        return err_nomem(e, "document");
    int rc = source_read_full(from, 0, data, (size_t)from->size, e);
    return rc < 0 ? rc : buf_add(out, data, (size_t)from->size, e);
}

static int read_layout_document(struct image *i, const struct oci_descriptor *d, struct buf *out,
                                struct err *e)
{
    struct source from = {0};
    int rc = oci_layout_blob(i->layout, d, &from, e);
    if (rc < 0)
        return rc;
    rc = read_source(&from, out, e);
    source_close(&from);
    return rc == 0 ? check_document(&d->digest, out, e) : rc;
}

typedef int document_fetch(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                           struct buf *out, struct err *e);

/* A document from the store, or else fetched: once, however many tasks want it. */
static int document_once(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                         document_fetch *fetch, struct buf *out, struct err *e)
{
    if (read_stored(r->store, &d->digest, out, e) == 0)
        return 0;
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("document %s", digest_print(&d->digest, digest));
    if (!key)
        return err_nomem(e, digest);
    bool mine = false;
    int rc = once_begin(r->once, key, &mine, NULL, e);
    if (rc < 0 || (!mine && read_stored(r->store, &d->digest, out, e) == 0))
        return rc;
    rc = fetch(i, r, d, out, e);
    if (mine)
        once_end(r->once, key, rc, NULL, e);
    return rc;
}

static int fetch_manifest(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                          struct buf *out, struct err *e)
{
    struct oci_ref pinned = i->ref;
    pinned.has_digest = true;
    pinned.digest = d->digest;
    struct oci_descriptor got = {0};
    int rc = registry_manifest(r->registry, &pinned, &got, out, e);
    if (rc == 0)
        rc = put_stored(r->store, &d->digest, out, e);
    oci_descriptor_fini(&got);
    return rc;
}

/* The manifest or index that `d` names: from the layout, the store, or the registry. */
static int fetch_document(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                          struct buf *out, struct err *e)
{
    if (i->layout)
        return read_layout_document(i, d, out, e);
    return document_once(i, r, d, fetch_manifest, out, e);
}

/* The digest that the reference stands for now. */
static int resolve_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    if (i->ref.has_digest) {
        *out = i->ref.digest;
        return 0;
    }
    int rc = registry_head(r->registry, &i->ref, out, e);
    if (rc != -ERR_UNSUPPORTED)
        return rc;
    AUTO_BUF struct buf body;
    buf_init(&body, LIMIT_MANIFEST);
    struct oci_descriptor got = {0};
    rc = registry_manifest(r->registry, &i->ref, &got, &body, e);
    if (rc == 0) {
        *out = got.digest;
        rc = put_stored(r->store, out, &body, e);
    }
    oci_descriptor_fini(&got);
    return rc;
}

/* One request per distinct reference and run, however many tasks name it. */
static int resolve_tag_once(struct image *i, struct image_room *r, struct digest *out,
                            struct err *e)
{
    AUTO_FREE char *key = mem_printf("tag %s", i->text);
    if (!key)
        return err_nomem(e, i->text);
    bool mine = false;
    int rc = once_begin(r->once, key, &mine, out, e);
    if (rc < 0 || !mine)
        return rc;
    rc = resolve_tag(i, r, out, e);
    once_end(r->once, key, rc, out, e);
    return rc;
}

static int pinned_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    bool found = false;
    int rc = i->ref.has_digest ? 0 : pins_find(r->pins, i->text, &found, out, e);
    return rc < 0 || found ? rc : resolve_tag_once(i, r, out, e);
}

static int start_descriptor(struct image *i, struct image_room *r, struct oci_descriptor *out,
                            struct err *e)
{
    if (i->ref.transport == OCI_LAYOUT) {
        bool found; /* where it is held to something, pins_note compares */
        struct digest ignored;
        int rc = i->ref.has_digest ? 0 : pins_find(r->pins, i->text, &found, &ignored, e);
        if (rc == 0)
            rc = oci_layout_open(&i->layout, i->ref.repository, e);
        return rc < 0 ? rc : oci_layout_resolve(i->layout, &i->ref, out, e);
    }
    out->media_type = mem_strdup("");
    if (!out->media_type)
        return err_nomem(e, i->text);
    return pinned_tag(i, r, &out->digest, e);
}

/* Follows indexes down to an image manifest. `at` is updated as it goes. */
static int find_manifest(struct image *i, struct image_room *r, struct oci_descriptor *at,
                         bool *check_platform, struct err *e)
{
    struct oci_platform platform = oci_platform_host();
    for (int depth = 0; depth < INDEX_DEPTH_MAX; depth++) {
        AUTO_BUF struct buf body;
        buf_init(&body, LIMIT_MANIFEST);
        int rc = fetch_document(i, r, at, &body, e);
        enum oci_document_kind kind = OCI_MANIFEST;
        if (rc == 0)
            rc = oci_document_classify(&kind, at->media_type, body.data, body.len, e);
        if (rc < 0)
            return rc;
        if (kind == OCI_MANIFEST) {
            rc = oci_manifest_parse(&i->manifest, body.data, body.len, e);
            i->manifest.digest = at->digest;
            return rc;
        }
        struct oci_descriptor next = {0};
        bool needs_check = false;
        rc = oci_index_select(&next, &needs_check, body.data, body.len, &platform, e);
        if (rc < 0)
            return rc;
        *check_platform |= needs_check;
        oci_descriptor_fini(at);
        *at = next;
    }
    return err_set(e, ERR_CORRUPT, "indexes are nested deeper than %d", INDEX_DEPTH_MAX);
}

static int fetch_config(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                        struct buf *out, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    int rc = file_tmp_open(&t, store_tmp_dir(r->store), e);
    if (rc == 0)
        rc = registry_blob(r->registry, &i->ref, d, t.fd, NULL, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *data = mem_zalloc((size_t)d->size);
    if (!data)
        return err_nomem(e, "config");
    rc = file_pread_full(t.fd, data, (size_t)d->size, 0, e);
    if (rc == 0)
        rc = buf_add(out, data, (size_t)d->size, e);
    if (rc == 0)
        rc = put_stored(r->store, &d->digest, out, e);
    return rc;
}

static int fetch_config_blob(struct image *i, struct image_room *r, struct buf *out, struct err *e)
{
    const struct oci_descriptor *d = &i->manifest.config;
    if (d->size > LIMIT_CONFIG)
        return err_set(e, ERR_LIMIT, "config of %llu bytes", (unsigned long long)d->size);
    if (i->layout)
        return read_layout_document(i, d, out, e);
    return document_once(i, r, d, fetch_config, out, e);
}

static int load_config(struct image *i, struct image_room *r, bool check_platform, struct err *e)
{
    AUTO_BUF struct buf body;
    buf_init(&body, LIMIT_CONFIG);
    int rc = fetch_config_blob(i, r, &body, e);
    if (rc == 0)
        rc = oci_config_parse(&i->config, body.data, body.len, e);
    if (rc < 0)
        return err_in(e, "config");
    i->config.digest = i->manifest.config.digest;
    struct oci_platform host = oci_platform_host();
    if (check_platform && strcmp(i->config.architecture, host.architecture) != 0)
        return err_set(e, ERR_NOTFOUND, "the image is for %s, not for %s", i->config.architecture,
                       host.architecture);
    return oci_image_check(&i->manifest, &i->config, e);
}

int image_resolve(struct image **out, struct image_room *r, const char *text, struct err *e)
{
    AUTO_IMAGE struct image *i = mem_zalloc(sizeof(*i));
    if (!i)
        return err_nomem(e, text);
    i->text = mem_strdup(text);
    if (!i->text)
        return err_nomem(e, text);
    struct oci_descriptor at = {0};
    bool check_platform = false;
    int rc = oci_ref_parse(&i->ref, text, e);
    if (rc < 0)
        return rc;
    rc = start_descriptor(i, r, &at, e);
    i->root = at.digest;
    if (rc == 0)
        rc = find_manifest(i, r, &at, &check_platform, e);
    if (rc == 0)
        rc = load_config(i, r, check_platform, e);
    oci_descriptor_fini(&at);
    if (rc < 0) /* where the registry has judged the image, the error names it already */
        return strncmp(e->text, "image ", 6) == 0 ? rc : err_in(e, "image %s", text);
    *out = MOVE(i);
    return 0;
}
