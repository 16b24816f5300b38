/* SPDX-License-Identifier: MIT */
/*
 * Config and manifest of a native image: an ordinary image of uncompressed tar layers, whose
 * annotations say that each is an OverlayBD layer (accelerated-container-image, docs/IMAGE_CONVERTOR;
 * AgentENV takes a layer for one when blob-digest is its own digest).
 */
#include <stdio.h>
#include <string.h>

#include "bake/push_internal.h"
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

static struct json *layer_descriptor(const struct overlaybd_blob *b)
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

static int make_config(char **out, const struct push_plan *p, const struct push_facts *facts,
                       struct err *e)
{
    static const char *const kept[] = {"architecture", "os", "variant", "author", "created"};
    AUTO_JSON struct json *j = json_new_object();
    struct json *rootfs = json_new_object();
    struct json *diff_ids = json_new_array();
    json_set(j, "architecture", json_new_string(oci_platform_host().architecture));
    json_set(j, "os", json_new_string("linux"));
    for (size_t i = 0; facts->image_config && i < ARRAY_LEN(kept); i++) {
        const struct json *value = json_member(facts->image_config, kept[i]);
        set_text(j, kept[i], value ? json_as_string(value) : NULL);
    }
    /* The wrapper is a plain tar, so that the blob's digest is its diff_id too. */
    for (size_t i = 0; i < p->count; i++)
        json_append(diff_ids, json_digest(&p->layers[i].blob.digest));
    json_set(rootfs, "type", json_new_string("layers"));
    json_set(rootfs, "diff_ids", diff_ids);
    json_set(j, "rootfs", rootfs);
    json_set(j, "config", settings(facts));
    json_set(j, "history", json_new_array());
    return json_print(j, 0, out, e);
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

int push_documents(const struct push_target *t, const struct push_plan *p,
                   const struct push_facts *facts, struct digest *digest, struct err *e)
{
    AUTO_FREE char *config = NULL;
    AUTO_FREE char *manifest = NULL;
    AUTO_BUF struct buf body;
    struct digest config_digest;
    buf_init(&body, LIMIT_MANIFEST);
    int rc = make_config(&config, p, facts, e);
    if (rc == 0)
        rc = push_bytes(t, config, strlen(config), &config_digest, e);
    if (rc < 0)
        return err_in(e, "config");
    AUTO_JSON struct json *j = json_new_object();
    struct json *layers = json_new_array();
    json_set(j, "schemaVersion", json_new_integer(2));
    json_set(j, "mediaType", json_new_string(MANIFEST_TYPE));
    json_set(j, "config", descriptor(CONFIG_TYPE, &config_digest, strlen(config)));
    for (size_t i = 0; i < p->count; i++)
        json_append(layers, layer_descriptor(&p->layers[i].blob));
    json_set(j, "layers", layers);
    rc = json_print(j, 0, &manifest, e);
    if (rc == 0)
        rc = buf_add_text(&body, manifest, e);
    if (rc < 0)
        return rc;
    digest_bytes(digest, body.data, body.len);
    return registry_push_manifest(t->push->room.registry, &t->ref, MANIFEST_TYPE, &body, e);
}
