/* SPDX-License-Identifier: MIT */
/* Documents: what kind they are, which platform is taken, what is refused and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "oci/oci.h"

#define HEX_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define HEX_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define HEX_C "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
#define DESCRIPTOR(type, hex) "\"mediaType\":\"" type "\",\"digest\":\"sha256:" hex "\",\"size\":7"
#define CONFIG_TYPE "application/vnd.oci.image.config.v1+json"
#define LAYER_TYPE "application/vnd.oci.image.layer.v1.tar+gzip"
#define MANIFEST(config, layer)                                                                    \
    "{\"schemaVersion\":2,\"config\":{" DESCRIPTOR(config, HEX_A) "},\"layers\":[{" DESCRIPTOR(    \
        layer, HEX_B) "}]}"

static struct json *parsed(const char *text)
{
    struct json *doc = NULL;
    struct err e = ERR_INIT;

    assert_int_equal(json_parse(&doc, text, strlen(text), "document", &e), 0);
    return doc;
}

static void test_classify(void **state UNUSED)
{
    static const struct {
        const char *text;
        const char *media_type;
        int rc;
        enum oci_document_kind kind;
        const char *message; /* part of it */
    } cases[] = {
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE), "application/json", 0, OCI_MANIFEST, NULL},
        {MANIFEST("text/html", LAYER_TYPE), "text/plain", 0, OCI_MANIFEST, NULL},
        {"{\"manifests\":[]}", "", 0, OCI_INDEX, NULL},
        {"{\"schemaVersion\":1,\"fsLayers\":[],\"name\":\"x\"}", "text/plain", -ERR_UNSUPPORTED, 0,
         "schema 1"},
        {"{\"schemaVersion\":2,\"manifests\":[],\"layers\":[],\"config\":{}}", "", -ERR_CORRUPT, 0,
         "both"},
        {MANIFEST("application/vnd.cncf.helm.config.v1+json",
                  "application/vnd.cncf.helm.chart.content.v1.tar+gzip"),
         "", -ERR_UNSUPPORTED, 0, "Helm"},
        {MANIFEST("application/vnd.oci.empty.v1+json", "text/plain"), "", -ERR_UNSUPPORTED, 0,
         "artifact"},
        {"{\"artifactType\":\"application/x\",\"config\":{},\"layers\":[]}", "", -ERR_UNSUPPORTED,
         0, "artifact"},
        {"{\"mediaType\":\"application/vnd.oci.artifact.manifest.v1+json\",\"blobs\":[]}", "",
         -ERR_UNSUPPORTED, 0, "artifact"},
        {"{}", "text/html", -ERR_CORRUPT, 0, "text/html"},
        {"[]", "", -ERR_CORRUPT, 0, "object"},
        {"<html>", "text/html", -ERR_CORRUPT, 0, NULL},
        {"", "", -ERR_CORRUPT, 0, NULL},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        enum oci_document_kind kind = OCI_INDEX;
        struct err e = ERR_INIT;
        AUTO_JSON struct json *doc = NULL;
        int rc = oci_document_parse(&doc, &kind, cases[i].media_type, cases[i].text,
                                    strlen(cases[i].text), &e);

        if (rc != cases[i].rc)
            fail_msg("%s: %d, %s", cases[i].text, rc, e.text);
        if (rc == 0)
            assert_int_equal(kind, cases[i].kind);
        else if (cases[i].message && !strstr(e.text, cases[i].message))
            fail_msg("%s: %s", cases[i].text, e.text);
    }
}

#define ENTRY(hex, more) "{" DESCRIPTOR("application/vnd.oci.image.manifest.v1+json", hex) more "}"
#define PLATFORM(os, arch) ",\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\"}"
#define VARIANT(arch, variant)                                                                     \
    ",\"platform\":{\"os\":\"linux\",\"architecture\":\"" arch "\",\"variant\":\"" variant "\"}"
#define ATTESTATION                                                                                \
    PLATFORM("unknown", "unknown")                                                                 \
    ",\"annotations\":{\"vnd.docker.reference.type\":\"attestation-manifest\"}"
#define INDEX(entries) "{\"schemaVersion\":2,\"manifests\":[" entries "]}"

static void test_select(void **state UNUSED)
{
    static const struct oci_platform amd64 = {"linux", "amd64", NULL};
    static const struct oci_platform v3 = {"linux", "amd64", "v3"};
    static const struct oci_platform arm64 = {"linux", "arm64", "v8"};
    static const struct oci_platform armv7 = {"linux", "arm", "v7"};
    static const struct {
        const char *text;
        const struct oci_platform *platform;
        char hex; /* of the digest that is picked; 0: none */
        bool needs_check;
        const char *message;
    } cases[] = {
        {INDEX(ENTRY(HEX_A, ATTESTATION) "," ENTRY(HEX_B, PLATFORM("linux", "arm64")) "," ENTRY(
             HEX_C, PLATFORM("linux", "amd64"))),
         &amd64, 'c', false, NULL},
        {INDEX(ENTRY(HEX_B, PLATFORM("linux", "arm64"))), &arm64, 'b', false, NULL},
        {INDEX(ENTRY(HEX_B, PLATFORM("linux", "arm64"))), &amd64, 0, false, "linux/arm64"},
        {INDEX(ENTRY(HEX_B, PLATFORM("windows", "amd64"))), &amd64, 0, false, "windows/amd64"},
        {INDEX(ENTRY(HEX_B, "")), &amd64, 'b', true, NULL},
        {INDEX(ENTRY(HEX_A, "") "," ENTRY(HEX_B, "")), &amd64, 0, false, "nothing for linux/amd64"},
        {INDEX(ENTRY(HEX_A, "") "," ENTRY(HEX_B, PLATFORM("linux", "amd64"))), &amd64, 'b', false,
         NULL},
        {INDEX(ENTRY(HEX_A, ATTESTATION)), &amd64, 0, false, "no platform at all"},
        {INDEX(ENTRY(HEX_A, VARIANT("amd64", "v2"))), &amd64, 0, false, "linux/amd64/v2"},
        {INDEX(ENTRY(HEX_A, VARIANT("amd64", "v2"))), &v3, 'a', false, NULL},
        {INDEX(ENTRY(HEX_A, PLATFORM("linux", "amd64")) "," ENTRY(HEX_B, VARIANT("amd64", "v2"))),
         &v3, 'b', false, NULL},
        {INDEX(ENTRY(HEX_A, VARIANT("arm", "v6")) "," ENTRY(HEX_B, VARIANT("arm", "v7"))), &armv7,
         'b', false, NULL},
        {INDEX(ENTRY(HEX_A, VARIANT("arm", "v8"))), &armv7, 0, false, "linux/arm/v8"},
        {INDEX(ENTRY(HEX_A, VARIANT("amd64", "weird"))), &amd64, 0, false, "weird"},
        {INDEX(""), &amd64, 0, false, "no platform at all"},
        {INDEX(ENTRY(HEX_A, PLATFORM("linux", "aarch64")) "," ENTRY(HEX_B,
                                                                    PLATFORM("linux", "x86_64"))),
         &amd64, 'b', false, NULL},
        {INDEX(ENTRY(HEX_A, VARIANT("arm64", "8"))), &arm64, 'a', false, NULL},
        {INDEX(ENTRY(HEX_A, PLATFORM("", ""))), &amd64, 'a', true, NULL},
        {INDEX(ENTRY(HEX_A, "") "," ENTRY(HEX_B, "")), &amd64, 0, false,
         "2 entries that name no platform"},
        {INDEX(ENTRY(HEX_A, PLATFORM("linux", "386")) "," ENTRY(HEX_B, "") "," ENTRY(HEX_C, "")),
         &amd64, 0, false, "linux/386, 2 entries that name no platform"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_descriptor d;
        bool check = !cases[i].needs_check;
        struct err e = ERR_INIT;
        char hex[DIGEST_TEXT_MAX];
        AUTO_JSON struct json *index = parsed(cases[i].text);
        int rc = oci_index_select(&d, &check, index, cases[i].platform, &e);

        if (!cases[i].hex) {
            assert_int_equal(rc, -ERR_NOTFOUND);
            if (!strstr(e.text, cases[i].message))
                fail_msg("case %zu: %s", i, e.text);
            continue;
        }
        if (rc < 0)
            fail_msg("case %zu: %s", i, e.text);
        assert_int_equal(digest_hex(&d.digest, hex)[0], cases[i].hex);
        assert_int_equal(check, cases[i].needs_check);
        oci_descriptor_fini(&d);
    }
}

static void test_malformed(void **state UNUSED)
{
    static const char *const indexes[] = {
        "[]",
        "{\"manifests\":{}}",
        "{\"manifests\":[1]}",
        "{\"manifests\":[null]}",
        "{\"manifests\":[{\"platform\":7}]}",
        INDEX("{\"platform\":{\"os\":\"linux\",\"architecture\":\"amd64\"}}"),
    };
    static const char *const manifests[] = {
        "{\"config\":{},\"layers\":[]}",
        "{\"config\":7,\"layers\":[]}",
        "{\"config\":{" DESCRIPTOR(CONFIG_TYPE, HEX_A) "},\"layers\":[{}]}",
        "{\"config\":{\"digest\":\"sha256:" HEX_A "\",\"size\":-1},\"layers\":[]}",
        "{\"config\":{\"digest\":\"sha256:" HEX_A "\",\"size\":1.5},\"layers\":[]}",
        "{\"config\":{\"digest\":\"sha256:xyz\",\"size\":1},\"layers\":[]}",
        "{\"manifests\":[]}",
    };
    static const char *const configs[] = {
        "[]",
        "{\"rootfs\":7}",
        "{\"rootfs\":{\"diff_ids\":[7]}}",
        "{\"rootfs\":{\"diff_ids\":[\"sha256:zz\"]}}",
        "{\"config\":{\"Env\":\"A=b\"}}",
        "{\"config\":{\"Env\":[7]}}",
        "{\"os\":7}",
    };
    static const struct oci_platform amd64 = {"linux", "amd64", NULL};
    struct err e = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(indexes); i++) {
        struct oci_descriptor d;
        bool check;
        AUTO_JSON struct json *index = parsed(indexes[i]);
        if (oci_index_select(&d, &check, index, &amd64, &e) != -ERR_CORRUPT)
            fail_msg("%s", indexes[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(manifests); i++) {
        struct oci_manifest m;
        if (oci_manifest_parse(&m, manifests[i], strlen(manifests[i]), &e) != -ERR_CORRUPT)
            fail_msg("%s", manifests[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct oci_config c;
        if (oci_config_parse(&c, configs[i], strlen(configs[i]), &e) != -ERR_CORRUPT)
            fail_msg("%s", configs[i]);
    }
}

/* An algorithm we do not know is refused by name, sha512 is taken. */
static void test_algorithms(void **state UNUSED)
{
    static const char md5[] = "{\"config\":{" DESCRIPTOR(
        CONFIG_TYPE, HEX_A) "},\"layers\":[{"
                            "\"digest\":\"md5:d41d8cd98f00b204e9800998ecf8427e\",\"size\":1}]}";
    static const char sha512[] =
        "{\"config\":{" DESCRIPTOR(CONFIG_TYPE, HEX_A) "},\"layers\":[{"
                                                       "\"digest\":\"sha512:" HEX_A HEX_B
                                                       "\",\"size\":1}]}";
    struct oci_manifest m;
    struct err e = ERR_INIT;

    assert_int_equal(oci_manifest_parse(&m, md5, strlen(md5), &e), -ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "md5"));
    assert_int_equal(oci_manifest_parse(&m, sha512, strlen(sha512), &e), 0);
    assert_int_equal(m.layers[0].digest.algorithm, DIGEST_SHA512);
    oci_manifest_fini(&m);
}

static void test_config(void **state UNUSED)
{
    static const char text[] =
        "{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{\"Env\":[\"A=b\",\"C=\"],"
        "\"User\":\"1000\",\"WorkingDir\":\"/app\"},"
        "\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:" HEX_A "\"]}}";
    struct oci_config c;
    struct err e = ERR_INIT;

    assert_int_equal(oci_config_parse(&c, text, strlen(text), &e), 0);
    assert_string_equal(c.env[0], "A=b");
    assert_string_equal(c.env[1], "C=");
    assert_null(c.env[2]);
    assert_string_equal(c.user, "1000");
    assert_string_equal(c.working_dir, "/app");
    assert_int_equal(c.diff_id_count, 1);
    oci_config_fini(&c);

    /* null and absent are alike, as Go programs write them */
    static const char bare[] = "{\"os\":\"linux\",\"config\":null,\"rootfs\":{\"diff_ids\":null}}";
    assert_int_equal(oci_config_parse(&c, bare, strlen(bare), &e), 0);
    assert_string_equal(c.user, "");
    assert_null(c.env[0]);
    oci_config_fini(&c);
}

static void test_image_check(void **state UNUSED)
{
#define IDS(list) "{\"os\":\"linux\",\"rootfs\":{\"diff_ids\":[" list "]}}"
#define ONE_ID "\"sha256:" HEX_A "\""
#define FOREIGN "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
    static const struct {
        const char *manifest;
        const char *config;
        int rc;
        const char *message;
    } cases[] = {
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE), IDS(ONE_ID), 0, NULL},
        {MANIFEST(CONFIG_TYPE, "application/octet-stream"), IDS(ONE_ID), 0, NULL},
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE), IDS(""), -ERR_CORRUPT, "1 layers, the config 0"},
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE), "{}", -ERR_CORRUPT, "not a runnable image"},
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE), "{\"rootfs\":{\"diff_ids\":[" ONE_ID "]}}",
         -ERR_UNSUPPORTED, "names no operating system"},
        {MANIFEST(CONFIG_TYPE, FOREIGN), IDS(ONE_ID), -ERR_UNSUPPORTED, "foreign"},
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE "+encrypted"), IDS(ONE_ID), -ERR_UNSUPPORTED,
         "encrypted"},
        {MANIFEST(CONFIG_TYPE, "application/vnd.in-toto+json"), IDS(ONE_ID), -ERR_UNSUPPORTED,
         "in-toto"},
        {MANIFEST(CONFIG_TYPE, LAYER_TYPE),
         "{\"os\":\"windows\",\"rootfs\":{\"diff_ids\":[" ONE_ID "]}}", -ERR_UNSUPPORTED,
         "windows"},
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct oci_manifest m;
        struct oci_config c;
        struct err e = ERR_INIT;

        assert_int_equal(oci_manifest_parse(&m, cases[i].manifest, strlen(cases[i].manifest), &e),
                         0);
        assert_int_equal(oci_config_parse(&c, cases[i].config, strlen(cases[i].config), &e), 0);
        int rc = oci_image_check(&m, &c, &e);
        if (rc != cases[i].rc || (cases[i].message && !strstr(e.text, cases[i].message)))
            fail_msg("case %zu: %d, %s", i, rc, e.text);
        oci_manifest_fini(&m);
        oci_config_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classify),  cmocka_unit_test(test_select),
        cmocka_unit_test(test_malformed), cmocka_unit_test(test_algorithms),
        cmocka_unit_test(test_config),    cmocka_unit_test(test_image_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
