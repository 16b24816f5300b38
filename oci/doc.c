/* SPDX-License-Identifier: MIT */
/*
 * Index, manifest and config documents.
 *
 * A document is judged by its structure, never by the media type that came with it: registries send
 * manifests as application/json or text/plain. One that could be read both as an index and as a
 * manifest is refused, for two readers would then see two images. What is well-formed but no
 * runnable image (schema 1, Helm charts, other artifacts, foreign layers) is refused with its own
 * reason.
 */
#include "oci/internal.h"

#include "base/mem.h"

/* ---- Descriptors ------------------------------------------------------------------------ */

int oci_descriptor_read(struct oci_descriptor *out, const struct json *j, struct err *e)
{
    struct oci_descriptor d = {0};
    const char *type = NULL;
    const char *text = NULL;

    if (json_kind(j) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "a descriptor is no object");
    if (json_get_string_opt(j, "mediaType", &type, e) < 0 ||
        json_get_string(j, "digest", &text, e) < 0 || json_get_u64(j, "size", &d.size, e) < 0)
        return -(int)e->class;
    if (digest_parse(&d.digest, text, e) < 0)
        return err_in(e, "digest \"%.100s\"", text);
    d.media_type = mem_strdup(type ? type : "");
    if (!d.media_type)
        return err_nomem(e, "descriptor");
    *out = d;
    return 0;
}

void oci_descriptor_fini(struct oci_descriptor *d)
{
    free(d->media_type);
    *d = (struct oci_descriptor){0};
}

/* ---- Kinds ------------------------------------------------------------------------------ */

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool is_array(const struct json *j, const char *key)
{
    const struct json *value = json_member(j, key);

    return value && json_kind(value) == JSON_KIND_ARRAY;
}

/* Only vendor types say something certain: text/html has been seen on real configs. */
static bool is_other_vendor_type(const char *type)
{
    return has_prefix(type, "application/vnd.") && strcmp(type, OCI_TYPE_CONFIG) != 0 &&
           strcmp(type, DOCKER_TYPE_CONFIG) != 0;
}

/* Manifests with config and layers that are no container image. */
static int refuse_artifact(const struct json *manifest, struct err *e)
{
    const char *artifact = NULL;
    const char *config = NULL;
    struct json *object = NULL;

    if (json_get_string_opt(manifest, "artifactType", &artifact, e) < 0 ||
        json_get_object(manifest, "config", &object, e) < 0 ||
        json_get_string_opt(object, "mediaType", &config, e) < 0)
        return -(int)e->class;
    if (config && has_prefix(config, "application/vnd.cncf.helm."))
        return err_set(e, ERR_UNSUPPORTED, "this is a Helm chart, not a container image");
    if (artifact && *artifact)
        return err_set(e, ERR_UNSUPPORTED, "this is an artifact (%.100s), not a container image",
                       artifact);
    if (config && is_other_vendor_type(config))
        return err_set(e, ERR_UNSUPPORTED,
                       "this is an artifact (config %.100s), not a container image", config);
    return 0;
}

static int classify(enum oci_document_kind *out, const char *media_type, const struct json *doc,
                    struct err *e)
{
    uint64_t schema = 0;

    if (json_kind(doc) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "the document is no JSON object");
    if (json_get_u64_opt(doc, "schemaVersion", 2, &schema, e) < 0)
        return -(int)e->class;
    if (schema == 1 || is_array(doc, "fsLayers")) {
        err_set(e, ERR_UNSUPPORTED, "the manifest has the old schema 1 form");
        return err_hint(e, "push the image again with a current tool");
    }
    bool index = is_array(doc, "manifests");
    bool manifest = is_array(doc, "layers") || json_member(doc, "config") != NULL;
    if (index && manifest)
        return err_set(e, ERR_CORRUPT, "the document is both an index and a manifest");
    if (index) {
        *out = OCI_INDEX;
        return 0;
    }
    if (is_array(doc, "layers") && json_member(doc, "config")) {
        if (refuse_artifact(doc, e) < 0)
            return -(int)e->class;
        *out = OCI_MANIFEST;
        return 0;
    }
    if (is_array(doc, "blobs"))
        return err_set(e, ERR_UNSUPPORTED, "this is an artifact, not a container image");
    return err_set(e, ERR_CORRUPT, "neither an index nor an image manifest (sent as %.100s)",
                   media_type && *media_type ? media_type : "no media type");
}

int oci_document_parse(struct json **out, enum oci_document_kind *kind, const char *media_type,
                       const void *bytes, size_t len, struct err *e)
{
    AUTO_JSON struct json *doc = NULL;

    if (json_parse(&doc, bytes, len, "manifest", e) < 0 || classify(kind, media_type, doc, e) < 0)
        return -(int)e->class;
    *out = MOVE(doc);
    return 0;
}

/* ---- Manifest --------------------------------------------------------------------------- */

static int read_layers(struct oci_manifest *m, const struct json *layers, struct err *e)
{
    size_t count = json_length(layers);

    if (count > OCI_MAX_DESCRIPTORS)
        return err_set(e, ERR_LIMIT, "%zu layers, more than %d", count, OCI_MAX_DESCRIPTORS);
    m->layers = mem_array(count, sizeof(*m->layers));
    if (!m->layers)
        return err_nomem(e, "manifest");
    for (size_t i = 0; i < count; i++) {
        if (oci_descriptor_read(&m->layers[i], json_element(layers, i), e) < 0)
            return err_in(e, "layer %zu", i + 1);
        m->layer_count = i + 1;
    }
    return 0;
}

static int read_descriptors(struct oci_manifest *m, const struct json *doc, struct err *e)
{
    enum oci_document_kind kind;
    struct json *config = NULL;
    struct json *layers = NULL;

    if (classify(&kind, NULL, doc, e) < 0)
        return -(int)e->class;
    if (kind != OCI_MANIFEST)
        return err_set(e, ERR_CORRUPT, "an index stands where a manifest should");
    if (json_get_object(doc, "config", &config, e) < 0 ||
        json_get_array(doc, "layers", &layers, e) < 0)
        return -(int)e->class;
    if (oci_descriptor_read(&m->config, config, e) < 0)
        return err_in(e, "config");
    return read_layers(m, layers, e);
}

int oci_manifest_read(struct oci_manifest *out, const struct json *manifest, struct err *e)
{
    struct oci_manifest m = {0};

    if (read_descriptors(&m, manifest, e) < 0) {
        oci_manifest_fini(&m);
        return err_in(e, "manifest");
    }
    *out = m;
    return 0;
}

int oci_manifest_parse(struct oci_manifest *out, const void *bytes, size_t len, struct err *e)
{
    AUTO_JSON struct json *doc = NULL;

    if (json_parse(&doc, bytes, len, "manifest", e) < 0 || oci_manifest_read(out, doc, e) < 0)
        return -(int)e->class;
    digest_bytes(&out->digest, bytes, len);
    return 0;
}

void oci_manifest_fini(struct oci_manifest *m)
{
    oci_descriptor_fini(&m->config);
    for (size_t i = 0; i < m->layer_count; i++)
        oci_descriptor_fini(&m->layers[i]);
    free(m->layers);
    *m = (struct oci_manifest){0};
}

/* ---- Config ----------------------------------------------------------------------------- */

static int copy_string(char **out, const struct json *j, const char *key, struct err *e)
{
    const char *value = NULL;

    if (j && json_get_string_opt(j, key, &value, e) < 0)
        return -(int)e->class;
    *out = mem_strdup(value ? value : "");
    return *out ? 0 : err_nomem(e, "image config");
}

static int read_diff_ids(struct oci_config *c, const struct json *doc, struct err *e)
{
    struct json *rootfs = NULL;
    struct json *ids = NULL;

    if (json_get_object_opt(doc, "rootfs", &rootfs, e) < 0 ||
        (rootfs && json_get_array_opt(rootfs, "diff_ids", &ids, e) < 0))
        return -(int)e->class;
    size_t count = ids ? json_length(ids) : 0;
    if (count > OCI_MAX_DESCRIPTORS)
        return err_set(e, ERR_LIMIT, "%zu diff_ids, more than %d", count, OCI_MAX_DESCRIPTORS);
    c->diff_ids = mem_array(count, sizeof(*c->diff_ids));
    if (!c->diff_ids)
        return err_nomem(e, "image config");
    for (size_t i = 0; i < count; i++) {
        const char *text = json_as_string(json_element(ids, i));
        if (!text)
            return err_set(e, ERR_CORRUPT, "diff_id %zu is no string", i + 1);
        if (digest_parse(&c->diff_ids[i], text, e) < 0)
            return err_in(e, "diff_id %zu", i + 1);
    }
    c->diff_id_count = count;
    return 0;
}

static int read_env(struct oci_config *c, const struct json *settings, struct err *e)
{
    struct json *env = NULL;

    if (settings && json_get_array_opt(settings, "Env", &env, e) < 0)
        return -(int)e->class;
    size_t count = env ? json_length(env) : 0;
    c->env = mem_array(count + 1, sizeof(*c->env));
    if (!c->env)
        return err_nomem(e, "image config");
    for (size_t i = 0; i < count; i++) {
        const char *text = json_as_string(json_element(env, i));
        if (!text)
            return err_set(e, ERR_CORRUPT, "Env[%zu] is no string", i);
        c->env[i] = mem_strdup(text);
        if (!c->env[i])
            return err_nomem(e, "image config");
    }
    return 0;
}

static int read_config(struct oci_config *c, const struct json *doc, struct err *e)
{
    struct json *settings = NULL;

    if (json_kind(doc) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "the document is no JSON object");
    if (json_get_object_opt(doc, "config", &settings, e) < 0 ||
        copy_string(&c->architecture, doc, "architecture", e) < 0 ||
        copy_string(&c->os, doc, "os", e) < 0 || copy_string(&c->user, settings, "User", e) < 0 ||
        copy_string(&c->working_dir, settings, "WorkingDir", e) < 0 || read_env(c, settings, e) < 0)
        return -(int)e->class;
    return read_diff_ids(c, doc, e);
}

int oci_config_parse(struct oci_config *out, const void *bytes, size_t len, struct err *e)
{
    struct oci_config c = {0};

    if (json_parse(&c.raw, bytes, len, "image config", e) < 0)
        return -(int)e->class;
    if (read_config(&c, c.raw, e) < 0) {
        oci_config_fini(&c);
        return err_in(e, "image config");
    }
    digest_bytes(&c.digest, bytes, len);
    *out = c;
    return 0;
}

void oci_config_fini(struct oci_config *c)
{
    free(c->architecture);
    free(c->os);
    free(c->diff_ids);
    for (size_t i = 0; c->env && c->env[i]; i++)
        free(c->env[i]);
    free(c->env);
    free(c->user);
    free(c->working_dir);
    json_free(c->raw);
    *c = (struct oci_config){0};
}

/* ---- Image ------------------------------------------------------------------------------ */

/* Layer types: media-types.md and Docker's schema 2. The compression suffix is not looked at, for
 * the layer reader goes by the bytes; types that say nothing (octet-stream) pass for the same
 * reason. */
static int check_layer_type(const char *type, struct err *e)
{
    static const char *const known[] = {
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.oci.image.layer.v1.tar+zstd",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.diff.tar.gzip",
        "application/vnd.docker.image.rootfs.diff.tar.zstd",
    };

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strcmp(type, known[i]) == 0)
            return 0;
    }
    if (strstr(type, ".foreign.") || strstr(type, ".nondistributable."))
        return err_set(e, ERR_UNSUPPORTED,
                       "a foreign layer (%.100s): its bytes are not in the registry", type);
    if (strstr(type, "+encrypted"))
        return err_set(e, ERR_UNSUPPORTED, "an encrypted layer (%.100s)", type);
    if (has_prefix(type, "application/vnd."))
        return err_set(e, ERR_UNSUPPORTED, "not a file system layer (%.100s)", type);
    return 0;
}

int oci_image_check(const struct oci_manifest *m, const struct oci_config *c, struct err *e)
{
    for (size_t i = 0; i < m->layer_count; i++) {
        if (check_layer_type(m->layers[i].media_type, e) < 0)
            return err_in(e, "layer %zu", i + 1);
    }
    if (m->layer_count != c->diff_id_count)
        return err_set(
            e, ERR_CORRUPT,
            "not a runnable image: the manifest lists %zu layers, the config %zu diff_ids",
            m->layer_count, c->diff_id_count);
    if (!*c->os)
        return err_set(e, ERR_UNSUPPORTED,
                       "not a runnable image: its config names no operating system");
    if (strcmp(c->os, "linux") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "the image is for the operating system \"%.60s\", not linux", c->os);
    return 0;
}
