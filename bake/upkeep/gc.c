/* SPDX-License-Identifier: MIT */
/*
 * Garbage collection: marks what is needed from the catalog and from what may be in use, then sweeps
 * the rest (docs/decisions/0013-garbage-collection.md, which has the reasons for the order of
 * things).
 *
 * Names go before what they name, and whether something may go is looked at again under the sweep
 * lock, where nobody can begin to use it.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/common/document.h"
#include "bake/disk/devices.h"
#include "bake/guest/boot_image.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/step/cache.h"
#include "bake/template.h"
#include "bake/template/kept.h"
#include "bake/template/record.h"
#include "bake/upkeep.h"
#include "bake/upkeep/census.h"
#include "bake/upkeep/gc_cache.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    KEEP = 1,     /* is not swept */
    FOLLOWED = 2, /* what it names is marked */
    LISTED = 4,   /* the catalog needs it */
    SPARE = 8,    /* a layer of a template's image, a result of its steps: could be made again */
};

#define JOURNAL_AGE_NS ((int64_t)30 * 24 * 60 * 60 * 1000000000)

/* All kinds but chunks, which are listed once, before the first mark. */
#define NAMES ((1U << UPKEEP_STORE_KINDS) - 1 - (1U << UPKEEP_CHUNK))

struct gc {
    struct store *store;
    const struct gc_options *options;
    struct gc_report *report;
    struct census census;
    int64_t cutoff_ns; /* what was used since stays */
    int64_t now_ns;
    bool last; /* under the sweep lock: what is not there is missing */
};

static bool is_young(const struct gc *g, const struct census_file *f)
{
    return f->used_ns >= g->cutoff_ns;
}

/* ---- Marking ---- */

/* What the catalog needs must be known whole; of the rest, what is damaged names nothing. */
static int cannot_follow(const struct gc *g, const struct census_file *f, struct err *e)
{
    if (e->class == ERR_NOMEM || e->class == ERR_SYS || e->class == ERR_CANCELLED)
        return -(int)e->class;
    if (e->class != ERR_NOTFOUND && f->flags & LISTED)
        return err_hint(e, "'tb2-bake store fsck' says what is damaged, and mends what it can");
    if (g->last)
        log_event(LOG_WARN, "bake", "gc: %s", e->text);
    err_clear(e);
    return 0;
}

static void keep(struct gc *g, enum upkeep_kind kind, const struct digest *d, uint32_t flags)
{
    struct census_file *f = census_find(&g->census, kind, d);
    if (f)
        f->flags |= flags;
}

static void keep_document(void *ctx, const struct digest *blob)
{
    keep(ctx, UPKEEP_BLOB, blob, KEEP);
}

static void keep_layer(void *ctx, const struct digest *diff_id)
{
    struct gc *g = ctx;
    keep(g, UPKEEP_LAYER, diff_id, g->options->max_size ? SPARE : KEEP);
}

static void keep_disk(void *ctx, const struct digest *disk)
{
    keep(ctx, UPKEEP_MAP, disk, KEEP);
}

static int mark_catalog(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_ALIAS];
    for (size_t i = 0; i < l->count; i++) {
        struct catalog_entry entry;
        l->files[i].flags |= KEEP;
        int rc = catalog_peek(&entry, g->store, l->files[i].name, e);
        if (rc == -ERR_NOTFOUND)
            err_clear(e);
        else if (rc < 0) {
            err_in(e, "catalog/%s", l->files[i].name);
            return err_hint(e, "'tb2-bake store fsck --repair' mends the entry or removes it");
        } else
            keep(g, UPKEEP_RECORD, &entry.record, KEEP | LISTED);
        free(entry.task);
    }
    return 0;
}

/* What a template was made from is not part of it, but the next one can go on from there. */
static void keep_parts(struct gc *g, const struct json *record, const char *member,
                       enum upkeep_kind kind)
{
    const struct json *list = json_member(record, member);
    for (size_t i = 0; list && i < json_length(list); i++) {
        const char *text = json_as_string(json_element(list, i));
        struct digest name;
        struct err ignored = ERR_INIT;
        if (text && digest_parse(&name, text, &ignored) == 0)
            keep(g, kind, &name, g->options->max_size ? SPARE : KEEP);
    }
}

/* The next template of that kind shares its memory with the boot image of this one. */
static void keep_boot(struct gc *g, const struct json *record)
{
    struct digest key;
    struct err ignored = ERR_INIT;
    if (json_member(record, "boot_image") &&
        json_get_digest(record, "boot_image", &key, &ignored) == 0)
        keep(g, UPKEEP_BOOT, &key, KEEP);
}

/* A person's copies stay until the person removes them. */
static int mark_kept(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_KEPT];
    for (size_t i = 0; i < l->count; i++) {
        AUTO_TEMPLATE struct template *t = NULL;
        struct digest maps[TEMPLATE_MAPS];
        l->files[i].flags |= KEEP;
        int rc = kept_peek_file(&t, g->store, l->files[i].name, e);
        if (rc == -ERR_NOTFOUND) {
            err_clear(e);
            continue;
        }
        if (rc < 0)
            return err_hint(e, "'tb2-bake kept rm' removes the copy");
        template_maps(t, maps);
        for (size_t n = 0; n < TEMPLATE_MAPS; n++)
            keep(g, UPKEEP_MAP, &maps[n], KEEP | LISTED);
    }
    return 0;
}

static int follow_record(struct gc *g, struct census_file *f, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    struct digest maps[TEMPLATE_MAPS];
    struct digest manifest;
    int rc = template_peek(&t, g->store, &f->digest, e);
    if (rc == 0)
        rc = json_get_digest(t->document, "manifest", &manifest, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    template_maps(t, maps);
    for (size_t i = 0; i < TEMPLATE_MAPS; i++)
        keep(g, UPKEEP_MAP, &maps[i], KEEP | (f->flags & LISTED));
    keep(g, UPKEEP_KEY, &t->key, KEEP);
    keep_parts(g, t->document, "steps", UPKEEP_STEP);
    keep_parts(g, t->document, "grafts", UPKEEP_LAYER);
    keep_boot(g, t->document);
    f->flags |= FOLLOWED;
    return image_peek_layers(g->store, &manifest, keep_document, keep_layer, g, e);
}

/* The map that a layer's file or a step's entry names. */
static int peek_map(struct gc *g, enum upkeep_kind kind, const struct census_file *f,
                    struct digest *map, struct err *e)
{
    char path[CENSUS_PATH_MAX];
    return kind == UPKEEP_STEP
               ? step_peek(map, g->store, &f->digest, e)
               : layer_inspect(g->store, census_path(UPKEEP_LAYER, f, path), map, e);
}

static int follow_step(struct gc *g, struct census_file *f, struct err *e)
{
    struct digest disk;
    int rc = peek_map(g, UPKEEP_STEP, f, &disk, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    keep(g, UPKEEP_MAP, &disk, KEEP);
    f->flags |= FOLLOWED;
    return 0;
}

static int follow_boot(struct gc *g, struct census_file *f, struct err *e)
{
    struct boot_image b;
    int rc = boot_image_peek(&b, g->store, &f->digest, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    keep(g, UPKEEP_MAP, &b.saved.memory, KEEP);
    keep(g, UPKEEP_MAP, &b.saved.state, KEEP);
    f->flags |= FOLLOWED;
    return 0;
}

static int follow_layer(struct gc *g, struct census_file *f, struct err *e)
{
    struct digest region;
    int rc = peek_map(g, UPKEEP_LAYER, f, &region, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    keep(g, UPKEEP_MAP, &region, KEEP);
    f->flags |= FOLLOWED;
    return 0;
}

/* A conversion that is kept keeps the blob that came of it. */
static int follow_pushed(struct gc *g, struct census_file *f, struct err *e)
{
    AUTO_JSON struct json *record = NULL;
    struct digest blob;
    int rc = pushed_peek(&record, g->store, &f->digest, e);
    if (rc == 0)
        rc = json_get_digest(record, "blob", &blob, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    keep(g, UPKEEP_BLOB, &blob, KEEP);
    f->flags |= FOLLOWED;
    return 0;
}

static int follow_map(struct gc *g, struct census_file *f, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = store_peek_map(g->store, &f->digest, &m, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    for (size_t i = 0; i < block_map_count(m); i++)
        keep(g, UPKEEP_CHUNK, &block_map_extent(m, i)->chunk, KEEP);
    f->flags |= FOLLOWED;
    return 0;
}

/* Marks the young ones of a kind, and follows those that are kept. */
static int follow(struct gc *g, enum upkeep_kind kind,
                  int (*one)(struct gc *g, struct census_file *f, struct err *e), struct err *e)
{
    const struct census_list *l = &g->census.lists[kind];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        struct census_file *f = &l->files[i];
        if (is_young(g, f))
            f->flags |= KEEP;
        if (one && f->flags & KEEP && !(f->flags & FOLLOWED))
            rc = one(g, f, e);
        if (rc == 0)
            rc = cancel_check(g->options->cancel, e);
    }
    return rc;
}

/* An index stays when a manifest does that it lists: without it a bake would fetch it again. */
static int keep_indexes(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_BLOB];
    for (size_t i = 0; i < l->count; i++) {
        struct census_file *f = &l->files[i];
        AUTO_BUF struct buf text;
        AUTO_JSON struct json *j = NULL;
        struct json *list = NULL;
        struct err no_index = ERR_INIT;
        char path[CENSUS_PATH_MAX];
        buf_init(&text, LIMIT_MANIFEST);
        if (f->flags & (KEEP | FOLLOWED) || f->size > LIMIT_MANIFEST)
            continue;
        f->flags |= FOLLOWED;
        census_path(UPKEEP_BLOB, f, path);
        if (file_read(store_dir(g->store), path, &text, &no_index) < 0 || text.len == 0 ||
            text.data[0] != '{' || json_parse(&j, text.data, text.len, path, &no_index) < 0 ||
            json_get_array(j, "manifests", &list, &no_index) < 0) {
            if (no_index.class == ERR_NOMEM)
                return err_nomem(e, path);
            continue;
        }
        for (size_t n = 0; n < json_length(list); n++) {
            struct digest d;
            const struct census_file *m =
                json_get_digest(json_element(list, n), "digest", &d, &no_index) == 0
                    ? census_find(&g->census, UPKEEP_BLOB, &d)
                    : NULL;
            if (m && m->flags & KEEP)
                f->flags |= KEEP;
        }
    }
    return 0;
}

static int mark(struct gc *g, struct err *e)
{
    int rc = mark_catalog(g, e);
    if (rc == 0)
        rc = mark_kept(g, e);
    if (rc == 0)
        rc = device_disks(g->store, keep_disk, g, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_RECORD, follow_record, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_LAYER, follow_layer, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_STEP, follow_step, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_BOOT, follow_boot, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_MAP, follow_map, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_PUSHED, follow_pushed, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_BLOB, NULL, e);
    if (rc == 0)
        rc = follow(g, UPKEEP_PARTIAL, NULL, e);
    if (rc == 0 && !g->last)
        rc = follow(g, UPKEEP_CHUNK, NULL, e);
    return rc < 0 ? rc : keep_indexes(g, e);
}

/* ---- The cap ---- */

/* Swept by age alone. */
static bool is_journal(enum upkeep_kind kind)
{
    return kind == UPKEEP_JOURNAL || kind == UPKEEP_CONSOLE;
}

static uint64_t kept_size(const struct gc *g)
{
    uint64_t size = 0;
    for (size_t kind = 0; kind < UPKEEP_STORE_KINDS; kind++) {
        const struct census_list *l = &g->census.lists[kind];
        for (size_t i = 0; i < l->count; i++)
            size += l->files[i].flags & KEEP || is_journal((enum upkeep_kind)kind)
                        ? l->files[i].size
                        : 0;
    }
    return size;
}

/* What may go when the store is too large. */
struct spare {
    enum upkeep_kind kind;
    struct census_file *file;
};

static int compare_use(const void *a, const void *b)
{
    const struct spare *x = a;
    const struct spare *y = b;
    return (x->file->used_ns < y->file->used_ns) - (x->file->used_ns > y->file->used_ns);
}

/* Bytes that keeping this adds to what is kept; with `mark` they are. */
static int spare_cost(struct gc *g, const struct spare *spare, bool mark_it, uint64_t *cost,
                      struct err *e)
{
    struct census_file *f = spare->file;
    struct digest name;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    *cost = f->size;
    int rc = peek_map(g, spare->kind, f, &name, e);
    struct census_file *map = rc == 0 ? census_find(&g->census, UPKEEP_MAP, &name) : NULL;
    if (rc == 0)
        rc = store_peek_map(g->store, &name, &m, e);
    if (rc < 0)
        return cannot_follow(g, f, e);
    if (map && !(map->flags & KEEP))
        *cost += map->size;
    const struct digest *last = NULL; /* extents of one chunk stand together in a region */
    for (size_t i = 0; i < block_map_count(m); i++) {
        const struct digest *chunk = &block_map_extent(m, i)->chunk;
        struct census_file *c = census_find(&g->census, UPKEEP_CHUNK, chunk);
        if (!c || c->flags & KEEP || (last && digest_equal(last, chunk)))
            continue;
        last = chunk;
        *cost += c->size;
        if (mark_it)
            c->flags |= KEEP;
    }
    if (mark_it) {
        f->flags |= KEEP | FOLLOWED;
        if (map)
            map->flags |= KEEP | FOLLOWED;
    }
    return 0;
}

static size_t list_spares(const struct gc *g, enum upkeep_kind kind, struct spare *out)
{
    const struct census_list *l = &g->census.lists[kind];
    size_t count = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (l->files[i].flags & SPARE && !(l->files[i].flags & KEEP))
            out[count++] = (struct spare){kind, &l->files[i]};
    }
    return count;
}

/* Layers and results of steps used last stay as long as there is room below the cap. */
static int keep_spares(struct gc *g, struct err *e)
{
    const size_t most = g->census.lists[UPKEEP_LAYER].count + g->census.lists[UPKEEP_STEP].count;
    AUTO_FREE struct spare *spares = mem_array(most, sizeof(*spares));
    if (!spares && most > 0)
        return err_nomem(e, "layers");
    size_t count = list_spares(g, UPKEEP_LAYER, spares);
    count += list_spares(g, UPKEEP_STEP, spares + count);
    if (count > 1)
        qsort(spares, count, sizeof(*spares), compare_use);
    uint64_t size = kept_size(g);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        uint64_t cost;
        rc = spare_cost(g, &spares[i], false, &cost, e);
        if (rc < 0 || size > g->options->max_size || cost > g->options->max_size - size)
            break;
        rc = spare_cost(g, &spares[i], true, &cost, e);
        size += cost;
    }
    return rc;
}

/* ---- Sweeping ---- */

static void count_kept(struct gc *g, enum upkeep_kind kind, const struct census_file *f)
{
    g->report->kept[kind].count++;
    g->report->kept[kind].size += f->size;
    g->report->kept_size += f->size;
}

static int sweep_file(struct gc *g, enum upkeep_kind kind, const struct census_file *f,
                      struct err *e)
{
    char path[CENSUS_PATH_MAX];
    struct stat st;
    int dir = store_dir(g->store);
    census_path(kind, f, path);
    if (!g->options->dry_run) {
        /* Looked at again: it may have been used since it was listed. */
        if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return 0;
        int64_t used_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        if (kind != UPKEEP_KEY && used_ns >= g->cutoff_ns) {
            count_kept(g, kind, f);
            return 0;
        }
        int rc = file_remove_tree(dir, path, e);
        if (rc < 0)
            return rc;
    }
    g->report->removed[kind].count++;
    g->report->removed[kind].size += f->size;
    if (g->options->removed)
        g->options->removed(g->options->ctx, kind, path, f->size);
    return 0;
}

static int sweep_kind(struct gc *g, enum upkeep_kind kind, struct err *e)
{
    const struct census_list *l = &g->census.lists[kind];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        if (l->files[i].flags & KEEP)
            count_kept(g, kind, &l->files[i]);
        else
            rc = sweep_file(g, kind, &l->files[i], e);
    }
    return rc;
}

/* Pointers of keys to records that go, or are gone. */
static int mark_keys(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_KEY];
    for (size_t i = 0; i < l->count; i++) {
        struct census_file *f = &l->files[i];
        struct digest record;
        f->flags &= ~(uint32_t)KEEP;
        if (key_peek(&record, g->store, &f->digest, e) < 0) {
            if (e->class == ERR_NOMEM)
                return -ERR_NOMEM;
            err_clear(e); /* damaged: fsck says so */
            f->flags |= KEEP;
            continue;
        }
        const struct census_file *r = census_find(&g->census, UPKEEP_RECORD, &record);
        if (r && r->flags & KEEP)
            f->flags |= KEEP;
    }
    return 0;
}

/* What a tag stood for is worth keeping while the document is. */
static int mark_tags(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_TAG];
    for (size_t i = 0; i < l->count; i++) {
        struct census_file *f = &l->files[i];
        struct digest document;
        if (is_young(g, f)) {
            f->flags |= KEEP;
            continue;
        }
        if (tag_peek(&document, g->store, &f->digest, e) < 0) {
            if (e->class == ERR_NOMEM)
                return -ERR_NOMEM;
            err_clear(e); /* damaged: it counts as missing anyway */
            continue;
        }
        const struct census_file *d = census_find(&g->census, UPKEEP_BLOB, &document);
        if (d && d->flags & KEEP)
            f->flags |= KEEP;
    }
    return 0;
}

static int sync_directories(struct gc *g, struct err *e)
{
    static const char *const directories[] = {"keys",  "templates", "steps",
                                              "boots", "layers",    "disks"};
    for (size_t i = 0; i < ARRAY_LEN(directories); i++) {
        AUTO_FD int fd = -1;
        int rc = file_open(&fd, store_dir(g->store), directories[i], O_RDONLY | O_DIRECTORY, 0, e);
        if (rc == -ERR_NOTFOUND)
            continue; /* none was ever made */
        if (rc < 0 || fsync(fd) < 0)
            return rc < 0 ? rc : err_sys(e, "syncing %s", directories[i]);
    }
    err_clear(e);
    return 0;
}

static int sweep_names(struct gc *g, struct err *e)
{
    static const enum upkeep_kind order[] = {
        UPKEEP_KEY, UPKEEP_RECORD, UPKEEP_STEP, UPKEEP_BOOT, UPKEEP_LAYER,
        UPKEEP_MAP, UPKEEP_PUSHED, UPKEEP_TAG,  UPKEEP_BLOB, UPKEEP_PARTIAL};
    int rc = mark_keys(g, e);
    if (rc == 0)
        rc = mark_tags(g, e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(order); i++)
        rc = sweep_kind(g, order[i], e);
    /* What names chunks is durably gone before they go. */
    return rc < 0 || g->options->dry_run ? rc : sync_directories(g, e);
}

/* The chunks of one directory under one lock, so that nobody waits for long. */
static int sweep_chunks(struct gc *g, struct err *e)
{
    const struct census_list *l = &g->census.lists[UPKEEP_CHUNK];
    AUTO_FD int lock = -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < l->count; i++) {
        const struct census_file *f = &l->files[i];
        if (i > 0 && f->digest.bytes[0] != l->files[i - 1].digest.bytes[0])
            file_close(&lock);
        if (f->flags & KEEP) {
            count_kept(g, UPKEEP_CHUNK, f);
            continue;
        }
        if (lock < 0 && !g->options->dry_run) {
            rc = cancel_check(g->options->cancel, e);
            if (rc == 0)
                rc = store_sweep_begin(&lock, g->store, e);
        }
        if (rc == 0)
            rc = sweep_file(g, UPKEEP_CHUNK, f, e);
    }
    return rc;
}

static int sweep_journals(struct gc *g, enum upkeep_kind kind, struct err *e)
{
    const struct census_list *l = &g->census.lists[kind];
    for (size_t i = 0; i < l->count; i++) {
        struct census_file *f = &l->files[i];
        if (is_young(g, f) || f->used_ns >= g->now_ns - JOURNAL_AGE_NS)
            f->flags |= KEEP;
    }
    return sweep_kind(g, kind, e);
}

/* ---- All of it ---- */

/* Lists the names again; what is known of those that were there before stays known. */
static int relist(struct gc *g, struct err *e)
{
    struct census now = {0};
    int rc = census_take(&now, g->store, NAMES, e);
    for (enum upkeep_kind kind = 0; rc == 0 && kind < UPKEEP_STORE_KINDS; kind++) {
        if (kind == UPKEEP_CHUNK)
            continue;
        struct census_list *l = &now.lists[kind];
        for (size_t i = 0; i < l->count; i++) {
            const struct census_file *before =
                l->files[i].name ? census_find_name(&g->census, kind, l->files[i].name)
                                 : census_find(&g->census, kind, &l->files[i].digest);
            l->files[i].flags = before ? before->flags : 0;
        }
        struct census_list old = g->census.lists[kind];
        g->census.lists[kind] = *l;
        *l = old;
    }
    census_fini(&now);
    return rc;
}

/* What happened since the first mark, then what goes, as one step for everybody else. */
static int settle(struct gc *g, struct err *e)
{
    AUTO_FD int lock = -1;
    int rc = 0;
    g->last = true;
    if (!g->options->dry_run) {
        rc = store_sweep_begin(&lock, g->store, e);
        if (rc == 0)
            rc = relist(g, e);
        if (rc == 0)
            rc = mark(g, e);
    }
    return rc < 0 ? rc : sweep_names(g, e);
}

/* Since when things may be in use, and the time now by the store's own clock. */
static int find_cutoff(struct gc *g, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    struct stat st;
    int64_t used_ns;
    int rc = file_tmp_open(&t, store_tmp_dir(g->store), e);
    if (rc == 0 && fstat(t.fd, &st) < 0)
        rc = err_sys(e, "reading the time");
    if (rc == 0)
        rc = store_used_since(g->store, &used_ns, e);
    if (rc < 0)
        return rc;
    g->now_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    int64_t grace_ns =
        g->options->grace_ms > INT64_MAX / 2000000 ? INT64_MAX / 2 : g->options->grace_ms * 1000000;
    g->cutoff_ns = g->now_ns - grace_ns < used_ns ? g->now_ns - grace_ns : used_ns;
    return 0;
}

static int collect(struct gc *g, struct err *e)
{
    int rc = find_cutoff(g, e);
    if (rc == 0)
        rc = census_take(&g->census, g->store, NAMES | 1U << UPKEEP_CHUNK, e);
    if (rc == 0)
        rc = mark(g, e);
    if (rc == 0 && g->options->max_size)
        rc = keep_spares(g, e);
    if (rc == 0)
        rc = settle(g, e);
    if (rc == 0)
        rc = sweep_chunks(g, e);
    if (rc == 0)
        rc = sweep_kind(g, UPKEEP_ALIAS, e); /* all are kept: counts them */
    if (rc == 0)
        rc = sweep_kind(g, UPKEEP_KEPT, e); /* the same */
    if (rc == 0)
        rc = sweep_journals(g, UPKEEP_CONSOLE, e);
    return rc < 0 ? rc : sweep_journals(g, UPKEEP_JOURNAL, e);
}

int store_gc(struct gc_report *out, struct store *s, const struct gc_options *o, struct err *e)
{
    *out = (struct gc_report){0};
    struct gc g = {.store = s, .options = o, .report = out};
    int rc = collect(&g, e);
    if (rc == 0 && o->cache_dir)
        rc = gc_cache(out, o, g.cutoff_ns, e);
    census_fini(&g.census);
    return rc;
}
