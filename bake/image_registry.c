/* SPDX-License-Identifier: MIT */
/*
 * Images of registries. Documents that were fetched once stay in the store under their digests, so
 * a tag that has not moved costs one HEAD. What each tag stood for is noted as well
 * (docs/formats/store.md, "Tags"): with that, a run without a network finds the same images.
 */
#include "bake/census.h"
#include "bake/pipeline.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { REF_PATH_MAX = 8 + DIGEST_TEXT_MAX, TIME_TEXT_MAX = 32 };

int image_missing_offline(struct err *e, const char *what)
{
    err_set(e, ERR_NOTFOUND, "%s: the store does not have it, and --offline asks nobody else",
            what);
    return err_hint(e, "run the same command once without --offline");
}

/* ---- Documents ---- */

/* A document that is in the store already. ERR_NOTFOUND when it is not, or is damaged. */
static int read_stored(struct store *s, const struct digest *d, struct buf *out, struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    store_use(s, path); /* reading says whether it is there */
    int rc = file_read(store_dir(s), path, out, e);
    if (rc < 0)
        return rc;
    if (image_check_document(d, out, e) == 0)
        return 0;
    size_t ceiling = out->ceiling;
    buf_fini(out);
    buf_init(out, ceiling);
    return err_set(e, ERR_NOTFOUND, "%s is damaged", path);
}

static int put_stored(struct store *s, const struct digest *d, const struct buf *bytes,
                      struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    return file_put(store_tmp_dir(s), store_dir(s), path, bytes->data, bytes->len, e);
}

static int fetch_manifest(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                          struct buf *out, struct err *e)
{
    struct oci_ref pinned = i->ref;
    pinned.has_digest = true;
    pinned.digest = d->digest;
    struct oci_descriptor got = {0};
    int rc = registry_manifest(r->registry, &pinned, &got, out, e);
    oci_descriptor_fini(&got);
    return rc;
}

static int fetch_config(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                        struct buf *out, struct err *e)
{
    if (d->size > LIMIT_CONFIG)
        return err_set(e, ERR_LIMIT, "config of %llu bytes", (unsigned long long)d->size);
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
    return rc < 0 ? rc : buf_add(out, data, (size_t)d->size, e);
}

static int registry_document(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                             enum image_document what, struct buf *out, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    if (read_stored(r->store, &d->digest, out, e) == 0)
        return 0;
    if (r->offline)
        return image_missing_offline(e, digest_print(&d->digest, text));
    int rc = what == IMAGE_CONFIG ? fetch_config(i, r, d, out, e) : fetch_manifest(i, r, d, out, e);
    return rc < 0 ? rc : put_stored(r->store, &d->digest, out, e);
}

/* ---- Tags ---- */

/* refs/HEX, with the digest of the reference's full form; *name is that form, for free(). */
static int ref_path(char path[REF_PATH_MAX], char **name, const struct oci_ref *ref, struct err *e)
{
    char hex[DIGEST_TEXT_MAX];
    struct digest d;
    *name = oci_ref_print(ref);
    if (!*name)
        return err_nomem(e, "image name");
    digest_bytes(&d, *name, strlen(*name));
    snprintf(path, REF_PATH_MAX, "refs/%s", digest_hex(&d, hex));
    return 0;
}

static int note_tag(struct store *s, const struct oci_ref *ref, const struct digest *d,
                    struct err *e)
{
    char path[REF_PATH_MAX];
    char digest[DIGEST_TEXT_MAX];
    char seen[TIME_TEXT_MAX];
    AUTO_FREE char *name = NULL;
    int rc = ref_path(path, &name, ref, e);
    if (rc < 0)
        return rc;
    time_t now = time(NULL);
    struct tm utc;
    strftime(seen, sizeof(seen), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    AUTO_JSON struct json *record = json_new_object();
    json_set(record, "reference", json_new_string(name));
    json_set(record, "digest", json_new_string(digest_print(d, digest)));
    json_set(record, "seen", json_new_string(seen));
    AUTO_FREE char *text = NULL;
    AUTO_FD int lock = -1; /* nobody sweeps the old one meanwhile */
    rc = catalog_seal(record, e);
    if (rc == 0)
        rc = json_print(record, 0, &text, e);
    if (rc == 0)
        rc = file_make_dirs(store_dir(s), "refs", e);
    if (rc == 0)
        rc = store_use_begin(&lock, s, e);
    return rc < 0 ? rc : file_put(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
}

static int recall_tag(struct digest *out, struct store *s, const struct oci_ref *ref, struct err *e)
{
    AUTO_FREE char *name = oci_ref_print(ref);
    struct digest d;
    if (!name)
        return err_nomem(e, "image name");
    digest_bytes(&d, name, strlen(name));
    int rc = tag_peek(out, s, &d, e);
    if (rc == -ERR_CORRUPT)
        log_event(LOG_WARN, "bake", "tag %s: %s", name, e->text);
    if (rc == -ERR_NOTFOUND || rc == -ERR_CORRUPT)
        return image_missing_offline(e, "what the tag stands for");
    return rc;
}

/* The digest that the tag stands for now. */
static int ask_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
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

static int resolve_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    if (r->offline)
        return recall_tag(out, r->store, &i->ref, e);
    int rc = ask_tag(i, r, out, e);
    return rc < 0 ? rc : note_tag(r->store, &i->ref, out, e);
}

/* One request per distinct reference and run, however many tasks name it. */
static int resolve_tag_once(struct image *i, struct image_room *r, struct digest *out,
                            struct err *e)
{
    AUTO_FREE char *name = oci_ref_print(&i->ref);
    AUTO_FREE char *key = name ? mem_printf("tag %s", name) : NULL;
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

static int registry_start(struct image *i, struct image_room *r, struct oci_descriptor *out,
                          struct err *e)
{
    out->media_type = mem_strdup("");
    if (!out->media_type)
        return err_nomem(e, i->text);
    if (!i->ref.has_digest)
        return resolve_tag_once(i, r, &out->digest, e);
    out->digest = i->ref.digest;
    return 0;
}

static int registry_layer(struct image *i UNUSED, struct image_room *r,
                          const struct oci_descriptor *d, struct source *out, struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", &d->digest);
    int fd = -1;
    int rc = file_open(&fd, store_dir(r->store), path, O_RDONLY, 0, e);
    return rc < 0 ? rc : source_from_fd(out, fd, e);
}

const struct image_source image_from_registry = {
    .start = registry_start,
    .document = registry_document,
    .layer = registry_layer,
};
