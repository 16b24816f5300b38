/* SPDX-License-Identifier: MIT */
/*
 * Sizes of templates, for people. Chunks of all templates are counted in one sorted list of
 * (digest, template) pairs: a chunk whose pairs all name one template is unique to it.
 */

#include <stdlib.h>

#include "bake/template.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

struct use {
    struct digest chunk;
    size_t owner;
};

struct use_list {
    struct use *uses;
    size_t count;
    size_t capacity;
};

static int compare_uses(const void *a, const void *b)
{
    const struct use *left = a;
    const struct use *right = b;
    int order = digest_compare(&left->chunk, &right->chunk);
    return order != 0 ? order : (left->owner > right->owner) - (left->owner < right->owner);
}

/* Adds a map's chunks; *data counts the bytes that it covers. */
static int add_map(struct use_list *l, struct store *s, const struct digest *map, size_t owner,
                   uint64_t *data, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    int rc = store_get_map(s, map, &m, e);
    if (rc < 0)
        return rc;
    size_t count = block_map_count(m);
    rc = mem_grow(&l->uses, &l->capacity, l->count + count, sizeof(*l->uses), e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct map_extent *x = block_map_extent(m, i);
        l->uses[l->count++] = (struct use){.chunk = x->chunk, .owner = owner};
        *data += x->size;
    }
    return rc;
}

static void note_missing(const struct template *t, struct template_sizes *out, const struct err *e)
{
    if (!out->damaged)
        log_event(LOG_WARN, "bake", "template %s: %s", t->alias, e->text);
    out->damaged = true;
}

static int collect_uses(struct use_list *l, struct template_sizes *out,
                        struct template *const *templates, size_t count, struct store *s,
                        struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct template *t = templates[i];
        AUTO_BLOCK_MAP struct block_map *disk = NULL;
        uint64_t state_data = 0;
        rc = store_get_map(s, &t->disk, &disk, e);
        if (rc == 0) {
            out[i].disk_size = block_map_virtual_size(disk);
            rc = add_map(l, s, &t->disk, i, &out[i].disk_data, e);
        }
        if (rc == 0)
            rc = add_map(l, s, &t->memory, i, &out[i].memory_data, e);
        if (rc == 0)
            rc = add_map(l, s, &t->state, i, &state_data, e);
        if (rc < 0 && rc != -ERR_NOMEM) {
            note_missing(t, &out[i], e);
            rc = 0;
        }
    }
    return rc;
}

/* Adds the stored size of one chunk, whose uses are uses[from, to), to its owners. */
static void count_chunk(const struct use_list *l, size_t from, size_t to,
                        struct template_sizes *out, struct template *const *templates,
                        struct store *s)
{
    uint64_t stored = 0;
    struct err why = ERR_INIT;
    bool missing = store_chunk_stored_size(s, &l->uses[from].chunk, &stored, &why) < 0;
    bool shared = l->uses[from].owner != l->uses[to - 1].owner;
    for (size_t i = from; i < to; i++) {
        if (i > from && l->uses[i].owner == l->uses[i - 1].owner)
            continue;
        size_t owner = l->uses[i].owner;
        out[owner].stored += stored;
        if (!shared)
            out[owner].unique += stored;
        if (missing)
            note_missing(templates[owner], &out[owner], &why);
    }
}

int template_measure(struct template_sizes *out, struct template *const *templates, size_t count,
                     struct store *s, struct err *e)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (struct template_sizes){0};
    struct use_list l = {0};
    int rc = collect_uses(&l, out, templates, count, s, e);
    if (rc == 0 && l.count > 0)
        qsort(l.uses, l.count, sizeof(*l.uses), compare_uses);
    size_t from = 0;
    while (rc == 0 && from < l.count) {
        size_t to = from + 1;
        while (to < l.count && digest_equal(&l.uses[from].chunk, &l.uses[to].chunk))
            to++;
        count_chunk(&l, from, to, out, templates, s);
        from = to;
    }
    free(l.uses);
    return rc;
}
