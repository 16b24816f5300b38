/* SPDX-License-Identifier: MIT */
/* Image documents: the same bytes as index, manifest and config. */
#include "fuzz.h"
#include "oci/oci.h"

static void read_index(const struct json *index)
{
    struct err e = ERR_INIT;
    struct oci_descriptor chosen = {0};
    bool needs_check = false;
    int rc = oci_index_select(&chosen, &needs_check, index,
                              &(struct oci_platform){"linux", "arm64", "v8"}, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(rc < 0 || chosen.media_type);
    oci_descriptor_fini(&chosen);
}

static void read_native(const struct json *manifest)
{
    struct err e = ERR_INIT;
    bool native = false;
    int rc = oci_manifest_is_native(&native, manifest, &e);
    PROMISE_ERROR(rc, &e);
}

static void read_image(const void *bytes, size_t len)
{
    struct err e = ERR_INIT;
    struct oci_manifest manifest = {0};
    struct oci_config config = {0};
    int manifest_rc = oci_manifest_parse(&manifest, bytes, len, &e);
    PROMISE_ERROR(manifest_rc, &e);
    err_clear(&e);
    int config_rc = oci_config_parse(&config, bytes, len, &e);
    PROMISE_ERROR(config_rc, &e);
    if (manifest_rc == 0 && config_rc == 0) {
        int rc = oci_image_check(&manifest, &config, &e);
        PROMISE_ERROR(rc, &e);
    }
    oci_manifest_fini(&manifest);
    oci_config_fini(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_JSON struct json *doc = NULL;
    AUTO_JSON struct json *any = NULL;
    enum oci_document_kind kind;
    int rc = oci_document_parse(&doc, &kind, NULL, data, size, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(rc < 0 || doc);
    err_clear(&e);
    if (json_parse(&any, data, size, "document", &e) == 0) {
        read_index(any);
        read_native(any);
    }
    read_image(data, size);
    return 0;
}
