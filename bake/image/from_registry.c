/* SPDX-License-Identifier: MIT */
/*
 * Images of registries. Documents that were fetched once stay in the store under their digests, so
 * a tag that has not moved costs one HEAD. What each tag stood for is noted as well
 * (docs/formats/store.md, "Tags"): with that, a run without a network finds the same images.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/image/image.h"
#include "bake/image/pins.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { REF_PATH_MAX = 8 + DIGEST_TEXT_MAX, REF_RECORD_MAX = 4096, TIME_TEXT_MAX = 32 };

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

/* Not synced: whoever reads it sees whether it is whole, and gets it again. (The maps of a template, which
 * are stored later, make it durable.) */
static int put_stored(struct store *s, const struct digest *d, const struct buf *bytes,
                      struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    return file_put_unsynced(store_tmp_dir(s), store_dir(s), path, bytes->data, bytes->len, e);
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
    return rc < 0 ? rc : put_stored(r->store, &d->digest, out, e);
}

/* The file that it arrives in is the one that stays. */
static int fetch_config(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                        struct buf *out, struct err *e)
{
    char path[BLOB_PATH_MAX];
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
    if (rc == 0)
        rc = buf_add(out, data, (size_t)d->size, e);
    image_blob_path(path, "blobs", &d->digest);
    return rc < 0 ? rc : file_tmp_commit(&t, store_dir(r->store), path, false, e);
}

static int registry_document(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                             enum image_document what, struct buf *out, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    if (read_stored(r->store, &d->digest, out, e) == 0)
        return 0;
    if (r->offline)
        return image_missing_offline(e, digest_print(&d->digest, text));
    AUTO_FREE char *key = mem_printf("document %s", digest_print(&d->digest, text));
    if (!key)
        return err_nomem(e, text);
    bool mine = false; /* once, however many tasks want it */
    int rc = once_begin(r->once, key, &mine, NULL, e);
    if (rc < 0 || (!mine && read_stored(r->store, &d->digest, out, e) == 0))
        return rc;
    rc = what == IMAGE_CONFIG ? fetch_config(i, r, d, out, e) : fetch_manifest(i, r, d, out, e);
    if (mine)
        once_end(r->once, key, rc, NULL, e);
    return rc;
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

/* What the record says, if it is about this name. */
static int read_record(struct digest *out, const struct buf *text, const char *name, struct err *e)
{
    AUTO_JSON struct json *record = NULL;
    const char *reference = NULL;
    int rc = json_parse(&record, text->data, text->len, "tag record", e);
    if (rc == 0 && json_kind(record) != JSON_KIND_OBJECT)
        rc = err_set(e, ERR_CORRUPT, "tag record: no JSON object");
    if (rc == 0)
        rc = json_get_string(record, "reference", &reference, e);
    if (rc == 0 && strcmp(reference, name) != 0)
        rc = err_set(e, ERR_CORRUPT, "tag record: it is about %.200s", reference);
    return rc < 0 ? rc : json_get_digest(record, "digest", out, e);
}

/* The record made anew from its members has to be the one that is there; older ones have no check. */
static int check_whole(const struct json *record, const struct buf *text, struct err *e)
{
    static const char *const members[] = {"reference", "digest", "seen"};
    AUTO_JSON struct json *whole = json_new_object();
    AUTO_FREE char *canonical = NULL;
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        const struct json *value = json_member(record, members[i]);
        if (value)
            json_set(whole, members[i], json_clone(value));
    }
    int rc = json_member(record, "check") ? catalog_seal(whole, e) : 0;
    if (rc == 0)
        rc = json_print(whole, 0, &canonical, e);
    if (rc < 0)
        return rc;
    return text->len == strlen(canonical) && memcmp(text->data, canonical, text->len) == 0
               ? 0
               : err_set(e, ERR_CORRUPT, "it is not what was written");
}

int tag_peek(struct digest *document, struct store *s, const struct digest *name, struct err *e)
{
    char path[REF_PATH_MAX];
    char hex[DIGEST_TEXT_MAX];
    const char *reference = NULL;
    struct digest d;
    AUTO_JSON struct json *record = NULL;
    AUTO_BUF struct buf text;
    buf_init(&text, REF_RECORD_MAX);
    snprintf(path, sizeof(path), "refs/%s", digest_hex(name, hex));
    int rc = file_read(store_dir(s), path, &text, e);
    if (rc == 0)
        rc = json_parse(&record, text.data, text.len, path, e);
    if (rc == 0 && json_kind(record) != JSON_KIND_OBJECT)
        rc = err_set(e, ERR_CORRUPT, "%s: no JSON object", path);
    if (rc == 0)
        rc = json_get_string(record, "reference", &reference, e);
    if (rc == 0)
        rc = json_get_digest(record, "digest", document, e);
    if (rc == 0)
        rc = check_whole(record, &text, e);
    if (rc < 0)
        return rc;
    digest_bytes(&d, reference, strlen(reference));
    return digest_equal(&d, name) ? 0
                                  : err_set(e, ERR_CORRUPT, "%s: it is about another name", path);
}

static int read_tag(struct digest *out, struct store *s, const struct oci_ref *ref, struct err *e)
{
    char path[REF_PATH_MAX];
    AUTO_FREE char *name = NULL;
    AUTO_BUF struct buf text;
    buf_init(&text, REF_RECORD_MAX);
    int rc = ref_path(path, &name, ref, e);
    if (rc == 0)
        rc = file_read(store_dir(s), path, &text, e);
    if (rc == 0)
        rc = read_record(out, &text, name, e);
    if (rc == -ERR_CORRUPT)
        err_in(e, "%s", path);
    return rc;
}

static int recall_tag(struct digest *out, struct store *s, const struct oci_ref *ref, struct err *e)
{
    int rc = read_tag(out, s, ref, e);
    if (rc == -ERR_CORRUPT)
        log_event(LOG_WARN, "bake", "%s", e->text);
    if (rc == -ERR_NOTFOUND || rc == -ERR_CORRUPT)
        return image_missing_offline(e, "what the tag stands for");
    return rc;
}

/* Not synced: a lost one is asked for again. */
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
    rc = catalog_seal(record, e);
    if (rc == 0)
        rc = json_print(record, 0, &text, e);
    if (rc == 0 && !file_exists(store_dir(s), "refs"))
        rc = file_make_dirs(store_dir(s), "refs", e);
    return rc < 0 ? rc
                  : file_put_unsynced(store_tmp_dir(s), store_dir(s), path, text, strlen(text), e);
}

static int get_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    struct buf *body = &i->root_document;
    struct oci_descriptor got = {0};
    int rc = registry_manifest(r->registry, &i->ref, &got, body, e);
    if (rc < 0)
        return rc;
    *out = got.digest;
    oci_descriptor_fini(&got);
    AUTO_BUF struct buf there;
    struct err ignored = ERR_INIT;
    buf_init(&there, LIMIT_MANIFEST);
    return read_stored(r->store, out, &there, &ignored) == 0 ? 0
                                                             : put_stored(r->store, out, body, e);
}

/* The manifest that a HEAD has promised, into the store unless it is there. */
static int get_promised(struct image *i, struct image_room *r, const struct digest *d,
                        struct err *e)
{
    struct oci_descriptor at = {.digest = *d};
    buf_init(&i->root_document, LIMIT_MANIFEST);
    int rc = registry_document(i, r, &at, IMAGE_MANIFEST, &i->root_document, e);
    if (rc < 0)
        buf_fini(&i->root_document);
    return rc;
}

/* The digest that a tag stands for now. A HEAD costs no pull; where it says nothing, is refused (gateways
 * that know GET alone answer 403), or says what is not so (caches in front of registries do), the manifest
 * itself tells. */
static int ask_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    int rc = registry_head(r->registry, &i->ref, out, e);
    if (rc == -ERR_UNSUPPORTED || rc == -ERR_DENIED) {
        err_clear(e);
        return get_tag(i, r, out, e);
    }
    if (rc < 0)
        return rc;
    rc = get_promised(i, r, out, e);
    if (rc != -ERR_NOTFOUND)
        return rc;
    AUTO_FREE char *name = oci_ref_print(&i->ref);
    struct err why = *e;
    err_clear(e);
    rc = get_tag(i, r, out, e);
    if (rc == 0)
        log_event(LOG_WARN, "registry", "%s: %s; its tag leads to another manifest",
                  name ? name : "", why.text);
    return rc;
}

/* Of a tag that was never seen the manifest itself is asked for, which is not here, as a rule; unless a
 * mirror has manifests by their digests. A record that says so already stays: thousands of tags that have
 * not moved cost no write. */
static int resolve_tag(struct image *i, struct image_room *r, struct digest *out, struct err *e)
{
    struct digest noted;
    struct err ignored = ERR_INIT;
    if (r->offline)
        return recall_tag(out, r->store, &i->ref, e);
    bool known = read_tag(&noted, r->store, &i->ref, &ignored) == 0;
    bool ask = known || registry_has_digest_mirror(r->registry, &i->ref);
    int rc = ask ? ask_tag(i, r, out, e) : get_tag(i, r, out, e);
    if (rc < 0 || (known && digest_equal(&noted, out)))
        return rc;
    return note_tag(r->store, &i->ref, out, e);
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
    bool found = i->ref.has_digest;
    out->digest = i->ref.digest;
    int rc = found ? 0 : pins_find(r->pins, i->text, &found, &out->digest, e);
    return rc < 0 || found ? rc : resolve_tag_once(i, r, &out->digest, e);
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
