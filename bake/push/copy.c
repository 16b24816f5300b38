/* SPDX-License-Identifier: MIT */
/* An image as it is, in another repository: documents byte for byte, blobs mounted where that works,
 * else read and sent. A blob that the repository has is not even read. */
#include <stdlib.h>
#include <string.h>

#include "bake/image/image.h"
#include "bake/push/internal.h"
#include "base/mem.h"

/* A layer's blob that is opened, and for that perhaps pulled, when it is first read. */
struct lazy {
    struct image *image;
    struct image_room *room;
    const struct oci_descriptor *descriptor;
    struct source opened;
    bool open;
};

static int lazy_read(void *self, uint64_t off, void *data, size_t len, size_t *got, struct err *e)
{
    struct lazy *l = self;
    if (!l->open) {
        int rc = image_is_local(l->image)
                     ? 0
                     : image_pull_blob(l->image, l->room, l->descriptor, NULL, e);
        if (rc == 0)
            rc = l->image->source->layer(l->image, l->room, l->descriptor, &l->opened, e);
        if (rc < 0)
            return rc;
        l->open = true;
    }
    return l->opened.read(l->opened.self, off, data, len, got, e);
}

int push_copy_layer(const struct push_target *t, struct image *i, const struct oci_descriptor *d,
                    struct push_report *out, struct err *e)
{
    struct lazy lazy = {.image = i, .room = &t->push->room, .descriptor = d};
    struct source from = {.read = lazy_read, .self = &lazy, .size = d->size};
    bool near = !image_is_local(i) && strcmp(i->ref.host, t->ref.host) == 0 &&
                strcmp(i->ref.repository, t->ref.repository) != 0;
    struct registry_upload upload = {d, &from, near ? i->ref.repository : NULL};
    struct push_blob blob = {.size = d->size, .result = PUSH_WAS_THERE};
    int rc = registry_push_blob(t->push->room.registry, &t->ref, &upload, &blob.result, e);
    if (lazy.open)
        source_close(&lazy.opened);
    push_count(out, &blob);
    return rc;
}

/* What the document says of itself; older OCI ones say nothing. */
static int manifest_type(char **out, const struct buf *body, struct err *e)
{
    AUTO_JSON struct json *j = NULL;
    const char *type = NULL;
    int rc = json_parse(&j, body->data, body->len, "manifest", e);
    if (rc == 0)
        rc = json_get_string_opt(j, "mediaType", &type, e);
    if (rc < 0)
        return rc;
    bool usable = type && *type && strlen(type) < 200 && !strpbrk(type, "\r\n");
    *out = mem_strdup(usable ? type : "application/vnd.oci.image.manifest.v1+json");
    return *out ? 0 : err_nomem(e, "manifest");
}

static int copy_documents(const struct push_target *t, struct image *i, struct err *e)
{
    AUTO_BUF struct buf config;
    AUTO_BUF struct buf manifest;
    AUTO_FREE char *type = NULL;
    struct digest ignored;
    struct image_room *room = &t->push->room;
    buf_init(&config, LIMIT_CONFIG);
    buf_init(&manifest, LIMIT_MANIFEST);
    int rc = i->source->document(i, room, &i->manifest.config, IMAGE_CONFIG, &config, e);
    if (rc == 0)
        rc = push_bytes(t, config.data, config.len, &ignored, e);
    if (rc == 0)
        rc = i->source->document(i, room, &i->at, IMAGE_MANIFEST, &manifest, e);
    if (rc == 0)
        rc = manifest_type(&type, &manifest, e);
    return rc < 0 ? rc : registry_push_manifest(room->registry, &t->ref, type, &manifest, e);
}

int push_copy(const struct push_target *t, struct image *i, struct push_report *out, struct err *e)
{
    const struct oci_descriptor *layers = i->native ? i->native_layers : i->manifest.layers;
    size_t count = i->native ? i->native_count : i->manifest.layer_count;
    int rc = 0;
    for (size_t n = 0; rc == 0 && n < count; n++) {
        rc = cancel_check(t->push->options.cancel, e);
        if (rc == 0)
            rc = push_copy_layer(t, i, &layers[n], out, e);
    }
    if (rc == 0)
        rc = copy_documents(t, i, e);
    out->digest = i->manifest.digest;
    return rc;
}
