/* SPDX-License-Identifier: MIT */
/*
 * Native images: those whose layers are OverlayBD layers rather than trees of files. What makes one is
 * what AgentENV goes by: the layer's media type, or an annotation that names the layer's own digest.
 */
#include <string.h>

#include "oci/internal.h"

#define ANNOTATION "containerd.io/snapshot/overlaybd/"

enum layer_kind { LAYER_OF_FILES, LAYER_NATIVE };

static bool is_native_type(const char *type)
{
    static const char *const words[] = {".overlaybd", "/overlaybd", "+overlaybd",
                                        ".zfile",     "/zfile",     "+zfile"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strstr(type, words[i]))
            return true;
    }
    return false;
}

static int refuse_turbo(void *ctx UNUSED, const char *key, struct json *value, struct err *e)
{
    const char *text = json_as_string(value);
    if (strncmp(key, ANNOTATION "turbo-oci/", strlen(ANNOTATION "turbo-oci/")) == 0 ||
        (strcmp(key, ANNOTATION "version") == 0 && text && strstr(text, "turbo")))
        return err_set(e, ERR_UNSUPPORTED,
                       "a TurboOCI layer: its blocks are in another image's layers");
    if (strcmp(key, ANNOTATION "acceleration-layer") == 0)
        return err_set(e, ERR_UNSUPPORTED, "an acceleration layer: it is no part of the disk");
    return 0;
}

static int layer_kind(enum layer_kind *out, const struct json *layer, struct err *e)
{
    const char *type = NULL;
    const char *digest = NULL;
    const char *inner = NULL;
    struct json *annotations = NULL;

    if (json_get_string(layer, "mediaType", &type, e) < 0 ||
        json_get_string(layer, "digest", &digest, e) < 0 ||
        json_get_object_opt(layer, "annotations", &annotations, e) < 0)
        return -(int)e->class;
    *out = is_native_type(type) ? LAYER_NATIVE : LAYER_OF_FILES;
    if (!annotations)
        return 0;
    if (json_each(annotations, refuse_turbo, NULL, e) < 0 ||
        json_get_string_opt(annotations, ANNOTATION "blob-digest", &inner, e) < 0)
        return -(int)e->class;
    if (!inner || *out == LAYER_NATIVE)
        return 0;
    if (strcmp(inner, digest) != 0)
        return err_set(e, ERR_UNSUPPORTED, "an OverlayBD layer wrapped in another blob");
    *out = LAYER_NATIVE;
    return 0;
}

int oci_manifest_is_native(bool *out, const struct json *manifest, struct err *e)
{
    struct json *layers = NULL;
    size_t native = 0;

    *out = false;
    if (json_get_array(manifest, "layers", &layers, e) < 0)
        return err_in(e, "image manifest");
    size_t count = json_length(layers);
    for (size_t i = 0; i < count; i++) {
        enum layer_kind kind;
        const struct json *layer = json_element(layers, i);
        if (json_kind(layer) != JSON_KIND_OBJECT)
            return err_set(e, ERR_CORRUPT, "layer %zu: no JSON object", i + 1);
        if (layer_kind(&kind, layer, e) < 0)
            return err_in(e, "layer %zu", i + 1);
        native += kind == LAYER_NATIVE;
    }
    if (native > 0 && native < count)
        return err_set(
            e, ERR_UNSUPPORTED,
            "%zu of its %zu layers are OverlayBD layers: not an image that anyone can use", native,
            count);
    *out = native > 0;
    return 0;
}
