/* SPDX-License-Identifier: MIT */
/*
 * Checking a store: every object against its name, then every name that an object holds against what
 * is there. Chunks and blobs, which are nearly all of the bytes, are read on all processors; what
 * refers to bad ones is found by a walk over the maps, so that memory does not grow with these.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/slots.h"
#include "bake/guest/boot_image.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "bake/upkeep/fsck.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

enum { READ_SIZE = 1 << 20 };

/* ---- The report ---- */

int fsck_add(struct fsck *k, enum upkeep_kind kind, struct census_file *f, const char *why,
             struct err *e)
{
    struct fsck_report *r = k->report;
    char path[CENSUS_PATH_MAX];
    int rc = mem_grow(&r->problems, &k->problem_capacity, r->count + 1, sizeof(*r->problems), e);
    if (rc == 0)
        rc = mem_grow(&k->names, &k->name_capacity, r->count + 1, sizeof(*k->names), e);
    if (rc < 0)
        return rc;
    struct fsck_problem *p = &r->problems[r->count];
    *p = (struct fsck_problem){.kind = kind, .state = FSCK_BAD};
    p->path = mem_strdup(census_path(kind, f, path));
    p->reason = mem_strdup(why);
    k->names[r->count++] = f->digest;
    f->flags = (uint32_t)r->count;
    return p->path && p->reason ? 0 : err_nomem(e, "report");
}

int fsck_affects(struct fsck *k, uint32_t number, size_t owner, struct err *e)
{
    struct fsck_problem *p = &k->report->problems[number - 1];
    const char *name = k->owners[owner].name;
    k->owners[owner].damaged = true;
    for (size_t i = 0; i < p->affected_count; i++) {
        if (strcmp(p->affected[i], name) == 0)
            return 0;
    }
    size_t capacity = p->affected_count;
    int rc = mem_grow(&p->affected, &capacity, p->affected_count + 1, sizeof(char *), e);
    if (rc < 0)
        return rc;
    p->affected[p->affected_count] = mem_strdup(name);
    return p->affected[p->affected_count++] ? 0 : err_nomem(e, "report");
}

void fsck_report_fini(struct fsck_report *r)
{
    for (size_t i = 0; i < r->count; i++) {
        struct fsck_problem *p = &r->problems[i];
        for (size_t n = 0; n < p->affected_count; n++)
            free(p->affected[n]);
        free(p->affected);
        free(p->path);
        free(p->reason);
    }
    free(r->problems);
    *r = (struct fsck_report){0};
}

/* An object that is not right becomes a problem; what prevents looking at all stays an error. What
 * has vanished since it was listed was swept: whoever needs it says so. */
static int note(struct fsck *k, enum upkeep_kind kind, struct census_file *f, struct err *e)
{
    if (e->class == ERR_NOMEM || e->class == ERR_CANCELLED ||
        (e->class == ERR_SYS && e->sys != EIO && f->regular))
        return -(int)e->class;
    struct err why = *e;
    err_clear(e);
    return why.class == ERR_NOTFOUND ? 0 : fsck_add(k, kind, f, why.text, e);
}

/* ---- Reading in parallel ---- */

struct reading {
    enum upkeep_kind kind;
    struct census_file *file;
    struct err err; /* set when it is bad */
};

/* A blob that is no layer any more is a document; both are named by their digest. */
static int check_blob(struct store *s, const struct census_file *f, struct err *e)
{
    char path[CENSUS_PATH_MAX];
    AUTO_FD int fd = -1;
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(READ_SIZE);
    int rc = data ? hasher_new(&h, f->digest.algorithm, e) : err_nomem(e, "blob");
    if (rc == 0)
        rc = file_open(&fd, store_dir(s), census_path(UPKEEP_BLOB, f, path), O_RDONLY | O_NOFOLLOW,
                       0, e);
    for (uint64_t off = 0; rc == 0 && off < f->size; off += READ_SIZE) {
        size_t len = f->size - off < READ_SIZE ? (size_t)(f->size - off) : READ_SIZE;
        rc = file_pread_full(fd, data, len, off, e);
        if (rc == 0)
            hasher_add(h, data, len);
    }
    if (rc < 0)
        return rc;
    struct digest got;
    hasher_finish(h, &got);
    return digest_equal(&got, &f->digest)
               ? 0
               : err_set(e, ERR_DIGEST, "its bytes hash to something else");
}

static int read_work(void *ctx, void *item, struct err *e)
{
    const struct fsck *k = ctx;
    struct reading *r = item;
    int rc = cancel_check(k->options->cancel, e);
    if (rc < 0)
        return rc;
    if (!r->file->regular)
        rc = err_set(&r->err, ERR_CORRUPT, "it is not a file");
    else if (r->kind == UPKEEP_CHUNK)
        rc = store_audit_chunk(k->store, &r->file->digest, &r->err);
    else
        rc = check_blob(k->store, r->file, &r->err);
    return rc == -ERR_NOMEM ? err_nomem(e, "store") : 0; /* r->err is for read_done */
}

static int read_done(void *ctx, void *item, struct err *e)
{
    struct fsck *k = ctx;
    AUTO_FREE struct reading *r = item;
    if (r->err.class == ERR_NONE)
        return 0;
    *e = r->err;
    return note(k, r->kind, r->file, e);
}

static void read_drop(void *ctx UNUSED, void *item)
{
    free(item);
}

static int read_all(struct fsck *k, struct err *e)
{
    static const struct pool_ops ops = {read_work, read_done, read_drop};
    static const enum upkeep_kind kinds[] = {UPKEEP_CHUNK, UPKEEP_BLOB};
    AUTO_POOL struct pool *pool = NULL;
    int rc = pool_new(&pool, &ops, k, machine_cores(), e);
    for (size_t n = 0; n < ARRAY_LEN(kinds); n++) {
        const struct census_list *l = &k->census.lists[kinds[n]];
        for (size_t i = 0; rc == 0 && i < l->count; i++) {
            struct reading *r = mem_zalloc(sizeof(*r));
            if (!r)
                return err_nomem(e, "store");
            *r = (struct reading){.kind = kinds[n], .file = &l->files[i], .err = ERR_INIT};
            rc = pool_submit(pool, r, e);
        }
    }
    return rc < 0 ? rc : pool_finish(pool, e);
}

/* ---- Owners ---- */

/* Takes `name` over. */
static int add_owner(struct fsck *k, char *name, const struct digest *record, struct err *e)
{
    int rc =
        name ? mem_grow(&k->owners, &k->owner_capacity, k->owner_count + 1, sizeof(*k->owners), e)
             : err_nomem(e, "store");
    if (rc < 0) {
        free(name);
        return rc;
    }
    k->owners[k->owner_count++] = (struct fsck_owner){.name = name, .is_template = record != NULL};
    if (record)
        k->owners[k->owner_count - 1].record = *record;
    return 0;
}

static int add_use(struct fsck *k, const struct digest *map, size_t owner, struct err *e)
{
    int rc = mem_grow(&k->uses, &k->use_capacity, k->use_count + 1, sizeof(*k->uses), e);
    if (rc == 0)
        k->uses[k->use_count++] = (struct fsck_use){.map = *map, .owner = owner};
    return rc;
}

static int compare_uses(const void *a, const void *b)
{
    const struct fsck_use *x = a;
    const struct fsck_use *y = b;
    int order = digest_compare(&x->map, &y->map);
    return order != 0 ? order : (x->owner > y->owner) - (x->owner < y->owner);
}

/* Index of the first use of this map, or of what would follow it. */
static size_t first_use(const struct fsck *k, const struct digest *map)
{
    size_t low = 0;
    size_t high = k->use_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (digest_compare(&k->uses[middle].map, map) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A problem with a map, or with a chunk of it, affects all who have the map. */
static int affects_users(struct fsck *k, uint32_t number, const struct digest *map, struct err *e)
{
    int rc = 0;
    for (size_t i = first_use(k, map);
         rc == 0 && i < k->use_count && digest_equal(&k->uses[i].map, map); i++)
        rc = fsck_affects(k, number, k->uses[i].owner, e);
    return rc;
}

/* ---- Documents ---- */

/* The record that an entry or a key names must be there and be of this key. One that is damaged is a
 * problem of its own. */
static int check_target(struct fsck *k, const struct digest *record, const struct digest *key,
                        struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    char hex[DIGEST_TEXT_MAX];
    int rc = template_peek(&t, k->store, record, e);
    if (rc == -ERR_NOTFOUND)
        return err_set(e, ERR_CORRUPT, "its record %s is not there", digest_hex(record, hex));
    if (rc == 0 && !digest_equal(&t->key, key))
        return err_set(e, ERR_CORRUPT, "it names a record of another key");
    if (rc == -ERR_NOMEM)
        return rc;
    err_clear(e);
    return 0;
}

/* The entry makes its record's owner known by the alias. */
static int check_alias(struct fsck *k, struct census_file *f, struct err *e)
{
    struct catalog_entry entry;
    struct err why = ERR_INIT;
    bool legible = catalog_peek(&entry, k->store, f->name, &why) == 0;
    free(entry.task);
    int rc = add_owner(k, mem_strndup(f->name, strlen(f->name) - strlen(".json")),
                       legible ? &entry.record : NULL, e);
    if (rc < 0)
        return rc;
    if (legible)
        check_target(k, &entry.record, &entry.key, &why);
    if (why.class == ERR_NONE)
        return 0;
    *e = why;
    rc = note(k, UPKEEP_ALIAS, f, e);
    return rc == 0 && f->flags ? fsck_affects(k, f->flags, k->owner_count - 1, e) : rc;
}

static int check_key(struct fsck *k, struct census_file *f, struct err *e)
{
    struct digest record;
    int rc = key_peek(&record, k->store, &f->digest, e);
    if (rc == 0)
        rc = check_target(k, &record, &f->digest, e);
    return rc < 0 ? note(k, UPKEEP_KEY, f, e) : 0;
}

/* Adds who has this record: the aliases, or itself; *first and *end are their numbers. */
static int record_owners(struct fsck *k, const struct digest *record, size_t *first, size_t *end,
                         struct err *e)
{
    /* Aliases come first in the list, from check_alias. */
    char hex[DIGEST_TEXT_MAX];
    *first = *end = SIZE_MAX;
    for (size_t i = 0; i < k->census.lists[UPKEEP_ALIAS].count && i < k->owner_count; i++) {
        if (!k->owners[i].is_template || !digest_equal(&k->owners[i].record, record))
            continue;
        if (*first == SIZE_MAX)
            *first = i;
        *end = i + 1;
    }
    if (*first != SIZE_MAX)
        return 0;
    *first = k->owner_count;
    *end = *first + 1;
    return add_owner(k, mem_printf("record %s", digest_hex(record, hex)), record, e);
}

static int check_record(struct fsck *k, struct census_file *f, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    size_t first;
    size_t end;
    int rc = record_owners(k, &f->digest, &first, &end, e);
    if (rc < 0)
        return rc;
    rc = template_peek(&t, k->store, &f->digest, e);
    struct digest maps[TEMPLATE_MAPS];
    if (rc == 0)
        template_maps(t, maps);
    else
        rc = note(k, UPKEEP_RECORD, f, e);
    for (size_t i = first; rc == 0 && i < end; i++) {
        if (!k->owners[i].is_template || !digest_equal(&k->owners[i].record, &f->digest))
            continue;
        if (f->flags)
            rc = fsck_affects(k, f->flags, i, e);
        for (size_t n = 0; t && rc == 0 && n < TEMPLATE_MAPS; n++)
            rc = add_use(k, &maps[n], i, e);
    }
    return rc;
}

/* Nobody needs one: a damaged record counts as missing, and is asked for again. */
static int check_tag(struct fsck *k, struct census_file *f, struct err *e)
{
    struct digest document;
    return tag_peek(&document, k->store, &f->digest, e) < 0 ? note(k, UPKEEP_TAG, f, e) : 0;
}

/* A layer, or what a step made: a name for a map. */
static int check_name(struct fsck *k, enum upkeep_kind kind, struct census_file *f, struct err *e)
{
    char path[CENSUS_PATH_MAX];
    char text[DIGEST_TEXT_MAX];
    struct digest map;
    const char *what = kind == UPKEEP_STEP ? "step" : "layer";
    int rc = add_owner(k, mem_printf("%s %s", what, digest_print(&f->digest, text)), NULL, e);
    if (rc < 0)
        return rc;
    rc = kind == UPKEEP_STEP ? step_peek(&map, k->store, &f->digest, e)
                             : layer_inspect(k->store, census_path(kind, f, path), &map, e);
    if (rc == 0)
        return add_use(k, &map, k->owner_count - 1, e);
    rc = note(k, kind, f, e);
    return rc == 0 && f->flags ? fsck_affects(k, f->flags, k->owner_count - 1, e) : rc;
}

static int check_layer(struct fsck *k, struct census_file *f, struct err *e)
{
    return check_name(k, UPKEEP_LAYER, f, e);
}

static int check_step(struct fsck *k, struct census_file *f, struct err *e)
{
    return check_name(k, UPKEEP_STEP, f, e);
}

/* Its maps and chunks matter to a person, who alone can say whether it may go. */
static int check_kept(struct fsck *k, struct census_file *f, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    struct digest maps[TEMPLATE_MAPS];
    size_t owner = k->owner_count;
    int rc = add_owner(
        k, mem_printf(FSCK_KEPT "%.*s", (int)(strlen(f->name) - strlen(".json")), f->name), NULL,
        e);
    if (rc < 0)
        return rc;
    rc = kept_peek_file(&t, k->store, f->name, e);
    if (rc < 0) {
        rc = note(k, UPKEEP_KEPT, f, e);
        return rc == 0 && f->flags ? fsck_affects(k, f->flags, owner, e) : rc;
    }
    template_maps(t, maps);
    for (size_t n = 0; rc == 0 && n < TEMPLATE_MAPS; n++)
        rc = add_use(k, &maps[n], owner, e);
    return rc;
}

static int check_boot(struct fsck *k, struct census_file *f, struct err *e)
{
    struct boot_image b;
    char hex[DIGEST_TEXT_MAX];
    int rc = add_owner(k, mem_printf("boot image %s", digest_hex(&f->digest, hex)), NULL, e);
    if (rc < 0)
        return rc;
    if (boot_image_peek(&b, k->store, &f->digest, e) < 0)
        return note(k, UPKEEP_BOOT, f, e);
    rc = add_use(k, &b.saved.memory, k->owner_count - 1, e);
    return rc < 0 ? rc : add_use(k, &b.saved.state, k->owner_count - 1, e);
}

static int check_pushed(struct fsck *k, struct census_file *f, struct err *e)
{
    AUTO_JSON struct json *record = NULL;
    return pushed_peek(&record, k->store, &f->digest, e) < 0 ? note(k, UPKEEP_PUSHED, f, e) : 0;
}

static int each(struct fsck *k, enum upkeep_kind kind,
                int (*check)(struct fsck *k, struct census_file *f, struct err *e), struct err *e)
{
    const struct census_list *l = &k->census.lists[kind];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        rc = cancel_check(k->options->cancel, e);
        if (rc == 0)
            rc = check(k, &l->files[i], e);
    }
    return rc;
}

/* ---- Maps and what they name ---- */

/* A chunk that was made since the listing is there; else it is missing. */
static int missing_chunk(struct fsck *k, const struct digest *chunk, uint32_t *number,
                         struct err *e)
{
    uint64_t size;
    *number = 0;
    if (store_chunk_stored_size(k->store, chunk, &size, e) == 0)
        return 0;
    err_clear(e);
    for (size_t i = k->report->count; i > 0; i--) {
        if (k->report->problems[i - 1].kind == UPKEEP_CHUNK &&
            digest_equal(&k->names[i - 1], chunk)) {
            *number = (uint32_t)i;
            return 0;
        }
    }
    struct census_file f = {.digest = *chunk};
    int rc = fsck_add(k, UPKEEP_CHUNK, &f, "it is not there", e);
    *number = f.flags;
    return rc;
}

static int check_map(struct fsck *k, struct census_file *f, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = store_peek_map(k->store, &f->digest, &m, e);
    if (rc < 0) {
        rc = note(k, UPKEEP_MAP, f, e);
        return rc == 0 && f->flags ? affects_users(k, f->flags, &f->digest, e) : rc;
    }
    size_t first = first_use(k, &f->digest);
    bool needed = first < k->use_count && digest_equal(&k->uses[first].map, &f->digest);
    for (size_t i = 0; rc == 0 && i < block_map_count(m); i++) {
        const struct digest *chunk = &block_map_extent(m, i)->chunk;
        const struct census_file *c = census_find(&k->census, UPKEEP_CHUNK, chunk);
        uint32_t number = c ? c->flags : 0;
        if (!c && needed)
            rc = missing_chunk(k, chunk, &number, e);
        if (rc == 0 && number)
            rc = affects_users(k, number, &f->digest, e);
    }
    return rc;
}

/* Maps that someone has and that are not there. */
static int check_uses(struct fsck *k, struct err *e)
{
    for (size_t i = 0; i < k->use_count; i++) {
        const struct digest *map = &k->uses[i].map;
        if ((i > 0 && digest_equal(map, &k->uses[i - 1].map)) ||
            census_find(&k->census, UPKEEP_MAP, map))
            continue;
        struct census_file f = {.digest = *map};
        char path[CENSUS_PATH_MAX];
        if (file_exists(store_dir(k->store), census_path(UPKEEP_MAP, &f, path)))
            continue; /* new */
        int rc = fsck_add(k, UPKEEP_MAP, &f, "it is not there", e);
        if (rc == 0)
            rc = affects_users(k, f.flags, map, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- All of it ---- */

static int check(struct fsck *k, struct err *e)
{
    int rc = census_take(&k->census, k->store, (1U << UPKEEP_STORE_KINDS) - 1, e);
    if (rc == 0)
        rc = read_all(k, e);
    if (rc == 0)
        rc = each(k, UPKEEP_ALIAS, check_alias, e);
    if (rc == 0)
        rc = each(k, UPKEEP_RECORD, check_record, e);
    if (rc == 0)
        rc = each(k, UPKEEP_KEY, check_key, e);
    if (rc == 0)
        rc = each(k, UPKEEP_LAYER, check_layer, e);
    if (rc == 0)
        rc = each(k, UPKEEP_STEP, check_step, e);
    if (rc == 0)
        rc = each(k, UPKEEP_BOOT, check_boot, e);
    if (rc == 0)
        rc = each(k, UPKEEP_KEPT, check_kept, e);
    if (rc == 0)
        rc = each(k, UPKEEP_TAG, check_tag, e);
    if (rc == 0)
        rc = each(k, UPKEEP_PUSHED, check_pushed, e);
    if (rc == 0 && k->use_count > 1)
        qsort(k->uses, k->use_count, sizeof(*k->uses), compare_uses);
    if (rc == 0)
        rc = each(k, UPKEEP_MAP, check_map, e);
    return rc < 0 ? rc : check_uses(k, e);
}

static void fill_report(struct fsck *k)
{
    for (size_t kind = 0; kind < UPKEEP_STORE_KINDS; kind++) {
        const struct census_list *l = &k->census.lists[kind];
        k->report->checked[kind].count = l->count;
        for (size_t i = 0; i < l->count; i++)
            k->report->checked[kind].size += l->files[i].size;
    }
    for (size_t i = 0; i < k->report->count; i++)
        k->report->left +=
            k->report->problems[i].state == FSCK_BAD || k->report->problems[i].state == FSCK_LOST;
}

static void fsck_fini(struct fsck *k)
{
    for (size_t i = 0; i < k->owner_count; i++)
        free(k->owners[i].name);
    free(k->owners);
    free(k->uses);
    free(k->names);
    census_fini(&k->census);
}

int store_fsck(struct fsck_report *out, struct store *s, const struct fsck_options *o,
               struct err *e)
{
    *out = (struct fsck_report){0};
    struct fsck k = {.store = s, .options = o, .report = out};
    int rc = check(&k, e);
    if (rc == 0 && o->repair && out->count > 0)
        rc = fsck_repair(&k, e);
    if (rc == 0)
        fill_report(&k);
    else
        fsck_report_fini(out);
    fsck_fini(&k);
    return rc;
}
