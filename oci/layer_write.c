/* SPDX-License-Identifier: MIT */
/* Layers that are written here: tar, compression, and the digests of both sides. */
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

struct oci_layer_writer {
    const struct sink *to;
    struct sink compressed; /* hashes, counts, and hands on to `to` */
    struct oci_encoder *encoder;
    struct hasher *plain_hasher;
    struct hasher *blob_hasher;
    struct oci_layer_facts facts;
    uint64_t data_left; /* of the file in hand */
    struct buf headers;
};

static int take_compressed(void *self, const void *data, size_t len, struct err *e)
{
    struct oci_layer_writer *w = self;
    hasher_add(w->blob_hasher, data, len);
    w->facts.size += len;
    return w->to->write(w->to->self, data, len, e);
}

int oci_layer_writer_new(struct oci_layer_writer **out, const struct sink *to,
                         enum oci_compression compression, struct err *e)
{
    AUTO_OCI_LAYER_WRITER struct oci_layer_writer *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "layer");
    w->to = to;
    w->compressed = (struct sink){.write = take_compressed, .self = w};
    buf_init(&w->headers, 8 * LIMIT_PATH + 4 * LIMIT_XATTRS);
    int rc = hasher_new(&w->plain_hasher, DIGEST_SHA256, e);
    if (rc == 0)
        rc = hasher_new(&w->blob_hasher, DIGEST_SHA256, e);
    if (rc == 0)
        rc = oci_encoder_new(&w->encoder, compression, &w->compressed, e);
    if (rc == 0)
        *out = MOVE(w);
    return rc;
}

void oci_layer_writer_free(struct oci_layer_writer *w)
{
    if (!w)
        return;
    oci_encoder_free(w->encoder);
    hasher_free(w->plain_hasher);
    hasher_free(w->blob_hasher);
    buf_fini(&w->headers);
    free(w);
}

static int add(struct oci_layer_writer *w, const void *data, size_t len, bool end, struct err *e)
{
    hasher_add(w->plain_hasher, data, len);
    w->facts.plain_size += len;
    return oci_encoder_write(w->encoder, data, len, end, e);
}

static int pad(struct oci_layer_writer *w, struct err *e)
{
    static const uint8_t zeros[OCI_TAR_BLOCK];
    size_t over = w->facts.plain_size % OCI_TAR_BLOCK;
    return over == 0 ? 0 : add(w, zeros, OCI_TAR_BLOCK - over, false, e);
}

int oci_layer_writer_add(struct oci_layer_writer *w, const struct oci_entry *entry, struct err *e)
{
    if (w->data_left > 0)
        return err_set(e, ERR_INPUT, "a file ends %llu bytes before its size",
                       (unsigned long long)w->data_left);
    w->headers.len = 0;
    int rc = oci_tar_headers(&w->headers, entry, e);
    if (rc == 0)
        rc = add(w, w->headers.data, w->headers.len, false, e);
    if (rc == 0 && entry->type == OCI_FILE)
        w->data_left = entry->size;
    w->facts.entries += rc == 0;
    return rc;
}

int oci_layer_writer_data(struct oci_layer_writer *w, const void *data, size_t len, struct err *e)
{
    if (len > w->data_left)
        return err_set(e, ERR_INPUT, "a file goes on past its size");
    w->data_left -= len;
    int rc = add(w, data, len, false, e);
    return rc < 0 || w->data_left > 0 ? rc : pad(w, e);
}

int oci_layer_writer_finish(struct oci_layer_writer *w, struct oci_layer_facts *out, struct err *e)
{
    static const uint8_t end_mark[2 * OCI_TAR_BLOCK];
    if (w->data_left > 0)
        return err_set(e, ERR_INPUT, "the last file is not whole");
    int rc = add(w, end_mark, sizeof(end_mark), true, e);
    if (rc < 0)
        return rc;
    hasher_finish(w->plain_hasher, &w->facts.diff_id);
    hasher_finish(w->blob_hasher, &w->facts.blob);
    *out = w->facts;
    return 0;
}
