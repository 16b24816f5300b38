/* SPDX-License-Identifier: MIT */
/*
 * Layers as the store keeps them: layers/<diff_id hex> holds the digest of the region's block map
 * and the layer index, in one file, so that a layer is there wholly or not at all. This is where
 * oci's layer reader and blockdev's region writer meet; neither knows the other.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/image/ingest_gate.h"
#include "bake/image/layer_store.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "blockdev/blockdev.h"

/* docs/formats/store.md, "Layers". */
static const char magic[8] = {'T', 'B', '2', 'L', 'A', 'Y', '0', '2'};

enum { LAYER_PATH_MAX = 8 + DIGEST_TEXT_MAX };

static void layer_path(char path[LAYER_PATH_MAX], const struct digest *diff_id)
{
    char hex[DIGEST_TEXT_MAX];
    snprintf(path, LAYER_PATH_MAX, "layers/%s", digest_hex(diff_id, hex));
}

/* Laid out by another version; what cannot be told is not. */
static bool is_foreign(struct store *s, const char *path)
{
    char head[sizeof(magic)];
    struct err ignored = ERR_INIT;
    AUTO_FD int fd = -1;
    return file_open(&fd, store_dir(s), path, O_RDONLY | O_NOFOLLOW, 0, &ignored) == 0 &&
           file_pread_full(fd, head, sizeof(head), 0, &ignored) == 0 &&
           memcmp(head, magic, sizeof(head)) != 0;
}

bool layer_has(struct store *s, const struct digest *diff_id)
{
    char path[LAYER_PATH_MAX];
    layer_path(path, diff_id);
    return store_use(s, path) && !is_foreign(s, path);
}

static int region_begin(void *ctx, uint64_t size, struct err *e)
{
    return region_file_begin(ctx, size, e);
}

static int region_data(void *ctx, uint64_t off, const void *data, size_t len, struct err *e)
{
    return region_file_data(ctx, off, data, len, e);
}

static int region_end(void *ctx, struct oci_extent **extents, size_t *count, struct err *e)
{
    struct region_extent *from = NULL;
    size_t n = 0;
    int rc = region_file_end(ctx, &from, &n, e);
    if (rc < 0)
        return rc;
    AUTO_FREE struct region_extent *held = from;
    struct oci_extent *to = NULL;
    if (n > 0) {
        to = mem_array(n, sizeof(*to));
        if (!to)
            return err_nomem(e, "file extents");
    }
    for (size_t i = 0; i < n; i++)
        to[i] = (struct oci_extent){held[i].file_off, held[i].len, held[i].region_off};
    *extents = to;
    *count = n;
    return 0;
}

int layer_put(struct store *s, const struct digest *diff_id, const struct layer_made *made,
              struct err *e)
{
    AUTO_BUF struct buf index;
    AUTO_BUF struct buf file;
    buf_init(&index, LIMIT_LAYER_INDEX);
    buf_init(&file, LIMIT_LAYER_INDEX + 128);
    int rc = oci_layer_encode(made->layer, &index, e);
    if (rc < 0)
        return rc;
    struct digest sum;
    digest_bytes(&sum, index.data, index.len);
    rc = buf_add(&file, magic, sizeof(magic), e);
    if (rc == 0)
        rc = buf_add(&file, made->region.bytes, DIGEST_SHA256_LEN, e);
    if (rc == 0)
        rc = buf_add(&file, sum.bytes, DIGEST_SHA256_LEN, e);
    if (rc == 0)
        rc = buf_add(&file, index.data, index.len, e);
    char path[LAYER_PATH_MAX];
    layer_path(path, diff_id);
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    if (rc == 0)
        rc = file_tmp_open(&t, store_tmp_dir(s), e);
    if (rc == 0)
        rc = file_write_full(t.fd, file.data, file.len, e);
    if (rc == 0)
        rc = file_tmp_commit(&t, store_dir(s), path, false, e);
    return rc < 0 ? err_in(e, "%s", path) : 0;
}

const struct oci_data_ops layer_region_ops = {region_begin, region_data, region_end};

void layer_made_fini(struct layer_made *m)
{
    oci_layer_free(m->layer);
    *m = (struct layer_made){0};
}

static int read_inside(struct layer_made *out, struct store *s, const struct layer_blob *blob,
                       struct crew *crew, const struct oci_layer_options *how, struct err *e)
{
    AUTO_REGION_WRITER struct region_writer *writer = NULL;
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    int rc = region_writer_new_on(&writer, s, crew, e);
    if (rc < 0)
        return rc;
    struct oci_layer_options options = *how;
    options.blob = *blob->descriptor;
    if (blob->diff_id)
        options.diff_id = *blob->diff_id;
    options.ops = &layer_region_ops;
    options.ctx = writer;
    options.threads = crew_size(crew) > 1;
    rc = oci_layer_read(&out->layer, blob->source, &options, e);
    if (rc == 0)
        rc = region_writer_finish(writer, &region, e);
    if (rc == 0)
        rc = store_put_map_unsynced(s, region, &out->region, e);
    if (rc < 0)
        layer_made_fini(out);
    return rc;
}

int layer_read_blob(struct layer_made *out, struct store *s, const struct layer_blob *blob,
                    struct ingest_gate *g, const struct cancel *c, struct err *e)
{
    bool wide = false;
    *out = (struct layer_made){0};
    ingest_gate_enter(g, false);
    int rc = cancel_check(c, e);
    if (rc == 0)
        rc = read_inside(out, s, blob, ingest_gate_crew(g),
                         &(struct oci_layer_options){.wide = &wide, .cancel = c}, e);
    ingest_gate_leave(g, false);
    if (rc != -ERR_LIMIT || !wide)
        return rc;
    /* From the start, which is nearly always where it stopped. */
    err_clear(e);
    ingest_gate_enter(g, true);
    rc =
        read_inside(out, s, blob, ingest_gate_crew(g), &(struct oci_layer_options){.cancel = c}, e);
    ingest_gate_leave(g, true);
    return rc;
}

int layer_ingest(struct store *s, const struct layer_blob *blob, struct ingest_gate *g,
                 const struct cancel *c, struct err *e)
{
    struct layer_made made;
    int rc = layer_read_blob(&made, s, blob, g, c, e);
    if (rc == 0)
        rc = layer_put(s, blob->diff_id, &made, e);
    layer_made_fini(&made);
    return rc;
}

/* Takes the file apart: the region map's name, and where the layer index is. */
static int layer_open_file(const struct buf *file, struct digest *region, struct cursor *index,
                           struct err *e)
{
    struct cursor c = {.at = file->data, .left = file->len};
    const uint8_t *head;
    const uint8_t *region_sum;
    const uint8_t *index_sum;
    int rc = cursor_bytes(&c, &head, sizeof(magic), e);
    if (rc == 0)
        rc = cursor_bytes(&c, &region_sum, DIGEST_SHA256_LEN, e);
    if (rc == 0)
        rc = cursor_bytes(&c, &index_sum, DIGEST_SHA256_LEN, e);
    if (rc < 0)
        return rc;
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return err_set(e, ERR_CORRUPT, "not a layer as this version lays them out");
    struct digest sum;
    digest_bytes(&sum, c.at, c.left);
    if (memcmp(sum.bytes, index_sum, DIGEST_SHA256_LEN) != 0)
        return err_set(e, ERR_CORRUPT, "layer index is damaged");
    *region = (struct digest){.algorithm = DIGEST_SHA256};
    memcpy(region->bytes, region_sum, DIGEST_SHA256_LEN);
    *index = c;
    return 0;
}

static int layer_read(struct store *s, const struct digest *diff_id, struct buf *file,
                      struct digest *map, struct cursor *index, struct err *e)
{
    char path[LAYER_PATH_MAX];
    layer_path(path, diff_id);
    store_use(s, path); /* reading says whether it is there */
    buf_init(file, LIMIT_LAYER_INDEX + 128);
    int rc = file_read(store_dir(s), path, file, e);
    return rc < 0 ? rc : layer_open_file(file, map, index, e);
}

int layer_inspect(struct store *s, const char *path, struct digest *region, struct err *e)
{
    AUTO_BUF struct buf file;
    struct cursor index;
    buf_init(&file, LIMIT_LAYER_INDEX + 128);
    int rc = file_read(store_dir(s), path, &file, e);
    return rc < 0 ? rc : layer_open_file(&file, region, &index, e);
}

/* Whether the layer can be used: its file and its region's map are sound, its chunks are there. */
static int layer_check(struct store *s, const struct digest *diff_id, bool elsewhere, struct err *e)
{
    AUTO_BUF struct buf file;
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    struct digest map;
    struct cursor index;
    int rc = layer_read(s, diff_id, &file, &map, &index, e);
    if (rc == 0)
        rc = store_get_map(s, &map, &region, e);
    for (size_t i = 0; rc == 0 && !elsewhere && i < block_map_count(region); i++) {
        const struct digest *chunk = &block_map_extent(region, i)->chunk;
        if (i == 0 || !digest_equal(chunk, &block_map_extent(region, i - 1)->chunk))
            rc = store_check_chunk(s, chunk, e);
    }
    return rc;
}

void layer_drop_damaged(struct store *s, const struct digest *diff_id, bool elsewhere)
{
    struct err e = ERR_INIT;
    char path[LAYER_PATH_MAX];
    layer_path(path, diff_id);
    if (!store_use(s, path) || layer_check(s, diff_id, elsewhere, &e) == 0)
        return;
    if (e.class != ERR_CORRUPT && e.class != ERR_DIGEST && e.class != ERR_NOTFOUND)
        return; /* using it will say the same */
    log_event(LOG_WARN, "bake", "%s: made again: %s", path, e.text);
    unlinkat(store_dir(s), path, 0);
}

int layer_decode_file(const struct buf *file, struct digest *region, struct oci_layer **layer,
                      struct err *e)
{
    struct cursor index;
    int rc = layer_open_file(file, region, &index, e);
    return rc < 0 ? rc : oci_layer_decode(layer, index.at, index.left, e);
}

int layer_region(struct store *s, const struct digest *diff_id, struct digest *region,
                 struct err *e)
{
    AUTO_BUF struct buf file;
    struct cursor index;
    return layer_read(s, diff_id, &file, region, &index, e);
}

int layer_load(struct store *s, const struct digest *diff_id, struct oci_layer **layer,
               struct block_map **region, struct err *e)
{
    char path[LAYER_PATH_MAX];
    layer_path(path, diff_id);
    AUTO_BUF struct buf file;
    AUTO_OCI_LAYER struct oci_layer *l = NULL;
    struct digest map;
    struct cursor index;
    int rc = layer_read(s, diff_id, &file, &map, &index, e);
    if (rc == 0)
        rc = oci_layer_decode(&l, index.at, index.left, e);
    if (rc == 0)
        rc = store_get_map(s, &map, region, e);
    if (rc < 0) {
        err_in(e, "%s", path);
        return err_hint(e, "remove %s/%s; the next bake makes it again", store_path(s), path);
    }
    *layer = MOVE(l);
    return 0;
}
