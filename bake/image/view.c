/* SPDX-License-Identifier: MIT */
/*
 * Looking at images: what they say of themselves, the tree that their layers make, how two of them
 * differ. Nothing is booted, no disk is made, no chunk is stored. Layers that the store has are read
 * from there; of others the blob is read once, without its data, or with it only to compare.
 */

#include <string.h>

#include "bake/common/document.h"
#include "bake/common/run_lock.h"
#include "bake/image.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum {
    BLOCK = 4096,
    READ_LEN = 256 << 10,      /* bytes read at once of a file in the store */
    VIEW_CACHE_SIZE = 64 << 20 /* plain chunks kept while files are compared */
};

/* ---- Content ---- */

/*
 * A digest of a file's bytes that holes do not change: of its blocks of 4096 bytes, the last one
 * filled up with zeros, those that hold anything else than zeros, each behind its offset.
 */
struct content {
    struct hasher *hasher;
    uint64_t block_off;
    bool filled; /* something was put into `block` */
    uint8_t block[BLOCK];
};

static void content_flush(struct content *c)
{
    static const uint8_t zeros[BLOCK];
    if (c->filled && memcmp(c->block, zeros, BLOCK) != 0) {
        uint8_t off[8];
        for (size_t i = 0; i < sizeof(off); i++)
            off[i] = (uint8_t)(c->block_off >> (8 * i));
        hasher_add(c->hasher, off, sizeof(off));
        hasher_add(c->hasher, c->block, BLOCK);
    }
    memset(c->block, 0, BLOCK);
    c->filled = false;
}

static void content_add(struct content *c, uint64_t off, const uint8_t *data, size_t len)
{
    while (len > 0) {
        size_t inside = (size_t)(off % BLOCK);
        size_t part = len < BLOCK - inside ? len : BLOCK - inside;
        if (off - inside != c->block_off) {
            content_flush(c);
            c->block_off = off - inside;
        }
        memcpy(c->block + inside, data, part);
        c->filled = true;
        off += part;
        data += part;
        len -= part;
    }
}

static void content_finish(struct content *c, struct digest *out)
{
    content_flush(c);
    c->block_off = 0;
    hasher_finish(c->hasher, out);
}

/* ---- Layers ---- */

/* A layer of an image that is looked at. */
struct view_layer {
    struct oci_layer *layer;
    struct block_map *region; /* of one that the store has, else NULL */
    struct bdev *device;      /* over the region, once it is wanted */
    /* Of one that was read with its data: a digest for each file that is not empty, in order. */
    struct digest *files;
    size_t file_count;
    size_t file_capacity;
    size_t *file_of_entry; /* by the entry's number */
};

struct view {
    struct image *image;
    struct view_layer *layers;
    size_t count;
    struct oci_tree *tree;
};

static void view_fini(struct view *v)
{
    oci_tree_free(v->tree);
    for (size_t i = 0; i < v->count; i++) {
        struct view_layer *l = &v->layers[i];
        bdev_close(l->device);
        block_map_free(l->region);
        oci_layer_free(l->layer);
        free(l->files);
        free(l->file_of_entry);
    }
    free(v->layers);
    image_free(v->image);
    *v = (struct view){0};
}

struct digesting {
    struct view_layer *layer;
    struct content content;
};

static int digest_begin(void *ctx UNUSED, uint64_t size UNUSED, struct err *e UNUSED)
{
    return 0;
}

static int digest_data(void *ctx, uint64_t off, const void *data, size_t len, struct err *e UNUSED)
{
    struct digesting *d = ctx;
    content_add(&d->content, off, data, len);
    return 0;
}

static int digest_end(void *ctx, struct oci_extent **extents, size_t *count, struct err *e)
{
    struct digesting *d = ctx;
    struct view_layer *l = d->layer;
    *extents = NULL;
    *count = 0;
    int rc = mem_grow(&l->files, &l->file_capacity, l->file_count + 1, sizeof(*l->files), e);
    if (rc == 0)
        content_finish(&d->content, &l->files[l->file_count++]);
    return rc;
}

static int number_files(struct view_layer *l, struct err *e)
{
    size_t file = 0;
    size_t count = oci_layer_count(l->layer);
    l->file_of_entry = mem_array(count, sizeof(*l->file_of_entry));
    if (!l->file_of_entry)
        return err_nomem(e, "layer");
    for (size_t i = 0; i < count; i++) {
        const struct oci_entry *entry = oci_layer_entry(l->layer, i);
        bool has_data = entry->type == OCI_FILE && entry->size > 0;
        l->file_of_entry[i] = has_data ? file++ : SIZE_MAX;
    }
    return file == l->file_count ? 0 : err_set(e, ERR_CORRUPT, "files without content");
}

static int read_blob(struct view_layer *l, struct image *i, struct image_room *r, size_t n,
                     bool with_content, struct err *e)
{
    static const struct oci_data_ops ops = {digest_begin, digest_data, digest_end};
    struct digesting digesting = {.layer = l};
    struct source blob = {0};
    int rc = image_open_layer(i, r, n, &blob, e);
    if (rc == 0)
        rc = hasher_new(&digesting.content.hasher, DIGEST_SHA256, e);
    struct oci_layer_options options = {.blob = i->manifest.layers[n],
                                        .diff_id = i->config.diff_ids[n],
                                        .ops = with_content ? &ops : NULL,
                                        .ctx = &digesting,
                                        .cancel = r->cancel};
    if (rc == 0)
        rc = oci_layer_read(&l->layer, &blob, &options, e);
    if (rc == 0 && with_content)
        rc = number_files(l, e);
    hasher_free(digesting.content.hasher);
    source_close(&blob);
    return rc;
}

/* Gets the blobs that are neither ingested nor here. That is a bake's work, so it takes a bake's
 * lock; whoever finds all in place needs none. */
static int fetch_blobs(struct image *i, struct image_room *r, struct err *e)
{
    bool missing = false;
    for (size_t n = 0; n < i->manifest.layer_count && !missing && !image_is_local(i); n++) {
        char path[BLOB_PATH_MAX];
        image_blob_path(path, "blobs", &i->manifest.layers[n].digest);
        missing =
            !layer_has(r->store, &i->config.diff_ids[n]) && !file_exists(store_dir(r->store), path);
    }
    if (!missing)
        return 0;
    AUTO_FD int lock = -1;
    int rc = r->offline ? 0 : run_lock(&lock, r->store, e);
    return rc < 0 ? rc : image_pull(i, r, NULL, e);
}

static int view_layers(struct view *v, struct image_room *r, bool with_content, struct err *e)
{
    struct image *i = v->image;
    v->layers = mem_array(i->manifest.layer_count, sizeof(*v->layers));
    if (!v->layers)
        return err_nomem(e, "layers");
    for (size_t n = 0; n < i->manifest.layer_count; n++) {
        struct view_layer *l = &v->layers[v->count++];
        int rc = layer_has(r->store, &i->config.diff_ids[n])
                     ? layer_load(r->store, &i->config.diff_ids[n], &l->layer, &l->region, e)
                     : read_blob(l, i, r, n, with_content, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int view_merge(struct view *v, const struct cancel *c, struct err *e)
{
    AUTO_FREE struct oci_layer **layers = mem_array(v->count, sizeof(struct oci_layer *));
    if (!layers)
        return err_nomem(e, "layers");
    for (size_t n = 0; n < v->count; n++)
        layers[n] = v->layers[n].layer;
    return oci_tree_merge(&v->tree, layers, v->count, c, e);
}

/* For view_fini, whatever the result. */
static int view_open(struct view *v, struct image_room *r, const char *reference, bool with_content,
                     struct err *e)
{
    int rc = image_resolve(&v->image, r, reference, e);
    if (rc == 0)
        rc = fetch_blobs(v->image, r, e);
    if (rc < 0)
        return rc;
    rc = view_layers(v, r, with_content, e);
    if (rc == 0)
        rc = view_merge(v, r->cancel, e);
    return rc < 0 ? err_in(e, "image %s", reference) : 0;
}

/* ---- Comparing content ---- */

struct comparison {
    struct view views[2];
    struct chunk_cache *cache;
    image_difference_sink *sink;
    void *ctx;
    bool different;
};

static int hash_extent(struct view_layer *l, const struct oci_extent *extent, struct content *c,
                       uint8_t *data, struct err *e)
{
    for (uint64_t done = 0; done < extent->len;) {
        size_t len = extent->len - done < READ_LEN ? (size_t)(extent->len - done) : READ_LEN;
        int rc = bdev_read(l->device, data, len, extent->region_off + done);
        if (rc != 0)
            return err_set(e, ERR_CORRUPT, "the store cannot give the content of a file");
        content_add(c, extent->file_off + done, data, len);
        done += len;
    }
    return 0;
}

static int hash_stored(struct comparison *c, struct view_layer *l, const struct oci_entry *entry,
                       struct digest *out, struct err *e)
{
    struct content content = {0};
    AUTO_FREE uint8_t *data = mem_zalloc(READ_LEN);
    AUTO_HASHER struct hasher *hasher = NULL;
    int rc = data ? hasher_new(&hasher, DIGEST_SHA256, e) : err_nomem(e, "comparison");
    if (rc == 0 && !l->device)
        rc = bdev_open_map(&l->device, l->region, c->cache, e);
    content.hasher = hasher;
    for (size_t i = 0; rc == 0 && i < entry->extent_count; i++)
        rc = hash_extent(l, &entry->extents[i], &content, data, e);
    if (rc == 0)
        content_finish(&content, out);
    return rc;
}

/* Files of a tree are entries of their layers (struct oci_node). */
static size_t entry_number(const struct view_layer *l, const struct oci_entry *entry)
{
    return (size_t)(entry - oci_layer_entry(l->layer, 0));
}

static int node_digest(struct comparison *c, struct view *v, const struct oci_node *node,
                       struct digest *out, struct err *e)
{
    struct view_layer *l = &v->layers[node->layer];
    if (l->region)
        return hash_stored(c, l, node->entry, out, e);
    *out = l->files[l->file_of_entry[entry_number(l, node->entry)]];
    return 0;
}

/* Entries at the same place of the same layer are the same bytes. */
static bool same_entry(const struct comparison *c, const struct oci_node *a,
                       const struct oci_node *b)
{
    const struct digest *x = &c->views[0].image->config.diff_ids[a->layer];
    const struct digest *y = &c->views[1].image->config.diff_ids[b->layer];
    return digest_equal(x, y) && entry_number(&c->views[0].layers[a->layer], a->entry) ==
                                     entry_number(&c->views[1].layers[b->layer], b->entry);
}

static int same_content(void *ctx, const struct oci_node *a, const struct oci_node *b, bool *same,
                        struct err *e)
{
    struct comparison *c = ctx;
    struct digest x = {0};
    struct digest y = {0};
    *same = same_entry(c, a, b);
    if (*same)
        return 0;
    int rc = node_digest(c, &c->views[0], a, &x, e);
    if (rc == 0)
        rc = node_digest(c, &c->views[1], b, &y, e);
    *same = rc == 0 && digest_equal(&x, &y);
    return rc;
}

static int on_difference(void *ctx, const struct oci_difference *d, struct err *e)
{
    struct comparison *c = ctx;
    c->different = true;
    return c->sink(c->ctx, d, e);
}

static int compare(struct comparison *c, struct image_room *r, const char *const references[2],
                   struct err *e)
{
    int rc = chunk_cache_new(&c->cache, r->store, VIEW_CACHE_SIZE, e);
    for (size_t i = 0; rc == 0 && i < 2; i++)
        rc = view_open(&c->views[i], r, references[i], true, e);
    const struct oci_diff_ops ops = {same_content, on_difference, c};
    return rc < 0 ? rc : oci_tree_diff(c->views[0].tree, c->views[1].tree, &ops, e);
}

int image_diff(struct store *s, const char *const references[2], const struct image_look *look,
               image_difference_sink *sink, void *ctx, struct err *e)
{
    struct image_room room = {0};
    struct comparison c = {.sink = sink, .ctx = ctx};
    int rc = image_room_open(&room, s, &look->images, look->cancel, e);
    if (rc == 0)
        rc = compare(&c, &room, references, e);
    view_fini(&c.views[0]);
    view_fini(&c.views[1]);
    chunk_cache_free(c.cache);
    image_room_close(&room);
    return rc;
}

int image_tree(struct store *s, const char *reference, const struct image_look *look,
               const struct sink *out, struct err *e)
{
    struct image_room room = {0};
    struct view v = {0};
    int rc = image_room_open(&room, s, &look->images, look->cancel, e);
    if (rc == 0)
        rc = view_open(&v, &room, reference, false, e);
    if (rc == 0)
        rc = oci_tree_dump(v.tree, out, e);
    view_fini(&v);
    image_room_close(&room);
    return rc;
}

/* ---- Inspect ---- */

static const char *history_text(const struct json *step, const char *key)
{
    struct err e = ERR_INIT;
    const char *text = NULL;
    if (!step || json_kind(step) != JSON_KIND_OBJECT ||
        json_get_string_opt(step, key, &text, &e) < 0)
        return NULL;
    return text;
}

static bool is_empty_step(const struct json *step)
{
    struct err e = ERR_INIT;
    bool empty = false;
    if (json_kind(step) == JSON_KIND_OBJECT &&
        json_get_bool_opt(step, "empty_layer", false, &empty, &e) < 0)
        return false;
    return empty;
}

/* What made each layer: the steps that are not marked as having made none, in order. A history
 * that does not fit the layers is no error; it only explains. */
static const struct json *next_step(const struct json *history, size_t *at)
{
    while (history && *at < json_length(history)) {
        const struct json *step = json_element(history, (*at)++);
        if (!is_empty_step(step))
            return step;
    }
    return NULL;
}

static struct json *text_or_null(const char *text)
{
    return text ? json_new_string(text) : NULL;
}

static void set_text(struct json *j, const char *key, const char *text)
{
    if (text && *text)
        json_set(j, key, text_or_null(text));
}

static struct json *describe_layer(const struct image *i, struct image_room *r, size_t n,
                                   const struct json *step)
{
    const struct oci_descriptor *d = &i->manifest.layers[n];
    struct json *j = json_new_object();
    json_set(j, "digest", json_digest(&d->digest));
    json_set(j, "media_type", json_new_string(d->media_type));
    json_set(j, "size", json_new_integer((int64_t)d->size));
    json_set(j, "diff_id", json_digest(&i->config.diff_ids[n]));
    json_set(j, "ingested", json_new_bool(layer_has(r->store, &i->config.diff_ids[n])));
    set_text(j, "created_by", history_text(step, "created_by"));
    set_text(j, "comment", history_text(step, "comment"));
    return j;
}

static struct json *describe_layers(const struct image *i, struct image_room *r, uint64_t *total)
{
    const struct json *history = json_member(i->config.raw, "history");
    size_t at = 0;
    struct json *layers = json_new_array();
    for (size_t n = 0; n < i->manifest.layer_count; n++) {
        json_append(layers, describe_layer(i, r, n, next_step(history, &at)));
        uint64_t size = i->manifest.layers[n].size;
        if (mem_add_u64(*total, size, total))
            *total = INT64_MAX;
    }
    return layers;
}

static void set_copy(struct json *to, const char *key, const struct json *from)
{
    if (from && json_kind(from) != JSON_KIND_NULL)
        json_set(to, key, json_clone(from));
}

static struct json *describe(const struct image *i, struct image_room *r)
{
    const struct json *raw = i->config.raw;
    struct json *j = json_new_object();
    AUTO_FREE char *name = oci_ref_print(&i->ref);
    uint64_t total = 0;
    json_set(j, "reference", name ? json_new_string(name) : NULL);
    json_set(j, "digest", json_digest(&i->manifest.digest));
    json_set(j, "config_digest", json_digest(&i->manifest.config.digest));
    json_set(j, "os", json_new_string(i->config.os));
    json_set(j, "architecture", json_new_string(i->config.architecture));
    static const char *const copied[] = {"variant", "created", "author", "config", "history"};
    for (size_t k = 0; k < ARRAY_LEN(copied); k++)
        set_copy(j, copied[k], json_member(raw, copied[k]));
    json_set(j, "layers", describe_layers(i, r, &total));
    json_set(j, "size", json_new_integer((int64_t)(total > INT64_MAX ? INT64_MAX : total)));
    return j;
}

int image_inspect(struct json **out, struct store *s, const char *reference,
                  const struct image_look *look, struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    struct image_room room = {0};
    int rc = image_room_open(&room, s, &look->images, look->cancel, e);
    if (rc == 0)
        rc = image_resolve(&i, &room, reference, e);
    if (rc == 0) {
        *out = describe(i, &room);
        rc = *out ? 0 : err_nomem(e, "image");
    }
    image_room_close(&room);
    return rc;
}
