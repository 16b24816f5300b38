/* SPDX-License-Identifier: MIT */
/* Names to images: what an index leads to, what is no image, what is found without a network. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "bake/image/image.h"
#include "base/file.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

#define MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"
#define LAYER_HEX "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define LAYER                                                                                      \
    "{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"sha256:" LAYER_HEX     \
    "\",\"size\":5}"

struct world {
    char path[64];
    struct store *store;
    int dir; /* an image layout */
};

static void world_open(struct world *w)
{
    struct err e = ERR_INIT;
    snprintf(w->path, sizeof(w->path), "/tmp/tb2-image-XXXXXX");
    assert_non_null(mkdtemp(w->path));
    AUTO_FREE char *store = mem_printf("%s/store", w->path);
    AUTO_FREE char *layout = mem_printf("%s/layout/blobs/sha256", w->path);
    assert_int_equal(store_open(&w->store, store, &e), 0);
    assert_int_equal(file_make_dirs(AT_FDCWD, layout, &e), 0);
    AUTO_FREE char *top = mem_printf("%s/layout", w->path);
    assert_int_equal(file_open_dir(&w->dir, AT_FDCWD, top, &e), 0);
    assert_int_equal(
        file_put(w->dir, w->dir, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}", 30, &e), 0);
}

static void world_close(struct world *w)
{
    struct err e = ERR_INIT;
    file_close(&w->dir);
    store_close(w->store);
    assert_int_equal(file_remove_tree(AT_FDCWD, w->path, &e), 0);
}

/* Puts a document and returns its descriptor, with more members in front; for free(). */
static char *put(struct world *w, const char *members, const char *text)
{
    struct err e = ERR_INIT;
    struct digest d;
    char hex[DIGEST_TEXT_MAX];
    digest_bytes(&d, text, strlen(text));
    AUTO_FREE char *path = mem_printf("blobs/sha256/%s", digest_hex(&d, hex));
    assert_int_equal(file_put(w->dir, w->dir, path, text, strlen(text), &e), 0);
    return mem_printf("{%s\"digest\":\"sha256:%s\",\"size\":%zu}", members, hex, strlen(text));
}

/* An image of one layer. */
static char *put_image(struct world *w, const char *members, const char *architecture)
{
    AUTO_FREE char *config = mem_printf("{\"os\":\"linux\",\"architecture\":\"%s\",\"rootfs\":{"
                                        "\"diff_ids\":[\"sha256:" LAYER_HEX "\"]}}",
                                        architecture);
    AUTO_FREE char *descriptor = put(w, "", config);
    AUTO_FREE char *manifest =
        mem_printf("{\"schemaVersion\":2,\"config\":%s,\"layers\":[" LAYER "]}", descriptor);
    return put(w, members, manifest);
}

#define PLATFORM(os, architecture)                                                                 \
    "\"platform\":{\"os\":\"" os "\",\"architecture\":\"" architecture "\"},"
#define VARIANT(architecture, variant)                                                             \
    "\"platform\":{\"os\":\"linux\",\"architecture\":\"" architecture "\",\"variant\":\"" variant  \
    "\"},"

/* Writes index.json with the entries, NULL-terminated, each of them for free(). */
static char *join(char *const *entries)
{
    AUTO_BUF struct buf all;
    struct err e = ERR_INIT;
    buf_init(&all, LIMIT_MANIFEST);
    assert_int_equal(buf_add_text(&all, "{\"schemaVersion\":2,\"manifests\":[", &e), 0);
    for (size_t i = 0; entries[i]; i++)
        assert_int_equal(buf_printf(&all, &e, "%s%s", i ? "," : "", entries[i]), 0);
    assert_int_equal(buf_add_text(&all, "]}", &e), 0);
    return buf_take(&all);
}

static void put_index(struct world *w, const char *text)
{
    struct err e = ERR_INIT;
    assert_int_equal(file_put(w->dir, w->dir, "index.json", text, strlen(text), &e), 0);
}

static void free_all(char **entries)
{
    for (size_t i = 0; entries[i]; i++)
        free(entries[i]);
}

/* ---- What is made ---- */

static void one_image(struct world *w)
{
    char *all[] = {put_image(w, "", "amd64"), NULL};
    AUTO_FREE char *index = join(all);
    put_index(w, index);
    free_all(all);
}

static void other_machine(struct world *w)
{
    char *all[] = {put_image(w, "", "arm64"), NULL};
    AUTO_FREE char *index = join(all);
    put_index(w, index);
    free_all(all);
}

static void says_x86_64(struct world *w)
{
    char *all[] = {put_image(w, "", "x86_64"), NULL};
    AUTO_FREE char *index = join(all);
    put_index(w, index);
    free_all(all);
}

static void says_nothing(struct world *w)
{
    char *all[] = {put_image(w, "", ""), NULL};
    AUTO_FREE char *index = join(all);
    put_index(w, index);
    free_all(all);
}

/* An index with an attestation first, then several machines, `depth` indexes below index.json. */
static void nest(struct world *w, int depth)
{
    char *all[] = {
        put_image(w,
                  PLATFORM("unknown", "unknown") "\"annotations\":{\"vnd.docker.reference.type\":"
                                                 "\"attestation-manifest\"},",
                  "unknown"),
        put_image(w, PLATFORM("windows", "amd64"), "windows-amd64"),
        put_image(w, VARIANT("arm64", "v8"), "arm64"),
        put_image(w, VARIANT("arm", "v6"), "arm"),
        put_image(w, PLATFORM("linux", "amd64"), "amd64"),
        NULL,
    };
    char *text = join(all);
    free_all(all);
    for (int i = 0; i < depth; i++) {
        char *inner[] = {put(w, "", text), NULL};
        free(text);
        text = join(inner);
        free_all(inner);
    }
    put_index(w, text);
    free(text);
}

static void index_of_images(struct world *w)
{
    nest(w, 1);
}

static void index_of_indexes(struct world *w)
{
    nest(w, 3);
}

static void indexes_without_end(struct world *w)
{
    nest(w, 4);
}

/* Without a platform of its own: the config decides. */
static void no_platform_named(struct world *w)
{
    char *inner[] = {put_image(w, "", "arm64"), NULL};
    AUTO_FREE char *text = join(inner);
    char *outer[] = {put(w, "", text), NULL};
    AUTO_FREE char *index = join(outer);
    put_index(w, index);
    free_all(inner);
    free_all(outer);
}

static void one_document(struct world *w, const char *text)
{
    char *all[] = {put(w, "", text), NULL};
    AUTO_FREE char *index = join(all);
    put_index(w, index);
    free_all(all);
}

static void schema_1(struct world *w)
{
    one_document(w, "{\"schemaVersion\":1,\"name\":\"x\",\"fsLayers\":[],\"history\":[]}");
}

static void artifact(struct world *w)
{
    one_document(w, "{\"schemaVersion\":2,\"artifactType\":\"application/spdx+json\",\"config\":{"
                    "\"mediaType\":\"application/vnd.oci.empty.v1+json\"},\"layers\":[]}");
}

static void helm_chart(struct world *w)
{
    one_document(w, "{\"schemaVersion\":2,\"config\":{\"mediaType\":"
                    "\"application/vnd.cncf.helm.config.v1+json\"},\"layers\":[]}");
}

static void foreign_layer(struct world *w)
{
    AUTO_FREE char *config =
        put(w, "", "{\"os\":\"linux\",\"rootfs\":{\"diff_ids\":[\"sha256:" LAYER_HEX "\"]}}");
    AUTO_FREE char *text =
        mem_printf("{\"schemaVersion\":2,\"config\":%s,\"layers\":[{\"mediaType\":"
                   "\"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip\",\"urls\":["
                   "\"http://127.0.0.1:1/x\"],\"digest\":\"sha256:" LAYER_HEX "\",\"size\":5}]}",
                   config);
    one_document(w, text);
}

static void attestation(struct world *w)
{
    AUTO_FREE char *config = put(w, "", "{}");
    AUTO_FREE char *text = mem_printf(
        "{\"schemaVersion\":2,\"config\":%s,\"layers\":[{\"mediaType\":"
        "\"application/vnd.in-toto+json\",\"digest\":\"sha256:" LAYER_HEX "\",\"size\":5}]}",
        config);
    one_document(w, text);
}

static void resolving(void **state UNUSED)
{
    static const struct {
        const char *name;
        void (*make)(struct world *w);
        const char *platform;
        int rc;
        const char *says; /* the architecture, or a part of the message */
    } cases[] = {
        {"one_image", one_image, "linux/amd64", 0, "amd64"},
        {"other_machine", other_machine, "linux/amd64", -ERR_NOTFOUND, "for arm64, not for amd64"},
        {"asked_for", other_machine, "linux/arm64", 0, "arm64"},
        {"other_spelling", other_machine, "linux/aarch64", 0, "arm64"},
        {"says_x86_64", says_x86_64, "linux/amd64", 0, "x86_64"},
        {"says_nothing", says_nothing, "linux/amd64", 0, ""},
        {"index_of_images", index_of_images, "linux/amd64", 0, "amd64"},
        {"arm64_of_an_index", index_of_images, "linux/arm64", 0, "arm64"},
        {"older_variant_fits", index_of_images, "linux/arm/v7", 0, "arm"},
        {"newer_variant_does_not", index_of_images, "linux/arm/v5", -ERR_NOTFOUND, "linux/arm/v6"},
        {"nothing_fits", index_of_images, "linux/riscv64", -ERR_NOTFOUND, "windows/amd64"},
        {"index_of_indexes", index_of_indexes, "linux/amd64", 0, "amd64"},
        {"indexes_without_end", indexes_without_end, "linux/amd64", -ERR_CORRUPT, "nested"},
        {"no_platform_named", no_platform_named, "linux/arm64", 0, "arm64"},
        {"no_platform_and_wrong", no_platform_named, "linux/amd64", -ERR_NOTFOUND, "arm64"},
        {"schema_1", schema_1, "linux/amd64", -ERR_UNSUPPORTED, "schema 1"},
        {"artifact", artifact, "linux/amd64", -ERR_UNSUPPORTED, "artifact"},
        {"helm_chart", helm_chart, "linux/amd64", -ERR_UNSUPPORTED, "Helm"},
        {"foreign_layer", foreign_layer, "linux/amd64", -ERR_UNSUPPORTED, "foreign layer"},
        {"attestation", attestation, "linux/amd64", -ERR_UNSUPPORTED, "layer"},
        {"bad_platform", one_image, "amd64", -ERR_INPUT, "--platform"},
        {"bad_platform_parts", one_image, "linux/a/b/c", -ERR_INPUT, "--platform"},
        {"empty_variant", one_image, "linux/arm/", -ERR_INPUT, "--platform"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct image_room room = {0};
        struct err e = ERR_INIT;
        AUTO_IMAGE struct image *image = NULL;
        world_open(&w);
        cases[i].make(&w);
        AUTO_FREE char *name = mem_printf("oci:%s/layout", w.path);
        const struct image_options options = {.platform = cases[i].platform};
        int rc = image_room_open(&room, w.store, &options, NULL, &e);
        if (rc == 0)
            rc = image_resolve(&image, &room, name, &e);
        if (rc != cases[i].rc || (rc < 0 && !strstr(e.text, cases[i].says)))
            fail_msg("%s: %d %s", cases[i].name, rc, e.text);
        if (rc == 0 && strcmp(image->config.architecture, cases[i].says) != 0)
            fail_msg("%s: %s", cases[i].name, image->config.architecture);
        image_room_close(&room);
        world_close(&w);
    }
}

/* ---- Without a network ---- */

#define NAME "r.example/a/b:1"

static void store_document(struct world *w, const char *text, char digest[DIGEST_TEXT_MAX])
{
    struct err e = ERR_INIT;
    struct digest d;
    char path[BLOB_PATH_MAX];
    digest_bytes(&d, text, strlen(text));
    digest_print(&d, digest);
    image_blob_path(path, "blobs", &d);
    assert_int_equal(
        file_put(store_tmp_dir(w->store), store_dir(w->store), path, text, strlen(text), &e), 0);
}

/* As docs/formats/store.md, "Tags", has it. */
static void store_tag(struct world *w, const char *text)
{
    struct err e = ERR_INIT;
    struct digest d;
    char hex[DIGEST_TEXT_MAX];
    digest_bytes(&d, NAME, strlen(NAME));
    AUTO_FREE char *path = mem_printf("refs/%s", digest_hex(&d, hex));
    assert_int_equal(file_make_dirs(store_dir(w->store), "refs", &e), 0);
    assert_int_equal(
        file_put(store_tmp_dir(w->store), store_dir(w->store), path, text, strlen(text), &e), 0);
}

static void offline(void **state UNUSED)
{
    static const struct {
        const char *name;
        const char *record; /* %s: the manifest's digest; NULL: none */
        const char *reference;
        bool has_manifest, has_config;
        int rc;
        const char *says;
    } cases[] = {
        {"all_is_there", "{\"reference\":\"" NAME "\",\"digest\":\"%s\"}", NAME, true, true, 0, ""},
        {"the_name_is_spelled_otherwise", "{\"reference\":\"" NAME "\",\"digest\":\"%s\"}",
         "docker://" NAME, true, true, 0, ""},
        {"no_record", NULL, NAME, true, true, -ERR_NOTFOUND, "what the tag stands for"},
        {"another_tag", "{\"reference\":\"" NAME "\",\"digest\":\"%s\"}", "r.example/a/b:2", true,
         true, -ERR_NOTFOUND, "what the tag stands for"},
        {"record_is_damaged", "{\"reference\":", NAME, true, true, -ERR_NOTFOUND,
         "what the tag stands for"},
        {"record_is_of_another_name", "{\"reference\":\"x\",\"digest\":\"%s\"}", NAME, true, true,
         -ERR_NOTFOUND, "what the tag stands for"},
        {"no_manifest", "{\"reference\":\"" NAME "\",\"digest\":\"%s\"}", NAME, false, true,
         -ERR_NOTFOUND, "sha256:"},
        {"no_config", "{\"reference\":\"" NAME "\",\"digest\":\"%s\"}", NAME, true, false,
         -ERR_NOTFOUND, "config"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct world w;
        struct image_room room = {0};
        struct err e = ERR_INIT;
        AUTO_IMAGE struct image *image = NULL;
        char config[DIGEST_TEXT_MAX];
        char manifest[DIGEST_TEXT_MAX];
        static const char config_text[] =
            "{\"os\":\"linux\",\"rootfs\":{\"diff_ids\":[\"sha256:" LAYER_HEX "\"]}}";
        world_open(&w);
        store_document(&w, config_text, config);
        AUTO_FREE char *text = mem_printf(
            "{\"schemaVersion\":2,\"config\":{\"digest\":\"%s\",\"size\":%zu},\"layers\":[" LAYER
            "]}",
            config, sizeof(config_text) - 1);
        store_document(&w, text, manifest);
        const char *const gone[2] = {cases[i].has_manifest ? "" : manifest,
                                     cases[i].has_config ? "" : config};
        for (size_t k = 0; k < 2; k++) {
            AUTO_FREE char *path = mem_printf("blobs/sha256-%s", gone[k] + (*gone[k] ? 7 : 0));
            if (*gone[k])
                assert_int_equal(file_remove_tree(store_dir(w.store), path, &e), 0);
        }
        if (cases[i].record) {
            const char *mark = strstr(cases[i].record, "%s");
            AUTO_FREE char *record = mark ? mem_printf("%.*s%s%s", (int)(mark - cases[i].record),
                                                       cases[i].record, manifest, mark + 2)
                                          : mem_strdup(cases[i].record);
            store_tag(&w, record);
        }
        const struct image_options options = {.offline = true, .platform = "linux/amd64"};
        assert_int_equal(image_room_open(&room, w.store, &options, NULL, &e), 0);
        int rc = image_resolve(&image, &room, cases[i].reference, &e);
        if (rc != cases[i].rc || !strstr(e.text, cases[i].says))
            fail_msg("%s: %d %s", cases[i].name, rc, e.text);
        if (rc < 0)
            assert_non_null(strstr(e.hint, "without --offline"));
        if (rc == 0) {
            rc = image_pull(image, &room, NULL, &e);
            if (rc != -ERR_NOTFOUND || !strstr(e.text, LAYER_HEX))
                fail_msg("%s: a layer that is not there: %d %s", cases[i].name, rc, e.text);
        }
        image_room_close(&room);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolving),
        cmocka_unit_test(offline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
