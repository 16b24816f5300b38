/* SPDX-License-Identifier: MIT */
/*
 * Config and manifest of what is pushed.
 *
 * A native image is an ordinary image of uncompressed tar layers, whose annotations say that each is an
 * OverlayBD layer (accelerated-container-image, docs/IMAGE_CONVERTOR; AgentENV takes a layer for one when
 * blob-digest is its own digest). A plain one is the image that a disk began as, in OCI's words whatever
 * its own were, with one more layer.
 */
#include <stdio.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/push.h"
#include "bake/push/internal.h"
#include "bake/template.h"
#include "base/mem.h"

#define MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"
#define CONFIG_TYPE "application/vnd.oci.image.config.v1+json"
#define LAYER_TYPE "application/vnd.oci.image.layer.v1.tar"
#define ANNOTATION "containerd.io/snapshot/overlaybd/"

static struct json *descriptor(const char *type, const struct digest *d, uint64_t size)
{
    struct json *j = json_new_object();
    json_set(j, "mediaType", json_new_string(type));
    json_set(j, "digest", json_digest(d));
    json_set(j, "size", json_new_integer((int64_t)size));
    return j;
}

static struct json *native_layer(const struct push_blob *b)
{
    char size[24];
    struct json *j = descriptor(LAYER_TYPE, &b->digest, b->size);
    struct json *annotations = json_new_object();
    snprintf(size, sizeof(size), "%llu", (unsigned long long)b->size);
    json_set(annotations, ANNOTATION "version", json_new_string("0.1.0"));
    json_set(annotations, ANNOTATION "blob-digest", json_digest(&b->digest));
    json_set(annotations, ANNOTATION "blob-size", json_new_string(size));
    json_set(annotations, ANNOTATION "blob-fs-type", json_new_string("ext4"));
    json_set(j, "annotations", annotations);
    return j;
}

static void set_text(struct json *j, const char *key, const char *value)
{
    if (value && *value)
        json_set(j, key, json_new_string(value));
}

/* The image's own settings, with those of the template over them. */
static struct json *settings(const struct push_facts *facts)
{
    const struct json *of_image =
        facts->image_config ? json_member(facts->image_config, "config") : NULL;
    bool usable = of_image && json_kind(of_image) == JSON_KIND_OBJECT;
    struct json *j = usable ? json_clone(of_image) : json_new_object();
    const struct template *t = facts->template;
    if (!t)
        return j;
    struct json *env = json_new_array();
    for (size_t i = 0; t->env && t->env[i]; i++)
        json_append(env, json_new_string(t->env[i]));
    json_set(j, "Env", env);
    set_text(j, "WorkingDir", t->workdir);
    set_text(j, "User", t->user);
    return j;
}

static struct json *native_config(const struct push_plan *p, const struct push_facts *facts)
{
    static const char *const kept[] = {"architecture", "os", "variant", "author", "created"};
    struct json *j = json_new_object();
    struct json *rootfs = json_new_object();
    struct json *diff_ids = json_new_array();
    json_set(j, "architecture", json_new_string(oci_platform_host().architecture));
    json_set(j, "os", json_new_string("linux"));
    for (size_t i = 0; facts->image_config && i < ARRAY_LEN(kept); i++) {
        const struct json *value = json_member(facts->image_config, kept[i]);
        set_text(j, kept[i], value ? json_as_string(value) : NULL);
    }
    for (size_t i = 0; i < p->count; i++)
        json_append(diff_ids, json_digest(&p->layers[i].blob.diff_id));
    json_set(rootfs, "type", json_new_string("layers"));
    json_set(rootfs, "diff_ids", diff_ids);
    json_set(j, "rootfs", rootfs);
    json_set(j, "config", settings(facts));
    json_set(j, "history", json_new_array());
    return j;
}

/* The image's history, where it is one of all its layers, and what was added; else none. */
static struct json *plain_history(const struct json *config, size_t layer_count)
{
    struct err ignored = ERR_INIT;
    struct json *history = NULL;
    size_t layers = 0;
    bool empty = false;
    if (json_get_array_opt(config, "history", &history, &ignored) < 0 || !history)
        return json_new_array();
    for (size_t i = 0; i < json_length(history); i++) {
        if (json_get_bool_opt(json_element(history, i), "empty_layer", false, &empty, &ignored) < 0)
            return json_new_array();
        layers += !empty;
    }
    if (layers != layer_count)
        return json_new_array();
    const struct json *created = json_member(config, "created");
    struct json *j = json_clone(history);
    struct json *added = json_new_object();
    set_text(added, "created", created ? json_as_string(created) : NULL);
    json_set(added, "created_by", json_new_string("tb2-bake"));
    json_set(added, "comment", json_new_string("what a bake changed on the disk"));
    json_append(j, added);
    return j;
}

static struct json *plain_config(const struct image *base, const struct push_blob *top,
                                 const struct push_facts *facts)
{
    struct json *j = json_clone(facts->image_config);
    struct json *rootfs = json_new_object();
    struct json *diff_ids = json_new_array();
    size_t count = base->native ? 0 : base->config.diff_id_count;
    for (size_t i = 0; i < count; i++)
        json_append(diff_ids, json_digest(&base->config.diff_ids[i]));
    json_append(diff_ids, json_digest(&top->diff_id));
    json_set(rootfs, "type", json_new_string("layers"));
    json_set(rootfs, "diff_ids", diff_ids);
    json_set(j, "rootfs", rootfs);
    json_set(j, "config", settings(facts));
    json_set(j, "history", plain_history(facts->image_config, count));
    return j;
}

int push_bytes(const struct push_target *t, const void *bytes, size_t len, struct digest *digest,
               struct err *e)
{
    char type[] = "application/octet-stream";
    struct source from = {0};
    digest_bytes(digest, bytes, len);
    struct oci_descriptor d = {.media_type = type, .digest = *digest, .size = len};
    int rc = source_from_memory(&from, bytes, len, e);
    struct registry_upload upload = {&d, &from, NULL};
    if (rc == 0)
        rc = registry_push_blob(t->push->room.registry, &t->ref, &upload, NULL, e);
    source_close(&from);
    return rc;
}

/* Sends config and manifest. Takes `config` and `layers` over. */
static int put_documents(const struct push_target *t, struct json *config, struct json *layers,
                         struct digest *digest, struct err *e)
{
    AUTO_JSON struct json *c = config;
    AUTO_JSON struct json *j = json_new_object();
    AUTO_FREE char *config_text = NULL;
    AUTO_FREE char *manifest = NULL;
    AUTO_BUF struct buf body;
    struct digest config_digest;
    buf_init(&body, LIMIT_MANIFEST);
    json_set(j, "schemaVersion", json_new_integer(2));
    json_set(j, "mediaType", json_new_string(MANIFEST_TYPE));
    json_set(j, "layers", layers);
    int rc = json_print(c, 0, &config_text, e);
    if (rc == 0)
        rc = push_bytes(t, config_text, strlen(config_text), &config_digest, e);
    if (rc < 0)
        return err_in(e, "pushing the config");
    json_set(j, "config", descriptor(CONFIG_TYPE, &config_digest, strlen(config_text)));
    rc = json_print(j, 0, &manifest, e);
    if (rc == 0)
        rc = buf_add_text(&body, manifest, e);
    if (rc < 0)
        return rc;
    digest_bytes(digest, body.data, body.len);
    return registry_push_manifest(t->push->room.registry, &t->ref, MANIFEST_TYPE, &body, e);
}

int push_documents(const struct push_target *t, const struct push_plan *p,
                   const struct push_facts *facts, struct digest *digest, struct err *e)
{
    struct json *layers = json_new_array();
    for (size_t i = 0; i < p->count; i++)
        json_append(layers, native_layer(&p->layers[i].blob));
    return put_documents(t, native_config(p, facts), layers, digest, e);
}

/* OCI's name for a layer of a docker type: their compressions are spelled alike. */
static const char *layer_type(const char *type)
{
    const char *plus = strrchr(type, '+');
    const char *dot = strrchr(type, '.');
    const char *last = plus && (!dot || plus > dot) ? plus : dot;
    if (last && strcmp(last + 1, "gzip") == 0)
        return LAYER_TYPE "+gzip";
    return last && strcmp(last + 1, "zstd") == 0 ? LAYER_TYPE "+zstd" : LAYER_TYPE;
}

int push_plain_documents(const struct push_target *t, const struct image *base,
                         const struct push_blob *top, const struct push_facts *facts,
                         struct digest *digest, struct err *e)
{
    struct json *layers = json_new_array();
    const char *type =
        t->push->options.compression == PUSH_ZSTD ? LAYER_TYPE "+zstd" : LAYER_TYPE "+gzip";
    for (size_t i = 0; !base->native && i < base->manifest.layer_count; i++) {
        const struct oci_descriptor *d = &base->manifest.layers[i];
        json_append(layers, descriptor(layer_type(d->media_type), &d->digest, d->size));
    }
    json_append(layers, descriptor(type, &top->digest, top->size));
    return put_documents(t, plain_config(base, top, facts), layers, digest, e);
}
