/* SPDX-License-Identifier: MIT */
/*
 * What of a template's disks a boot and a restore read, in order, as its record keeps it: numbers of
 * extents of the disk's map. A host that has not all chunks fetches these before the guest asks.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/pipeline.h"
#include "base/mem.h"

enum { TRACE_MAX = 1 << 17 }; /* extents; the rest of a longer trace comes when it is read */

int trace_note(struct json *document, const char *member, const struct guest *g, struct err *e)
{
    AUTO_FREE uint32_t *extents = NULL;
    size_t count = 0;
    int rc = bdev_map_trace(g->leaf, &extents, &count, e);
    if (rc < 0)
        return err_in(e, "%s", member);
    struct json *list = json_new_array();
    for (size_t i = 0; i < count && i < TRACE_MAX; i++)
        json_append(list, json_new_integer(extents[i]));
    json_set(document, member, list);
    return 0;
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

int trace_chunks(struct digest **out, size_t *count, const struct template *t, struct store *s,
                 const char *member, struct err *e)
{
    const struct json *list = json_member(t->document, member);
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    struct chunk_list l = {0};
    int rc = 0;
    *out = NULL;
    *count = 0;
    if (!list || json_kind(list) != JSON_KIND_ARRAY)
        return 0;
    rc = store_get_map(s, &t->disk, &disk, e);
    if (rc == 0)
        rc = strcmp(member, TRACE_BOOT) == 0 ? add_boot(&l, t, s, list, disk, e)
                                             : add_trace(&l, list, disk, e);
    if (rc < 0) {
        free(l.all);
        return err_in(e, "%s", member);
    }
    *out = l.all;
    *count = l.count;
    return 0;
}
