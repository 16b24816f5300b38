/* SPDX-License-Identifier: MIT */
/*
 * Prints the merged tree of layers as text, with the content of its files; or why there is none.
 *
 *   golden_tree [FILE MEDIA_TYPE SIZE DIGEST DIFF_ID]...
 *
 * Each line is the one of docs/formats/tree.md. Behind those of files stands what they hold: where
 * up to 64 bytes lie apart from the rest, data=OFFSET:BYTES, escaped as names are, else
 * data=OFFSET+LENGTH:SHA256 (8 bytes of it). Zeros count as holes. Exit status 1 and one line when
 * the image is refused.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "oci/internal.h"

enum { FIELDS = 5, SHORT = 64, DATA_MAX = 256 << 20 };

/* Data of all layers, one behind the other. */
struct region {
    struct buf bytes;
    struct oci_extent *extents; /* of the file in hand */
    size_t count;
    size_t capacity;
};

static int file_begin(void *ctx, uint64_t size UNUSED, struct err *e UNUSED)
{
    struct region *r = ctx;
    r->count = 0;
    return 0;
}

static int add_piece(struct region *r, uint64_t off, const uint8_t *data, size_t len, struct err *e)
{
    struct oci_extent *last = r->count > 0 ? &r->extents[r->count - 1] : NULL;
    int rc = 0;
    if (last && last->file_off + last->len == off) {
        last->len += len;
    } else {
        rc = mem_grow(&r->extents, &r->capacity, r->count + 1, sizeof(*r->extents), e);
        if (rc == 0)
            r->extents[r->count++] =
                (struct oci_extent){.file_off = off, .len = len, .region_off = r->bytes.len};
    }
    return rc < 0 ? rc : buf_add(&r->bytes, data, len, e);
}

static int file_data(void *ctx, uint64_t off, const void *data, size_t len, struct err *e)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < len;) {
        size_t end = i;
        while (end < len && at[end] != 0)
            end++;
        int rc = end > i ? add_piece(ctx, off + i, at + i, end - i, e) : 0;
        if (rc < 0)
            return rc;
        while (end < len && at[end] == 0)
            end++;
        i = end;
    }
    return 0;
}

static int file_end(void *ctx, struct oci_extent **extents, size_t *count, struct err *e)
{
    struct region *r = ctx;
    *count = r->count;
    *extents = r->count > 0 ? mem_dup(r->extents, r->count * sizeof(*r->extents)) : NULL;
    return r->count == 0 || *extents ? 0 : err_nomem(e, "extents");
}

static int read_blob(void *self, uint64_t off, void *data, size_t len, size_t *got,
                     struct err *e UNUSED)
{
    const struct buf *blob = self;
    size_t left = off < blob->len ? blob->len - (size_t)off : 0;
    *got = len < left ? len : left;
    if (*got > 0)
        memcpy(data, blob->data + off, *got);
    return 0;
}

static int read_layer(struct oci_layer **out, char **fields, struct region *region, struct err *e)
{
    static const struct oci_data_ops ops = {file_begin, file_data, file_end};
    AUTO_BUF struct buf blob;
    buf_init(&blob, DATA_MAX);
    struct oci_layer_options options = {.ops = &ops, .ctx = region};
    options.blob.media_type = fields[1];
    options.blob.size = strtoull(fields[2], NULL, 10);
    int rc = file_read(AT_FDCWD, fields[0], &blob, e);
    if (rc == 0)
        rc = digest_parse(&options.blob.digest, fields[3], e);
    if (rc == 0)
        rc = digest_parse(&options.diff_id, fields[4], e);
    struct source source = {.read = read_blob, .self = &blob, .size = blob.len};
    return rc < 0 ? rc : oci_layer_read(out, &source, &options, e);
}

/* ---- Printing ---- */

struct printer {
    const struct oci_tree *tree;
    const struct region *region;
    size_t next; /* node */
};

static int add_extent(const struct printer *p, const struct oci_extent *x, struct buf *line,
                      struct err *e)
{
    const uint8_t *data = p->region->bytes.data + x->region_off;
    int rc = buf_printf(line, e, "%" PRIu64, x->file_off);
    if (rc == 0 && x->len <= SHORT) {
        rc = buf_add_text(line, ":", e);
        return rc < 0 ? rc : oci_text_escape(line, data, (size_t)x->len, e);
    }
    struct digest digest;
    digest_bytes(&digest, data, (size_t)x->len);
    return rc < 0 ? rc
                  : buf_printf(line, e, "+%" PRIu64 ":%02x%02x%02x%02x%02x%02x%02x%02x", x->len,
                               digest.bytes[0], digest.bytes[1], digest.bytes[2], digest.bytes[3],
                               digest.bytes[4], digest.bytes[5], digest.bytes[6], digest.bytes[7]);
}

/* One line of the dump for each node, in their order. */
static int print_line(void *self, const void *data, size_t len, struct err *e)
{
    struct printer *p = self;
    AUTO_BUF struct buf line;
    buf_init(&line, (size_t)64 << 20);
    struct oci_node node = oci_tree_node(p->tree, p->next++);
    int rc = buf_add(&line, data, len - 1, e);
    bool first = node.link_of == SIZE_MAX && node.entry->extent_count > 0;
    for (size_t i = 0; rc == 0 && first && i < node.entry->extent_count; i++) {
        rc = buf_add_text(&line, i == 0 ? " data=" : ",", e);
        if (rc == 0)
            rc = add_extent(p, &node.entry->extents[i], &line, e);
    }
    if (rc == 0)
        rc = buf_add_text(&line, "\n", e);
    if (rc == 0)
        fwrite(line.data, 1, line.len, stdout);
    return rc;
}

static int print_tree(struct oci_layer **layers, size_t count, const struct region *region,
                      struct err *e)
{
    AUTO_OCI_TREE struct oci_tree *tree = NULL;
    int rc = oci_tree_merge(&tree, layers, count, NULL, e);
    if (rc < 0)
        return rc;
    struct printer printer = {.tree = tree, .region = region};
    return oci_tree_dump(tree, &(struct sink){.write = print_line, .self = &printer}, e);
}

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct region region = {0};
    size_t count = ((size_t)argc - 1) / FIELDS;
    struct oci_layer **layers = mem_array(count, sizeof(struct oci_layer *));
    int rc = layers ? 0 : err_nomem(&e, "layers");
    buf_init(&region.bytes, DATA_MAX);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = read_layer(&layers[i], argv + 1 + i * FIELDS, &region, &e);
    if (rc == 0)
        rc = print_tree(layers, count, &region, &e);
    if (rc < 0)
        printf("%s\n", e.text);
    for (size_t i = 0; layers && i < count; i++)
        oci_layer_free(layers[i]);
    free(layers);
    free(region.extents);
    buf_fini(&region.bytes);
    return rc < 0;
}
