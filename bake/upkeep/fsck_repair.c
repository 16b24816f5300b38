/* SPDX-License-Identifier: MIT */
/*
 * Mending a store. A bad object is removed, since as long as it has its name nobody makes it again.
 * Then it is got again, in this order: from the store's source; pointers from the records; what came
 * of an image from its registry, by assembling the disks that are affected once more, which makes
 * the same chunks and maps. What a guest left behind (memory, written blocks) cannot be got again:
 * the key's pointer is removed, so that the next bake makes the template anew.
 */

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/disk.h"
#include "bake/guest/boot_image.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "bake/upkeep/fsck.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

static struct fsck_problem *problem(struct fsck *k, size_t i)
{
    return &k->report->problems[i];
}

static void mended(struct fsck_problem *p, const char *how)
{
    p->state = FSCK_MENDED;
    p->advice = how;
}

/* ---- Removing ---- */

static int remove_object(struct fsck *k, size_t i, struct err *e)
{
    struct fsck_problem *p = problem(k, i);
    AUTO_FD int lock = -1;
    int rc = store_use_begin(&lock, k->store, e);
    if (rc == 0)
        rc = file_remove_tree(store_dir(k->store), p->path, e);
    p->state = FSCK_REMOVED;
    return rc;
}

/* ---- From the source ---- */

static void fetch_chunk(struct fsck *k, size_t i, uint8_t *data)
{
    struct err why = ERR_INIT;
    size_t len;
    if (store_get_chunk(k->store, &k->names[i], data, &len, &why) == 0)
        mended(problem(k, i), "fetched from the remote store");
}

/* ---- Pointers ---- */

/* The newest whole record with this alias, or (alias NULL) with this key; NULL: none. */
static struct template *find_record(struct fsck *k, const char *alias, const struct digest *key)
{
    const struct census_list *l = &k->census.lists[UPKEEP_RECORD];
    struct template *best = NULL;
    for (size_t i = 0; i < l->count; i++) {
        struct err ignored = ERR_INIT; /* a damaged one is told of by itself */
        AUTO_TEMPLATE struct template *t = NULL;
        if (l->files[i].flags || template_peek(&t, k->store, &l->files[i].digest, &ignored) < 0 ||
            (alias ? strcmp(t->alias, alias) != 0 : !digest_equal(&t->key, key)) ||
            (best && strcmp(t->created, best->created) <= 0))
            continue;
        template_free(best);
        best = MOVE(t);
    }
    return best;
}

static int mend_alias(struct fsck *k, size_t i, struct err *e)
{
    struct fsck_problem *p = problem(k, i);
    const char *name = p->path + strlen("catalog/");
    AUTO_FREE char *alias = mem_strndup(name, strlen(name) - strlen(".json"));
    AUTO_TEMPLATE struct template *t = alias ? find_record(k, alias, NULL) : NULL;
    if (!t) {
        return alias ? 0 : err_nomem(e, "catalog");
    }
    int rc = catalog_put(k->store, alias, t->task, &t->key, &t->record, e);
    if (rc == 0)
        mended(p, "made again from its record");
    return rc;
}

static int mend_key(struct fsck *k, size_t i, struct err *e)
{
    AUTO_TEMPLATE struct template *t = find_record(k, NULL, &k->names[i]);
    struct digest record;
    int rc = t ? template_put(k->store, &t->key, t->document, &record, e) : 0;
    if (rc == 0 && t)
        mended(problem(k, i), "made again from its record");
    return rc;
}

/* Entries and keys of a record that is gone would only mislead. */
static int drop_pointers(struct fsck *k, const struct digest *record, bool keys_only, struct err *e)
{
    static const enum upkeep_kind kinds[] = {UPKEEP_KEY, UPKEEP_ALIAS};
    for (size_t n = 0; n < (keys_only ? 1 : ARRAY_LEN(kinds)); n++) {
        const struct census_list *l = &k->census.lists[kinds[n]];
        for (size_t i = 0; i < l->count; i++) {
            char path[CENSUS_PATH_MAX];
            struct catalog_entry entry = {0};
            struct digest target;
            struct err ignored = ERR_INIT;
            int rc = kinds[n] == UPKEEP_KEY
                         ? key_peek(&target, k->store, &l->files[i].digest, &ignored)
                         : catalog_peek(&entry, k->store, l->files[i].name, &ignored);
            if (rc == 0 && kinds[n] == UPKEEP_ALIAS)
                target = entry.record;
            free(entry.task);
            if (rc < 0 || !digest_equal(&target, record))
                continue;
            rc =
                file_remove_tree(store_dir(k->store), census_path(kinds[n], &l->files[i], path), e);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

/* ---- From the image ---- */

/* Assembles a template's disk once more; what fails is logged, and shows in what is still bad. */
static int assemble_again(struct fsck *k, const struct digest *record, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    struct err why = ERR_INIT;
    const char *image = NULL;
    const char *manifest = NULL;
    uint64_t storage_mb = 0;
    int rc = template_peek(&t, k->store, record, &why);
    if (rc == 0)
        rc = json_get_string(t->document, "image", &image, &why);
    if (rc == 0)
        rc = json_get_string(t->document, "manifest", &manifest, &why);
    if (rc == 0)
        rc = json_get_u64(t->document, "storage_mb", &storage_mb, &why);
    if (rc < 0)
        return 0;
    /* The image as it was, whatever its tag stands for now. */
    struct oci_ref ref = {.transport = OCI_LAYOUT};
    if (oci_ref_parse(&ref, image, &why) < 0)
        err_clear(&why); /* using it says the same */
    bool pinned = ref.transport != OCI_REGISTRY || ref.has_digest;
    oci_ref_fini(&ref);
    AUTO_FREE char *reference = pinned ? mem_strdup(image) : mem_printf("%s@%s", image, manifest);
    struct disk_options o = {
        .free_size = storage_mb << 20, .images = k->options->images, .cancel = k->options->cancel};
    struct digest disk;
    rc = reference ? disk_assemble(&disk, k->store, reference, &o, &why) : err_nomem(&why, image);
    if (rc == -ERR_NOMEM || rc == -ERR_CANCELLED) {
        *e = why;
        return rc;
    }
    if (rc < 0)
        log_event(LOG_WARN, "bake", "%s is not fetched again: %s", t->alias, why.text);
    return 0;
}

static bool seen_before(const struct fsck *k, size_t owner)
{
    for (size_t i = 0; i < owner; i++) {
        if (k->owners[i].is_template && k->owners[i].damaged &&
            digest_equal(&k->owners[i].record, &k->owners[owner].record))
            return true;
    }
    return false;
}

/* Calls `one` for the record of each template that a problem affects. */
static int each_damaged(struct fsck *k,
                        int (*one)(struct fsck *k, const struct digest *record, struct err *e),
                        struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < k->owner_count; i++) {
        if (k->owners[i].is_template && k->owners[i].damaged && !seen_before(k, i))
            rc = one(k, &k->owners[i].record, e);
    }
    return rc;
}

/* A layer without all of its chunks is made again by the bake that wants it. */
static int drop_damaged_layers(struct fsck *k)
{
    const struct census_list *l = &k->census.lists[UPKEEP_LAYER];
    for (size_t i = 0; i < l->count; i++)
        layer_drop_damaged(k->store, &l->files[i].digest, false);
    return 0;
}

/* Fails if the map or a chunk of it is missing. */
static int check_chunks(struct fsck *k, const struct digest *map, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    uint64_t size;
    int rc = store_peek_map(k->store, map, &m, e);
    for (size_t n = 0; rc == 0 && n < block_map_count(m); n++)
        rc = store_chunk_stored_size(k->store, &block_map_extent(m, n)->chunk, &size, e);
    return rc;
}

/* The same with a step; what it changed of a disk that was made again is still there. */
static int drop_damaged_steps(struct fsck *k, struct err *e)
{
    const struct census_list *l = &k->census.lists[UPKEEP_STEP];
    for (size_t i = 0; i < l->count; i++) {
        struct digest disk;
        struct err why = ERR_INIT;
        int rc = step_peek(&disk, k->store, &l->files[i].digest, &why);
        if (rc == 0)
            rc = check_chunks(k, &disk, &why);
        if (rc == -ERR_NOMEM)
            return err_nomem(e, "step");
        if (rc < 0)
            step_forget(k->store, &l->files[i].digest);
    }
    return 0;
}

/* The same with a boot image. */
static int drop_damaged_boots(struct fsck *k, struct err *e)
{
    const struct census_list *l = &k->census.lists[UPKEEP_BOOT];
    for (size_t i = 0; i < l->count; i++) {
        struct boot_image b;
        char path[CENSUS_PATH_MAX];
        struct err why = ERR_INIT;
        int rc = boot_image_peek(&b, k->store, &l->files[i].digest, &why);
        if (rc == 0)
            rc = check_chunks(k, &b.saved.memory, &why);
        if (rc == 0)
            rc = check_chunks(k, &b.saved.state, &why);
        if (rc == -ERR_NOMEM)
            return err_nomem(e, "boot image");
        if (rc < 0)
            rc = file_remove_tree(store_dir(k->store), census_path(UPKEEP_BOOT, &l->files[i], path),
                                  e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- What became of it ---- */

static bool is_whole(struct fsck *k, size_t i)
{
    struct err ignored = ERR_INIT;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    if (problem(k, i)->kind == UPKEEP_CHUNK)
        return store_audit_chunk(k->store, &k->names[i], &ignored) == 0;
    return problem(k, i)->kind == UPKEEP_MAP &&
           store_peek_map(k->store, &k->names[i], &m, &ignored) == 0;
}

/* The names of other owners than templates have a blank. */
static bool affects_catalog(const struct fsck_problem *p)
{
    for (size_t i = 0; i < p->affected_count; i++) {
        if (!strchr(p->affected[i], ' '))
            return true;
    }
    return false;
}

/* Nothing makes a kept copy again. */
static bool affects_kept(const struct fsck_problem *p)
{
    for (size_t i = 0; i < p->affected_count; i++) {
        if (strncmp(p->affected[i], FSCK_KEPT, strlen(FSCK_KEPT)) == 0)
            return true;
    }
    return false;
}

static void conclude(struct fsck *k, size_t i)
{
    struct fsck_problem *p = problem(k, i);
    if (p->state == FSCK_MENDED)
        return;
    if (is_whole(k, i)) {
        mended(p, "made again from its image");
    } else if (affects_kept(p) && !affects_catalog(p)) {
        p->state = FSCK_LOST;
        p->advice = "'tb2-bake kept rm' removes a copy that is not whole";
    } else if (p->kind == UPKEEP_BLOB || p->kind == UPKEEP_LAYER || !affects_catalog(p)) {
        p->advice = "the next bake that needs it makes it again";
    } else {
        p->state = FSCK_LOST;
        p->advice = "bake the tasks again";
    }
}

static bool affects(const struct fsck_problem *p, const char *name)
{
    for (size_t i = 0; i < p->affected_count; i++) {
        if (strcmp(p->affected[i], name) == 0)
            return true;
    }
    return false;
}

/* A template that stays broken: without its key's pointer the next bake makes it anew. */
static int forget_broken(struct fsck *k, const struct digest *record, struct err *e)
{
    bool broken = false;
    bool gone = false;
    for (size_t n = 0; n < k->owner_count; n++) {
        if (!k->owners[n].is_template || !digest_equal(&k->owners[n].record, record))
            continue;
        for (size_t i = 0; i < k->report->count; i++) {
            const struct fsck_problem *p = problem(k, i);
            if (p->state == FSCK_MENDED || p->kind == UPKEEP_LAYER ||
                !affects(p, k->owners[n].name))
                continue;
            broken |= p->kind != UPKEEP_ALIAS;
            gone |= p->kind == UPKEEP_RECORD;
        }
    }
    return broken ? drop_pointers(k, record, !gone, e) : 0;
}

static int get_again(struct fsck *k, struct err *e)
{
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    int rc = data ? 0 : err_nomem(e, "chunk");
    for (size_t i = 0; rc == 0 && i < k->report->count; i++) {
        if (problem(k, i)->kind == UPKEEP_CHUNK)
            fetch_chunk(k, i, data);
        else if (problem(k, i)->kind == UPKEEP_ALIAS)
            rc = mend_alias(k, i, e);
        else if (problem(k, i)->kind == UPKEEP_KEY)
            rc = mend_key(k, i, e);
        if (rc == 0)
            rc = cancel_check(k->options->cancel, e);
    }
    return rc;
}

int fsck_repair(struct fsck *k, struct err *e)
{
    int rc = 0;
    bool files = false; /* something that images are made of is bad */
    for (size_t i = 0; rc == 0 && i < k->report->count; i++) {
        enum upkeep_kind kind = problem(k, i)->kind;
        files |= kind == UPKEEP_CHUNK || kind == UPKEEP_MAP || kind == UPKEEP_LAYER;
        if (kind != UPKEEP_KEPT) /* a person's: told, not taken */
            rc = remove_object(k, i, e);
    }
    if (rc == 0)
        rc = get_again(k, e);
    if (rc == 0 && files)
        rc = drop_damaged_layers(k);
    if (rc == 0 && files)
        rc = each_damaged(k, assemble_again, e);
    if (rc == 0 && files)
        rc = drop_damaged_steps(k, e);
    if (rc == 0 && files)
        rc = drop_damaged_boots(k, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < k->report->count; i++)
        conclude(k, i);
    return each_damaged(k, forget_broken, e);
}
