/* SPDX-License-Identifier: MIT */
/*
 * What of a template's disks and memory a boot and a restore read, in order, as its record keeps it:
 * numbers of extents of the map. A host fetches and unpacks these before the guest asks.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/guest/guest.h"
#include "bake/guest/memory.h"
#include "bake/guest/trace.h"
#include "bake/template.h"
#include "base/mem.h"

enum { TRACE_MAX = 1 << 17 }; /* extents; the rest of a longer trace comes when it is read */

static void note_extents(struct json *document, const char *member, const uint32_t *extents,
                         size_t count)
{
    struct json *list = json_new_array();
    for (size_t i = 0; i < count && i < TRACE_MAX; i++)
        json_append(list, json_new_integer(extents[i]));
    json_set(document, member, list);
}

/* A chunk, and when it was first read. */
struct first_read {
    struct digest chunk;
    uint32_t extent;
    size_t place;
};

static int compare_chunks(const void *a, const void *b)
{
    const struct first_read *x = a, *y = b;
    int order = digest_compare(&x->chunk, &y->chunk);
    return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

static int compare_places(const void *a, const void *b)
{
    const struct first_read *x = a, *y = b;
    return (x->place > y->place) - (x->place < y->place);
}

/* Leaves of the extents the first of each chunk, in their order. */
static int keep_first(uint32_t *extents, size_t *count, const struct block_map *m, struct err *e)
{
    AUTO_FREE struct first_read *reads = mem_array(*count, sizeof(*reads));
    if (!reads)
        return err_nomem(e, "trace");
    for (size_t i = 0; i < *count; i++)
        reads[i] = (struct first_read){
            .chunk = block_map_extent(m, extents[i])->chunk, .extent = extents[i], .place = i};
    qsort(reads, *count, sizeof(*reads), compare_chunks);
    size_t kept = 0;
    for (size_t i = 0; i < *count; i++) {
        if (kept == 0 || !digest_equal(&reads[kept - 1].chunk, &reads[i].chunk))
            reads[kept++] = reads[i];
    }
    qsort(reads, kept, sizeof(*reads), compare_places);
    for (size_t i = 0; i < kept; i++)
        extents[i] = reads[i].extent;
    *count = kept;
    return 0;
}

static int note_memory(struct json *document, const struct guest *g, struct err *e)
{
    AUTO_FREE uint32_t *extents = NULL;
    size_t count = 0;
    struct bdev_stats stats = {.bytes_read = 0};
    int rc = 0;
    if (g->memory) {
        stats = bdev_stats(memory_device(g->memory));
        rc = bdev_map_trace(memory_device(g->memory), &extents, &count, e);
    }
    if (rc == 0 && count > 0)
        rc = keep_first(extents, &count, memory_map(g->memory), e);
    if (rc < 0)
        return err_in(e, TRACE_MEMORY);
    if (count == 0)
        return 0;
    note_extents(document, TRACE_MEMORY, extents, count);
    json_set(document, "memory_read", json_new_integer((int64_t)stats.bytes_read));
    return 0;
}

int trace_note(struct json *document, const char *member, const struct guest *g, struct err *e)
{
    AUTO_FREE uint32_t *extents = NULL;
    size_t count = 0;
    int rc = bdev_map_trace(g->leaf, &extents, &count, e);
    if (rc < 0)
        return err_in(e, "%s", member);
    note_extents(document, member, extents, count);
    return strcmp(member, TRACE_RESTORE) == 0 ? note_memory(document, g, e) : 0;
}

int trace_note_boot(struct json *document, const struct guest *g, const struct block_map *from,
                    const struct block_map *base, struct err *e)
{
    AUTO_FREE uint32_t *extents = NULL;
    size_t count = 0;
    size_t last = SIZE_MAX;
    int rc = bdev_map_trace(g->leaf, &extents, &count, e);
    if (rc < 0)
        return err_in(e, "%s", TRACE_BOOT);
    struct json *list = json_new_array();
    for (size_t i = 0; i < count && i < TRACE_MAX; i++) {
        const struct map_extent *x = block_map_extent(from, extents[i]);
        size_t at = block_map_find(base, x->off);
        if (at == last || at == block_map_count(base) ||
            !digest_equal(&block_map_extent(base, at)->chunk, &x->chunk))
            continue;
        last = at;
        json_append(list, json_new_integer((int64_t)at));
    }
    json_set(document, TRACE_BOOT, list);
    return 0;
}

/* A list of chunks that grows. */
struct chunk_list {
    struct digest *all;
    size_t count, capacity;
};

static int add_chunk(struct chunk_list *l, const struct block_map *m, size_t extent, struct err *e)
{
    const struct digest *chunk = &block_map_extent(m, extent)->chunk;
    if (l->count > 0 && digest_equal(&l->all[l->count - 1], chunk))
        return 0;
    int rc = mem_grow(&l->all, &l->capacity, l->count + 1, sizeof(*l->all), e);
    if (rc == 0)
        l->all[l->count++] = *chunk;
    return rc;
}

/* What is no number of an extent is passed over: a trace can make nothing wrong, only slow. */
static int add_trace(struct chunk_list *l, const struct json *list, const struct block_map *m,
                     struct err *e)
{
    size_t count = json_length(list) < TRACE_MAX ? json_length(list) : TRACE_MAX;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        const struct json *number = json_element(list, i);
        int64_t extent = json_kind(number) == JSON_KIND_INTEGER ? json_as_integer(number) : -1;
        if (extent >= 0 && (uint64_t)extent < block_map_count(m))
            rc = add_chunk(l, m, (size_t)extent, e);
    }
    return rc;
}

static int add_all(struct chunk_list *l, const struct block_map *m, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < block_map_count(m); i++)
        rc = add_chunk(l, m, i, e);
    return rc;
}

/* A boot's trace is of the disk as it was assembled; what the steps changed is read too. */
static int add_boot(struct chunk_list *l, const struct template *t, struct store *s,
                    const struct json *list, const struct block_map *disk, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *base = NULL;
    AUTO_BLOCK_MAP struct block_map *changed = NULL;
    AUTO_BLOCK_MAP struct block_map *gone = NULL;
    int rc = store_get_map(s, &t->base_disk, &base, e);
    if (rc == 0)
        rc = add_trace(l, list, base, e);
    if (rc == 0)
        rc = block_map_delta(&changed, &gone, base, disk, e);
    /* Many changes are data of the steps, which nobody may read. */
    if (rc == 0 && block_map_count(changed) <= TRACE_DELTA_MAX)
        rc = add_all(l, changed, e);
    return rc;
}

/* The map's chunks that the record's list names; none where it has no such list. */
static int add_noted(struct chunk_list *l, const struct template *t, struct store *s,
                     const char *member, const struct digest *map, struct err *e)
{
    const struct json *list = json_member(t->document, member);
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    if (!list || json_kind(list) != JSON_KIND_ARRAY || json_length(list) == 0)
        return 0;
    int rc = store_get_map(s, map, &m, e);
    if (rc == 0 && strcmp(member, TRACE_BOOT) == 0)
        rc = add_boot(l, t, s, list, m, e);
    else if (rc == 0)
        rc = add_trace(l, list, m, e);
    return rc;
}

/* In the order of need: nothing runs without the device state, and memory is touched first. */
static int add_restore(struct chunk_list *l, const struct template *t, struct store *s,
                       struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *state = NULL;
    int rc = store_get_map(s, &t->state, &state, e);
    if (rc == 0)
        rc = add_all(l, state, e);
    if (rc == 0)
        rc = add_noted(l, t, s, TRACE_MEMORY, &t->memory, e);
    return rc == 0 ? add_noted(l, t, s, TRACE_RESTORE, &t->disk, e) : rc;
}

int trace_chunks(struct digest **out, size_t *count, const struct template *t, struct store *s,
                 const char *member, struct err *e)
{
    struct chunk_list l = {0};
    *out = NULL;
    *count = 0;
    int rc = strcmp(member, TRACE_RESTORE) == 0 ? add_restore(&l, t, s, e)
                                                : add_noted(&l, t, s, member, &t->disk, e);
    if (rc < 0) {
        free(l.all);
        return err_in(e, "%s", member);
    }
    *out = l.all;
    *count = l.count;
    return 0;
}
