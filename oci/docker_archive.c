/* SPDX-License-Identifier: MIT */
/*
 * What `docker save` writes. manifest.json lists the images: path of the config, names, paths of
 * the layers, bottom first (the moby repository's image specification, v1.2, section "Combined
 * Image JSON + Filesystem Changeset Format"). The files lie in one of three ways, all found by
 * their paths: ID/layer.tar and CONFIG.json; DIGEST.tar, with the former as links to it; and
 * blobs/sha256/DIGEST, beside the index.json of an image layout.
 *
 * No manifest is kept there, so one is made: the config by its digest, each layer by the digest of
 * its bytes, which for a plain tar is its diff_id. The same files give the same manifest.
 */
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

#define LIST "manifest.json"

enum { MAX_IMAGES = 4096, HASH_NAME_LEN = 64 };

/* A file of the archive that goes by a digest. */
struct named {
    struct digest digest;
    uint64_t size;
    char *path;
};

struct oci_docker {
    const struct oci_archive *archive;
    struct json *list;
    char *manifest; /* of the image that was resolved */
    struct digest digest;
    struct named *files;
    size_t count;
    size_t capacity;
};

static void forget_image(struct oci_docker *d)
{
    for (size_t i = 0; i < d->count; i++)
        free(d->files[i].path);
    d->count = 0;
    free(d->manifest);
    d->manifest = NULL;
}

void oci_docker_close(struct oci_docker *d)
{
    if (!d)
        return;
    forget_image(d);
    free(d->files);
    json_free(d->list);
    free(d);
}

static int read_file(const struct oci_docker *d, const char *path, struct buf *out, struct err *e)
{
    struct source from = {0};
    int rc = oci_archive_file(d->archive, path, &from, e);
    if (rc == 0)
        rc = oci_source_read(&from, out, e);
    source_close(&from);
    return rc < 0 && e->class != ERR_NOTFOUND ? err_in(e, "%.200s", path) : rc;
}

static int refuse(const struct oci_archive *a, struct err *e)
{
    if (oci_archive_has(a, "repositories")) {
        err_set(e, ERR_UNSUPPORTED, "the archive has the form of Docker before 1.10");
        return err_hint(e, "load it with a current Docker and save it again");
    }
    err_set(e, ERR_INPUT, "not an archive of docker save: it has no \"" LIST "\"");
    return oci_archive_has(a, "oci-layout")
               ? err_hint(e, "it is an image layout: name it oci-archive:%s", oci_archive_path(a))
               : -ERR_INPUT;
}

static int read_list(struct oci_docker *d, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_MANIFEST);
    if (!oci_archive_has(d->archive, LIST))
        return refuse(d->archive, e);
    int rc = read_file(d, LIST, &text, e);
    if (rc == 0)
        rc = json_parse(&d->list, text.data, text.len, LIST, e);
    if (rc < 0)
        return rc;
    if (json_kind(d->list) != JSON_KIND_ARRAY)
        return err_set(e, ERR_CORRUPT, LIST ": no JSON array");
    if (json_length(d->list) > MAX_IMAGES)
        return err_set(e, ERR_LIMIT, LIST ": %zu images, more than %d", json_length(d->list),
                       MAX_IMAGES);
    for (size_t i = 0; i < json_length(d->list); i++) {
        if (json_kind(json_element(d->list, i)) != JSON_KIND_OBJECT)
            return err_set(e, ERR_CORRUPT, LIST ": image %zu is no object", i + 1);
    }
    return 0;
}

int oci_docker_open(struct oci_docker **out, const struct oci_archive *a, struct err *e)
{
    struct oci_docker *d = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "archive");
    d->archive = a;
    int rc = read_list(d, e);
    if (rc < 0) {
        oci_docker_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

/* ---- Which image ---- */

/* Whether a name of the list, which may be written short, is the wanted one, which is not. */
static bool is_name(const char *text, const char *wanted)
{
    struct err e = ERR_INIT;
    struct oci_ref ref;
    if (!text || oci_ref_parse(&ref, text, &e) < 0)
        return false;
    AUTO_FREE char *full = oci_ref_print(&ref);
    oci_ref_fini(&ref);
    return full && strcmp(full, wanted) == 0;
}

static int has_name(bool *out, const struct json *image, const char *wanted, struct err *e)
{
    struct json *names = NULL;
    int rc = json_get_array_opt(image, "RepoTags", &names, e);
    *out = false;
    for (size_t i = 0; rc == 0 && names && i < json_length(names) && !*out; i++)
        *out = is_name(json_as_string(json_element(names, i)), wanted);
    return rc;
}

static int note_names(struct buf *all, const struct json *image, struct err *e)
{
    struct json *names = NULL;
    int rc = json_get_array_opt(image, "RepoTags", &names, e);
    for (size_t i = 0; rc == 0 && names && i < json_length(names) && all->len < 600; i++) {
        const char *name = json_as_string(json_element(names, i));
        rc = buf_printf(all, e, "%s%.200s", all->len ? ", " : "", name ? name : "?");
    }
    return rc;
}

/* Says what there is. */
static int no_image(const struct oci_docker *d, const struct oci_ref *ref, struct err *e)
{
    AUTO_BUF struct buf all;
    struct err inner = ERR_INIT;
    buf_init(&all, LIMIT_TOKEN);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_length(d->list); i++)
        rc = note_names(&all, json_element(d->list, i), &inner);
    const char *names = all.len ? buf_text(&all) : "none has a name";
    if (ref->tag)
        return err_set(e, ERR_NOTFOUND, "no image is named \"%s\"; there are: %.600s", ref->tag,
                       names);
    if (ref->has_index)
        return err_set(e, ERR_NOTFOUND, "there is no image @%zu: it holds %zu, counted from 0",
                       ref->index, json_length(d->list));
    if (json_length(d->list) == 0)
        return err_set(e, ERR_NOTFOUND, "the archive holds no image");
    err_set(e, ERR_INPUT, "the archive holds %zu images, and none was named: %.600s",
            json_length(d->list), names);
    return err_hint(e, "add :NAME:TAG, or :@0 for the first");
}

static int choose(const struct oci_docker *d, const struct oci_ref *ref, const struct json **out,
                  struct err *e)
{
    size_t count = json_length(d->list);
    *out = NULL;
    if (ref->has_digest)
        return err_set(e, ERR_INPUT, "archives of docker save have no digests to choose by");
    if (ref->has_index) {
        *out = ref->index < count ? json_element(d->list, ref->index) : NULL;
    } else if (!ref->tag) {
        *out = count == 1 ? json_element(d->list, 0) : NULL;
    } else {
        /* From the end: a name that was given twice is the later image's, as for `docker load`. */
        for (size_t i = count; i > 0 && !*out; i--) {
            bool matches = false;
            int rc = has_name(&matches, json_element(d->list, i - 1), ref->tag, e);
            if (rc < 0)
                return err_in(e, LIST ": image %zu", i);
            if (matches)
                *out = json_element(d->list, i - 1);
        }
    }
    return *out ? 0 : no_image(d, ref, e);
}

/* ---- Its manifest ---- */

static int add_file(struct oci_docker *d, const struct digest *digest, uint64_t size,
                    const char *path, struct err *e)
{
    int rc = mem_grow(&d->files, &d->capacity, d->count + 1, sizeof(*d->files), e);
    if (rc < 0)
        return rc;
    char *copy = mem_strdup(path);
    if (!copy)
        return err_nomem(e, "archive");
    d->files[d->count++] = (struct named){*digest, size, copy};
    return 0;
}

static struct json *new_descriptor(const char *type, const struct digest *digest, uint64_t size)
{
    char text[DIGEST_TEXT_MAX];
    struct json *j = json_new_object();
    json_set(j, "mediaType", json_new_string(type));
    json_set(j, "digest", json_new_string(digest_print(digest, text)));
    json_set(j, "size", json_new_integer((int64_t)size));
    return j;
}

/* Configs go by their digest: "HEX.json" or "blobs/sha256/HEX". */
static int check_config_name(const char *path, const struct digest *digest, struct err *e)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    size_t len = strspn(name, "0123456789abcdef");
    char hex[DIGEST_TEXT_MAX];
    if (len != HASH_NAME_LEN || (name[len] != 0 && strcmp(name + len, ".json") != 0) ||
        strncmp(name, digest_hex(digest, hex), HASH_NAME_LEN) == 0)
        return 0;
    return err_set(e, ERR_CORRUPT, "config %.100s has the digest sha256:%s", path, hex);
}

static int add_config(struct oci_docker *d, const char *path, struct oci_config *config,
                      struct json *manifest, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_CONFIG);
    int rc = read_file(d, path, &text, e);
    if (rc < 0)
        return err_in(e, "config");
    struct digest digest;
    digest_bytes(&digest, text.data, text.len);
    rc = check_config_name(path, &digest, e);
    if (rc == 0)
        rc = oci_config_parse(config, text.data, text.len, e);
    if (rc == 0)
        rc = add_file(d, &digest, text.len, path, e);
    if (rc == 0)
        json_set(manifest, "config", new_descriptor(OCI_TYPE_CONFIG, &digest, text.len));
    return rc;
}

/* The media type of a layer, by its first bytes. */
static const char *layer_type(const struct source *from)
{
    static const uint8_t gzip[] = {0x1f, 0x8b};
    static const uint8_t zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    static const uint8_t skippable[] = {0x2a, 0x4d, 0x18}; /* behind a first byte 0x50 to 0x5f */
    uint8_t head[4];
    struct err e = ERR_INIT;
    if (from->size < sizeof(head) || source_read_full(from, 0, head, sizeof(head), &e) < 0)
        return OCI_TYPE_LAYER;
    if (memcmp(head, gzip, sizeof(gzip)) == 0)
        return OCI_TYPE_LAYER "+gzip";
    if (memcmp(head, zstd, sizeof(zstd)) == 0 ||
        ((head[0] & 0xf0) == 0x50 && memcmp(head + 1, skippable, sizeof(skippable)) == 0))
        return OCI_TYPE_LAYER "+zstd";
    return OCI_TYPE_LAYER;
}

static int add_layer(struct oci_docker *d, const char *path, const struct digest *diff_id,
                     struct json *layers, struct err *e)
{
    struct source from = {0};
    struct digest digest = *diff_id;
    int rc = path ? oci_archive_file(d->archive, path, &from, e)
                  : err_set(e, ERR_CORRUPT, "its path is no string");
    if (rc < 0)
        return rc;
    const char *type = layer_type(&from);
    if (strcmp(type, OCI_TYPE_LAYER) != 0)
        rc = oci_source_digest(&from, oci_archive_cancel(d->archive), &digest, e);
    if (rc == 0)
        rc = add_file(d, &digest, from.size, path, e);
    if (rc == 0)
        json_append(layers, new_descriptor(type, &digest, from.size));
    source_close(&from);
    return rc;
}

static int add_layers(struct oci_docker *d, const struct json *paths,
                      const struct oci_config *config, struct json *manifest, struct err *e)
{
    size_t count = paths ? json_length(paths) : 0;
    if (count != config->diff_id_count)
        return err_set(e, ERR_CORRUPT, LIST " lists %zu layers, the config %zu diff_ids", count,
                       config->diff_id_count);
    struct json *layers = json_new_array();
    json_set(manifest, "layers", layers);
    for (size_t i = 0; i < count; i++) {
        int rc =
            add_layer(d, json_as_string(json_element(paths, i)), &config->diff_ids[i], layers, e);
        if (rc < 0)
            return err_in(e, "layer %zu of %zu", i + 1, count);
    }
    return 0;
}

static int make_manifest(struct oci_docker *d, const struct json *image, struct err *e)
{
    const char *config_path = NULL;
    struct json *paths = NULL;
    struct oci_config config = {0};
    AUTO_JSON struct json *manifest = json_new_object();
    int rc = json_get_string(image, "Config", &config_path, e);
    if (rc == 0)
        rc = json_get_array_opt(image, "Layers", &paths, e);
    if (rc < 0)
        return err_in(e, LIST);
    json_set(manifest, "schemaVersion", json_new_integer(2));
    json_set(manifest, "mediaType", json_new_string(OCI_TYPE_MANIFEST));
    rc = add_config(d, config_path, &config, manifest, e);
    if (rc == 0)
        rc = add_layers(d, paths, &config, manifest, e);
    oci_config_fini(&config);
    if (rc == 0)
        rc = json_print(manifest, 0, &d->manifest, e);
    if (rc == 0)
        digest_bytes(&d->digest, d->manifest, strlen(d->manifest));
    return rc;
}

int oci_docker_resolve(struct oci_docker *d, const struct oci_ref *ref, struct oci_descriptor *out,
                       struct err *e)
{
    const struct json *image = NULL;
    int rc = choose(d, ref, &image, e);
    if (rc < 0)
        return rc;
    forget_image(d);
    rc = make_manifest(d, image, e);
    if (rc < 0)
        return rc;
    out->media_type = mem_strdup(OCI_TYPE_MANIFEST);
    out->digest = d->digest;
    out->size = strlen(d->manifest);
    return out->media_type ? 0 : err_nomem(e, "archive");
}

int oci_docker_blob(const struct oci_docker *d, const struct oci_descriptor *want,
                    struct source *out, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    if (d->manifest && digest_equal(&want->digest, &d->digest))
        return source_from_memory(out, d->manifest, strlen(d->manifest), e);
    for (size_t i = 0; i < d->count; i++) {
        if (digest_equal(&want->digest, &d->files[i].digest) && want->size == d->files[i].size)
            return oci_archive_file(d->archive, d->files[i].path, out, e);
    }
    return err_set(e, ERR_NOTFOUND, "blob %s: not of this image",
                   digest_print(&want->digest, text));
}
