/* SPDX-License-Identifier: MIT */
/*
 * Templates and a remote store. A template that is taken over is its record and its maps; disk,
 * memory and device state come chunk by chunk when they are read.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/image/image.h"
#include "bake/remote.h"
#include "bake/remote/remote.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/template/remote_template.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* ---- Taking over ---- */

static int fetch_json(struct remote *r, const char *path, struct json **out, struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_RECORD);
    int rc = remote_fetch_file(r, path, NULL, &bytes, e);
    return rc < 0 ? rc : json_parse(out, bytes.data, bytes.len, path, e);
}

static int take_maps(struct remote *r, const struct template *t, struct err *e)
{
    const struct digest *maps[] = {&t->base_disk, &t->disk, &t->memory, &t->state};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(maps); i++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        rc = remote_take_map(r, maps[i], &m, e);
    }
    return rc;
}

/* The record, verified, and all that it names. `key` is what it must have been made for. */
static int take_record(struct remote *r, const struct digest *record, const struct digest *key,
                       struct err *e)
{
    AUTO_BUF struct buf bytes;
    AUTO_JSON struct json *document = NULL;
    AUTO_TEMPLATE struct template *t = NULL;
    struct digest stored;
    char path[REMOTE_PATH_MAX];
    char hex[DIGEST_TEXT_MAX];
    buf_init(&bytes, LIMIT_RECORD);
    snprintf(path, sizeof(path), "templates/%s.json", digest_hex(record, hex));
    int rc = remote_fetch_file(r, path, record, &bytes, e);
    if (rc == 0)
        rc = json_parse(&document, bytes.data, bytes.len, path, e);
    if (rc == 0)
        rc = template_from_document(&t, document, e);
    if (rc == 0 && !digest_equal(&t->key, key))
        rc = err_set(e, ERR_CORRUPT, "%s: %s: the record of another key", r->name, path);
    if (rc == 0)
        rc = take_maps(r, t, e);
    if (rc == 0)
        rc = remote_keep_file(r, path, &bytes, e);
    /* Last, since it says that all is there. */
    if (rc == 0)
        rc = template_put(r->store, key, document, &stored, e);
    if (rc == 0 && !digest_equal(&stored, record))
        rc = err_set(e, ERR_CORRUPT, "%s: %s: not in its canonical form", r->name, path);
    return rc;
}

int remote_take_template(struct remote *r, const struct digest *key, struct err *e)
{
    AUTO_JSON struct json *pointer = NULL;
    struct digest record;
    char path[REMOTE_PATH_MAX];
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, sizeof(path), "keys/%s.json", digest_hex(key, hex));
    int rc = r->ops->find(r->self, REMOTE_TEMPLATE, hex, e);
    if (rc == 0)
        rc = fetch_json(r, path, &pointer, e);
    if (rc == 0)
        rc = json_get_digest(pointer, "record", &record, e);
    if (rc == 0)
        rc = take_record(r, &record, key, e);
    if (rc < 0)
        return err_in(e, "template %s", hex);
    atomic_fetch_add(&r->templates_taken, 1);
    log_event(LOG_INFO, "bake", "template %s: taken over from %s", hex, r->name);
    return 0;
}

static int begin(struct remote *r, const struct digest *key, bool *busy, struct err *e)
{
    char hex[DIGEST_TEXT_MAX];
    bool taken = false;
    bool mine = false;
    digest_hex(key, hex);
    int rc = remote_taken(remote_take_template(r, key, e), &taken, e);
    if (rc < 0 || taken || !r->writable)
        return rc;
    rc = remote_claims_try(r->claims, REMOTE_TEMPLATE, hex, &mine, e);
    *busy = rc == 0 && !mine;
    /* It may have been published, and its claim given back, since we looked. */
    if (rc == 0 && mine && r->claims)
        rc = remote_taken(remote_take_template(r, key, e), &taken, e);
    if (taken)
        remote_claims_drop(r->claims, REMOTE_TEMPLATE, hex);
    return rc;
}

int remote_template_begin(struct remote *r, const struct digest *key, bool *busy, struct err *e)
{
    *busy = false;
    int rc = r ? begin(r, key, busy, e) : 0;
    if (rc == 0 || rc == -ERR_CANCELLED || rc == -ERR_NOMEM || rc == -ERR_SYS)
        return rc;
    log_event(LOG_WARN, "bake", "done without the remote store: %s", e->text);
    err_clear(e);
    return 0;
}

void remote_template_drop(struct remote *r, const struct digest *key)
{
    char hex[DIGEST_TEXT_MAX];
    if (r)
        remote_claims_drop(r->claims, REMOTE_TEMPLATE, digest_hex(key, hex));
}

/* ---- Publishing ---- */

static int add_template(struct remote_unit *u, struct remote *r, const struct template *t,
                        struct err *e)
{
    const struct digest *maps[] = {&t->base_disk, &t->disk, &t->memory, &t->state};
    char hex[DIGEST_TEXT_MAX];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(maps); i++)
        rc = remote_unit_add_map(u, r->store, maps[i], e);
    if (rc == 0)
        rc = remote_unit_add_file(u, e, "templates/%s.json", digest_hex(&t->record, hex));
    if (rc == 0)
        rc = remote_unit_add_file(u, e, "keys/%s.json", digest_hex(&t->key, hex));
    remote_unit_sort(u);
    return rc;
}

/* Whether the remote store has this very record under its key. Another one there is replaced: a bake
 * that was forced, or one that was done twice. */
static int has_record(struct remote *r, const struct template *t, bool *there, struct err *e)
{
    AUTO_JSON struct json *pointer = NULL;
    struct digest record;
    char path[REMOTE_PATH_MAX];
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, sizeof(path), "keys/%s.json", digest_hex(&t->key, hex));
    int rc = r->ops->find(r->self, REMOTE_TEMPLATE, hex, e);
    if (rc == 0)
        rc = fetch_json(r, path, &pointer, e);
    if (rc == 0)
        rc = json_get_digest(pointer, "record", &record, e);
    *there = rc == 0 && digest_equal(&record, &t->record);
    if (rc != -ERR_NOTFOUND && rc != -ERR_CORRUPT)
        return rc;
    err_clear(e);
    return 0;
}

static int publish_template(struct remote *r, const struct template *t, const struct image *image,
                            struct err *e)
{
    struct remote_unit u = {.kind = REMOTE_TEMPLATE};
    char hex[DIGEST_TEXT_MAX];
    bool there = false;
    snprintf(u.name, sizeof(u.name), "%s", digest_hex(&t->key, hex));
    if (image) {
        u.needs = image->config.diff_ids;
        u.need_count = image->config.diff_id_count;
    }
    int rc = has_record(r, t, &there, e);
    if (rc == 0 && !there)
        rc = add_template(&u, r, t, e);
    if (rc == 0 && !there)
        rc = remote_publish(r, &u, e);
    remote_unit_fini(&u);
    return rc;
}

/* Whether the catalog over there says what ours does. */
static bool has_alias(struct remote *r, const struct remote_unit *u)
{
    AUTO_BUF struct buf ours;
    AUTO_BUF struct buf theirs;
    struct err ignored = ERR_INIT;
    buf_init(&ours, LIMIT_RECORD);
    buf_init(&theirs, LIMIT_RECORD);
    return file_read(store_dir(r->store), u->files[0], &ours, &ignored) == 0 &&
           r->ops->find(r->self, u->kind, u->name, &ignored) == 0 &&
           r->ops->file(r->self, u->files[0], &theirs, &ignored) == 0 && ours.len == theirs.len &&
           memcmp(ours.data, theirs.data, ours.len) == 0;
}

static int publish_alias(struct remote *r, const struct template *t, struct err *e)
{
    struct remote_unit u = {.kind = REMOTE_ALIAS};
    snprintf(u.name, sizeof(u.name), "%s", t->alias);
    int rc = remote_unit_add_file(&u, e, "catalog/%s.json", t->alias);
    if (rc == 0 && !has_alias(r, &u))
        rc = remote_publish(r, &u, e);
    remote_unit_fini(&u);
    return rc;
}

void remote_template_publish(struct remote *r, const struct template *t, const struct image *image)
{
    struct err e = ERR_INIT;
    if (!r)
        return;
    int rc = r->writable ? publish_template(r, t, image, &e) : 0;
    if (rc == 0 && r->writable)
        rc = publish_alias(r, t, &e);
    if (rc < 0)
        log_event(LOG_WARN, "bake", "not shared: %s", e.text);
    remote_template_drop(r, &t->key);
}

/* ---- Between hosts, without a bake ---- */

static int check_alias(const char *alias, struct err *e)
{
    size_t len = strlen(alias);
    if (len > 0 && len <= REMOTE_NAME_MAX - 8 &&
        strspn(alias, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == len)
        return 0;
    return err_set(e, ERR_NOTFOUND, "'%s' is no template alias", alias);
}

int remote_pull_template(struct remote *r, const char *alias, struct err *e)
{
    AUTO_JSON struct json *entry = NULL;
    struct digest key;
    struct digest record;
    const char *task = NULL;
    char path[REMOTE_PATH_MAX];
    int rc = check_alias(alias, e);
    snprintf(path, sizeof(path), "catalog/%s.json", alias);
    if (rc == 0)
        rc = r->ops->find(r->self, REMOTE_ALIAS, alias, e);
    if (rc == 0)
        rc = fetch_json(r, path, &entry, e);
    if (rc == -ERR_NOTFOUND) {
        err_set(e, ERR_NOTFOUND, "no template '%s' in the catalog of %s", alias, r->name);
        return err_hint(e, "name it by its alias, as 'tb2-bake ls' shows it where it was baked");
    }
    if (rc == 0)
        rc = json_get_digest(entry, "key", &key, e);
    if (rc == 0)
        rc = json_get_digest(entry, "record", &record, e);
    if (rc == 0)
        rc = json_get_string(entry, "task", &task, e);
    char hex[DIGEST_TEXT_MAX];
    if (rc == 0)
        rc = r->ops->find(r->self, REMOTE_TEMPLATE, digest_hex(&key, hex), e);
    if (rc == 0)
        rc = take_record(r, &record, &key, e);
    if (rc == 0)
        rc = catalog_put(r->store, alias, task, &key, &record, e);
    if (rc < 0)
        return err_in(e, "template %s", alias);
    atomic_fetch_add(&r->templates_taken, 1);
    return 0;
}

void remote_use_template(struct remote *r, const struct template *t)
{
    char hex[DIGEST_TEXT_MAX];
    struct err ignored = ERR_INIT;
    if (r->ops->find(r->self, REMOTE_TEMPLATE, digest_hex(&t->key, hex), &ignored) < 0)
        log_event(LOG_INFO, "bake", "%s", ignored.text);
}

int remote_push_template(struct remote *r, const struct template *t, struct err *e)
{
    int rc = r->writable ? publish_template(r, t, NULL, e)
                         : err_set(e, ERR_UNSUPPORTED, "%s is only read", r->name);
    if (rc == 0)
        rc = publish_alias(r, t, e);
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}

int remote_complete_template(struct remote *r, const struct template *t, struct err *e)
{
    struct remote_unit u = {0};
    AUTO_FREE void *data = mem_zalloc(CHUNK_SIZE_MAX);
    int rc = data ? add_template(&u, r, t, e) : err_nomem(e, "chunk");
    for (size_t i = 0; rc == 0 && i < u.chunk_count; i++) {
        size_t len;
        rc = cancel_check(r->cancel, e);
        if (rc == 0 && !store_has_chunk(r->store, &u.chunks[i]))
            rc = store_get_chunk(r->store, &u.chunks[i], data, &len, e);
    }
    remote_unit_fini(&u);
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}
