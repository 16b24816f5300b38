/* SPDX-License-Identifier: MIT */
/*
 * Tars: headers, PAX records, sparse maps, names, and the tree that they make. The first byte says
 * in which portions the bytes come; however they come, the layer must be the same, which every fourth
 * kind of portion is asked to show.
 *
 * The stream below stands in for oci/stream.c: no compression, no digests, no buffers, which is
 * some ten times as many inputs a second as the target `layer` tries.
 */
#include <string.h>

#include "base/mem.h"
#include "layer_checks.h"
#include "oci/internal.h"

struct oci_stream {
    const uint8_t *data;
    size_t left;
    size_t most; /* bytes of one portion; 0: all */
};

/* The bytes of the input in hand. */
static struct oci_stream current;

int oci_stream_new(struct oci_stream **out, const struct source *blob UNUSED,
                   const struct oci_stream_options *o UNUSED, struct err *e)
{
    struct oci_stream *s = mem_dup(&current, sizeof(current));
    if (!s)
        return err_nomem(e, "stream");
    *out = s;
    return 0;
}

int oci_stream_read(struct oci_stream *s, const void **data, size_t *len, struct err *e UNUSED)
{
    *data = s->data;
    *len = s->most > 0 && s->left > s->most ? s->most : s->left;
    s->data += *len;
    s->left -= *len;
    return 0;
}

int oci_stream_check_blob(struct oci_stream *s UNUSED, struct err *e UNUSED)
{
    return 0;
}

int oci_stream_check_plain(struct oci_stream *s UNUSED, const struct digest *diff_id UNUSED,
                           struct err *e UNUSED)
{
    return 0;
}

void oci_stream_free(struct oci_stream *s)
{
    free(s);
}

/* Data of files must come in order and inside the file. */
struct data_state {
    uint64_t size;
    uint64_t end;
    bool open;
};

static int file_begin(void *ctx, uint64_t size, struct err *e UNUSED)
{
    struct data_state *d = ctx;
    PROMISE(!d->open && size > 0);
    *d = (struct data_state){.size = size, .open = true};
    return 0;
}

static int file_data(void *ctx, uint64_t off, const void *data, size_t len, struct err *e UNUSED)
{
    struct data_state *d = ctx;
    PROMISE(d->open && off >= d->end && off <= d->size && len <= d->size - off);
    PROMISE(len == 0 || data != NULL);
    d->end = off + len;
    return 0;
}

static int file_end(void *ctx, struct oci_extent **extents, size_t *count, struct err *e UNUSED)
{
    struct data_state *d = ctx;
    PROMISE(d->open);
    d->open = false;
    *extents = NULL;
    *count = 0;
    return 0;
}

static int read_layer(struct oci_layer **out, const uint8_t *data, size_t size, size_t most,
                      struct err *e)
{
    static const struct oci_data_ops ops = {file_begin, file_data, file_end};
    struct data_state state = {0};
    struct source nothing = {0};
    struct oci_layer_options options = {.ops = &ops, .ctx = &state};
    current = (struct oci_stream){.data = data, .left = size, .most = most};
    return oci_layer_read(out, &nothing, &options, e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    if (size == 0)
        return 0;
    size_t most = data[0];
    int rc = read_layer(&layer, data + 1, size - 1, most, &e);
    PROMISE_ERROR(rc, &e);
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_LAYER_INDEX);
    if (rc == 0) {
        check_index(layer, &bytes);
        check_tree(layer);
    }
    if (most % 4 != 1)
        return 0;
    struct err other = ERR_INIT;
    AUTO_OCI_LAYER struct oci_layer *whole = NULL;
    PROMISE(read_layer(&whole, data + 1, size - 1, 0, &other) == rc);
    if (rc < 0)
        return 0;
    AUTO_BUF struct buf again;
    buf_init(&again, LIMIT_LAYER_INDEX);
    PROMISE(oci_layer_encode(whole, &again, &e) == 0);
    PROMISE(bytes.len == again.len && memcmp(bytes.data, again.data, bytes.len) == 0);
    return 0;
}
