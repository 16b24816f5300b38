/* SPDX-License-Identifier: MIT */
/*
 * A template as a plain image: the layers of the image it was made from, as they are, and one of what baking
 * changed on the disk (docs/decisions/0029-plain-images.md). A native image has no such layers: then
 * everything is in the one.
 */
#include <stdio.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/image/image.h"
#include "bake/push.h"
#include "bake/push/diff.h"
#include "bake/push/internal.h"
#include "bake/template.h"
#include "base/file.h"
#include "base/mem.h"

/* The layer in hand. */
struct top {
    struct push_blob blob;
    struct block_map *lower; /* NULL: nothing */
    struct block_map *upper;
};

static void top_fini(struct top *t)
{
    block_map_free(t->lower);
    block_map_free(t->upper);
}

/* The template's image, by its digest where that goes. */
static int find_image(struct image **out, struct push *p, const struct template *t, struct err *e)
{
    struct oci_ref ref;
    struct digest manifest;
    const char *image = NULL;
    int rc = json_get_digest(t->document, "manifest", &manifest, e);
    if (rc == 0)
        rc = json_get_string(t->document, "image", &image, e);
    if (rc == 0)
        rc = oci_ref_parse(&ref, image, e);
    if (rc < 0)
        return rc;
    if (ref.transport == OCI_REGISTRY) {
        ref.has_digest = true;
        ref.digest = manifest;
    }
    AUTO_FREE char *name = oci_ref_print(&ref);
    oci_ref_fini(&ref);
    if (!name)
        return err_nomem(e, "image");
    rc = image_resolve(out, &p->room, name, e);
    if (rc < 0)
        return rc;
    if (digest_equal(&(*out)->manifest.digest, &manifest))
        return 0;
    image_free(*out);
    *out = NULL;
    err_set(e, ERR_NOTFOUND, "%s is another image than the one that was baked", image);
    return err_hint(e, "bake again, or push with --push-format overlaybd");
}

static int write_file(void *self, const void *data, size_t len, struct err *e)
{
    const int *fd = self;
    return file_write_full(*fd, data, len, e);
}

static int make_top(struct push_blob *b, const struct push_target *t, int fd, struct err *e)
{
    const struct top *top = b->ctx;
    const struct push_options *o = &t->push->options;
    struct sink to = {.write = write_file, .self = &fd};
    struct oci_layer_facts facts;
    struct push_diff diff = {.store = t->push->store,
                             .lower = top->lower,
                             .upper = top->upper,
                             .compression = o->compression == PUSH_ZSTD ? OCI_ZSTD : OCI_GZIP,
                             .cancel = o->cancel};
    int rc = push_diff_write(&diff, &to, &facts, e);
    if (rc < 0)
        return rc;
    b->digest = facts.blob;
    b->diff_id = facts.diff_id;
    b->size = facts.size;
    return 0;
}

/* Both disks, and what the layer depends on. */
static int open_top(struct top *top, struct push *p, struct image *i, const struct template *t,
                    struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    struct digest lower = {0};
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, LIMIT_BLOCK_MAP);
    uint64_t storage_mb = 0;
    int rc = json_get_u64(t->document, "storage_mb", &storage_mb, e);
    if (rc == 0)
        rc = store_get_map(p->store, &t->disk, &top->upper, e);
    if (rc == 0 && storage_mb > UINT64_MAX >> 20)
        rc = err_set(e, ERR_CORRUPT, "a disk of %llu MB", (unsigned long long)storage_mb);
    if (rc == 0 && !i->native)
        rc = push_assemble(p, i, storage_mb << 20, &top->lower, e);
    if (rc == 0 && top->lower)
        rc = block_map_encode(top->lower, &bytes, e);
    if (rc < 0)
        return rc;
    if (top->lower)
        digest_bytes(&lower, bytes.data, bytes.len);
    AUTO_FREE char *inputs =
        mem_printf("tb2-bake plain layer 1 %d\n%s\n", (int)p->options.compression,
                   top->lower ? digest_print(&lower, text) : "nothing");
    AUTO_FREE char *all =
        inputs ? mem_printf("%s%s\n", inputs, digest_print(&t->disk, text)) : NULL;
    if (!all)
        return err_nomem(e, "layer");
    digest_bytes(&top->blob.key, all, strlen(all));
    top->blob.make = make_top;
    top->blob.ctx = top;
    return 0;
}

static int send_layers(const struct push_target *t, struct image *i, struct top *top,
                       struct push_report *out, struct err *e)
{
    int rc = 0;
    for (size_t n = 0; rc == 0 && !i->native && n < i->manifest.layer_count; n++) {
        rc = cancel_check(t->push->options.cancel, e);
        if (rc == 0)
            rc = push_copy_layer(t, i, &i->manifest.layers[n], out, e);
    }
    if (rc == 0)
        rc = push_blob_send(t, &top->blob, e);
    if (rc == 0)
        push_count(out, &top->blob);
    return rc;
}

int push_plain(const struct push_target *t, const struct template *template,
               struct push_report *out, struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    struct top top = {0};
    int rc = find_image(&i, t->push, template, e);
    if (rc == 0)
        rc = open_top(&top, t->push, i, template, e);
    if (rc == 0)
        rc = send_layers(t, i, &top, out, e);
    struct push_facts facts = {.image_config = i ? i->config.raw : NULL, .template = template};
    if (rc == 0)
        rc = push_plain_documents(t, i, &top.blob, &facts, &out->digest, e);
    top_fini(&top);
    return rc;
}
