/* SPDX-License-Identifier: MIT */
/* Reading all that a template refers to, and proving it again. */
#include <stdlib.h>
#include <string.h>

#include "bake/guest/machine_room.h"
#include "bake/template.h"
#include "bake/template/copy.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

static int compare_digests(const void *a, const void *b)
{
    return digest_compare(a, b);
}

/* All chunks that the maps refer to, sorted, each once. */
static int collect_chunks(struct digest **out, size_t *count, struct store *s,
                          const struct digest *maps, size_t map_count, struct err *e)
{
    struct digest *all = NULL;
    size_t used = 0;
    size_t capacity = 0;
    int rc = 0;
    for (size_t n = 0; rc == 0 && n < map_count; n++) {
        AUTO_BLOCK_MAP struct block_map *m = NULL;
        rc = store_get_map(s, &maps[n], &m, e);
        size_t extents = rc == 0 ? block_map_count(m) : 0;
        if (rc == 0)
            rc = mem_grow(&all, &capacity, used + extents, sizeof(*all), e);
        for (size_t i = 0; rc == 0 && i < extents; i++)
            all[used++] = block_map_extent(m, i)->chunk;
    }
    if (rc < 0) {
        free(all);
        return rc;
    }
    if (used > 0)
        qsort(all, used, sizeof(*all), compare_digests);
    size_t kept = 0;
    for (size_t i = 0; i < used; i++) {
        if (kept == 0 || !digest_equal(&all[kept - 1], &all[i]))
            all[kept++] = all[i];
    }
    *out = all;
    *count = kept;
    return 0;
}

static int read_chunks(struct store *s, const struct digest *chunks, size_t count,
                       const struct cancel *c, struct verify_report *out, struct err *e)
{
    AUTO_FREE void *data = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data)
        return err_nomem(e, "chunk");
    for (size_t i = 0; i < count; i++) {
        size_t len = 0;
        int rc = cancel_check(c, e);
        if (rc == 0)
            rc = store_get_chunk(s, &chunks[i], data, &len, e);
        if (rc < 0)
            return rc;
        out->chunks++;
        out->size += len;
    }
    return 0;
}

int template_verify(const struct template *t, struct store *s, const struct template_use *use,
                    struct verify_report *out, struct err *e)
{
    *out = (struct verify_report){0};
    const struct digest maps[] = {t->disk, t->base_disk, t->memory, t->state};
    AUTO_FREE struct digest *chunks = NULL;
    size_t count = 0;
    int rc = collect_chunks(&chunks, &count, s, maps, ARRAY_LEN(maps), e);
    if (rc == 0)
        rc = read_chunks(s, chunks, count, use->cancel, out, e);
    struct machine_room room = {0};
    if (rc == 0)
        rc = template_open_room(&room, t, s, use, e);
    if (rc == 0) {
        rc = prove_template(t, &room, NULL, &out->proof, e);
        machine_room_close(&room);
    }
    return rc < 0 ? err_in(e, "template %s", t->alias) : 0;
}
