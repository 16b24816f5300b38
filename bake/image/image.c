/* SPDX-License-Identifier: MIT */
/* Images: name to documents, whatever the source. */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/common/once.h"
#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

/* An index may point to an index; deeper nesting than this is no image that exists. */
enum { INDEX_DEPTH_MAX = 4 };

int image_room_open(struct image_room *r, struct store *s, const struct image_options *o,
                    const struct cancel *c, struct err *e)
{
    *r = (struct image_room){
        .store = s, .cancel = c, .offline = o->offline, .platform = oci_platform_host()};
    image_archives_init(&r->archives);
    if (o->platform && oci_platform_parse(&r->platform, r->platform_text, o->platform, e) < 0)
        return err_in(e, "--platform");
    struct registry_options registry = {.network = o->network,
                                        .plain_http_hosts = o->plain_http_hosts,
                                        .config_path = o->docker_config,
                                        .cancel = c};
    int rc = o->offline ? 0 : registry_new(&r->registry, &registry, e);
    if (rc == 0)
        rc = ingest_gate_new(&r->ingest, machine_cores(), e);
    return rc < 0 ? rc : once_new(&r->once, e);
}

void image_room_close(struct image_room *r)
{
    registry_free(r->registry);
    once_free(r->once);
    ingest_gate_free(r->ingest);
    image_archives_fini(&r->archives);
    *r = (struct image_room){0};
}

void image_blob_path(char path[BLOB_PATH_MAX], const char *directory, const struct digest *d)
{
    char text[DIGEST_TEXT_MAX];
    char *colon = strchr(digest_print(d, text), ':');
    *colon = '-';
    snprintf(path, BLOB_PATH_MAX, "%s/%s", directory, text);
}

void image_free(struct image *i)
{
    if (!i)
        return;
    image_work_free(i->work);
    free(i->text);
    free(i->shares);
    free(i->grafts);
    buf_fini(&i->root_document);
    oci_ref_fini(&i->ref);
    oci_layout_close(i->layout);
    oci_manifest_fini(&i->manifest);
    oci_descriptor_fini(&i->at);
    for (size_t n = 0; n < i->native_count; n++)
        oci_descriptor_fini(&i->native_layers[n]);
    free(i->native_layers);
    oci_config_fini(&i->config);
    free(i);
}

int image_check_document(const struct digest *d, const struct buf *bytes, struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, d->algorithm, e);
    if (rc < 0)
        return rc;
    hasher_add(h, bytes->data, bytes->len);
    struct digest sum;
    hasher_finish(h, &sum);
    return digest_equal(&sum, d) ? 0 : err_set(e, ERR_DIGEST, "document does not match its digest");
}

/* Once the first document was taken, the others are asked for. */
static int next_document(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                         struct buf *out, struct err *e)
{
    *out = i->root_document;
    i->root_document = (struct buf){0};
    if (out->len > 0)
        return 0;
    buf_fini(out);
    buf_init(out, LIMIT_MANIFEST);
    return i->source->document(i, r, d, IMAGE_MANIFEST, out, e);
}

/* Follows indexes down to an image manifest. `at` is updated as it goes. */
static int find_manifest(struct image *i, struct image_room *r, struct oci_descriptor *at,
                         struct err *e)
{
    for (int depth = 0; depth < INDEX_DEPTH_MAX; depth++) {
        AUTO_BUF struct buf body;
        int rc = next_document(i, r, at, &body, e);
        AUTO_JSON struct json *document = NULL;
        enum oci_document_kind kind = OCI_MANIFEST;
        if (rc == 0)
            rc = oci_document_parse(&document, &kind, at->media_type, body.data, body.len, e);
        if (rc < 0)
            return rc;
        if (kind == OCI_MANIFEST) {
            rc = oci_manifest_read(&i->manifest, document, e);
            if (rc == 0)
                rc = oci_manifest_is_native(&i->native, document, e);
            i->manifest.digest = at->digest;
            return rc;
        }
        struct oci_descriptor next = {0};
        bool needs_check = false;
        rc = oci_index_select(&next, &needs_check, document, &r->platform, e);
        if (rc < 0)
            return rc;
        oci_descriptor_fini(at);
        *at = next;
    }
    return err_set(e, ERR_CORRUPT, "indexes are nested deeper than %d", INDEX_DEPTH_MAX);
}

/* Whether the config names the wanted platform; one that names no architecture is believed. */
static int check_architecture(const struct oci_config *c, const struct oci_platform *want,
                              struct err *e)
{
    if (!*c->architecture ||
        strcmp(oci_architecture_name(c->architecture), want->architecture) == 0)
        return 0;
    err_set(e, ERR_NOTFOUND, "the image is for %.60s, not for %.60s", c->architecture,
            want->architecture);
    return -ERR_NOTFOUND;
}

static int load_config(struct image *i, struct image_room *r, struct err *e)
{
    AUTO_BUF struct buf body;
    buf_init(&body, LIMIT_CONFIG);
    int rc = i->source->document(i, r, &i->manifest.config, IMAGE_CONFIG, &body, e);
    if (rc == 0)
        rc = oci_config_parse(&i->config, body.data, body.len, e);
    if (rc < 0)
        return err_in(e, "reading the image's config");
    i->config.digest = i->manifest.config.digest;
    rc = i->native ? native_take_layers(i, e) : oci_image_check(&i->manifest, &i->config, e);
    return rc < 0 ? rc : check_architecture(&i->config, &r->platform, e);
}

int image_resolve(struct image **out, struct image_room *r, const char *text, struct err *e)
{
    AUTO_IMAGE struct image *i = mem_zalloc(sizeof(*i));
    if (!i)
        return err_nomem(e, text);
    i->text = mem_strdup(text);
    if (!i->text)
        return err_nomem(e, text);
    int rc = oci_ref_parse(&i->ref, text, e);
    if (rc < 0)
        return rc;
    i->source = i->ref.transport == OCI_REGISTRY ? &image_from_registry : &image_from_files;
    rc = i->source->start(i, r, &i->at, e);
    i->root = i->at.digest;
    if (rc == 0)
        rc = find_manifest(i, r, &i->at, e);
    if (rc == 0)
        rc = load_config(i, r, e);
    if (rc < 0) /* where the registry has judged the image, the error names it already */
        return strncmp(e->text, "image ", 6) == 0 ? rc : err_in(e, "image %s", text);
    *out = MOVE(i);
    return 0;
}

bool image_is_local(const struct image *i)
{
    return i->source->is_local;
}

int image_open_layer(struct image *i, struct image_room *r, size_t n, struct source *out,
                     struct err *e)
{
    return i->source->layer(i, r, &i->manifest.layers[n], out, e);
}
