/* SPDX-License-Identifier: MIT */
/* Which manifests are of native images. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "oci/oci.h"

#define TAR "application/vnd.oci.image.layer.v1.tar"
#define A "containerd.io/snapshot/overlaybd/"
#define LAYER(type, annotations)                                                                   \
    "{\"mediaType\":\"" type "\",\"digest\":\"sha256:aa\"" annotations "}"
#define OWN ",\"annotations\":{\"" A "blob-digest\":\"sha256:aa\"}"

static void kinds(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *layers;
        int result;
        bool native;
    } rows[] = {
        {"plain", LAYER(TAR "+gzip", ""), 0, false},
        {"by annotation", LAYER(TAR, OWN), 0, true},
        {"by type", LAYER("application/vnd.x.overlaybd.v1", ""), 0, true},
        {"zfile", LAYER("application/zfile", "") "," LAYER(TAR, OWN), 0, true},
        {"other annotations", LAYER(TAR, ",\"annotations\":{\"a\":\"b\"}"), 0, false},
        {"mixed", LAYER(TAR, OWN) "," LAYER(TAR, ""), -ERR_UNSUPPORTED, false},
        {"wrapped", LAYER(TAR, ",\"annotations\":{\"" A "blob-digest\":\"sha256:bb\"}"),
         -ERR_UNSUPPORTED, false},
        {"turbo", LAYER(TAR, ",\"annotations\":{\"" A "turbo-oci/x\":\"y\"}"), -ERR_UNSUPPORTED,
         false},
        {"turbo by version",
         LAYER(TAR, ",\"annotations\":{\"" A "version\":\"0.1.0-turbo.ociv1\"}"), -ERR_UNSUPPORTED,
         false},
        {"a trace", LAYER(TAR, ",\"annotations\":{\"" A "acceleration-layer\":\"yes\"}"),
         -ERR_UNSUPPORTED, false},
        {"no layers", "", 0, false},
        {"a layer that is none", "7", -ERR_CORRUPT, false},
        {"no digest", "{\"mediaType\":\"x\"}", -ERR_CORRUPT, false},
        {"annotations that are none", LAYER(TAR, ",\"annotations\":[]"), -ERR_CORRUPT, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        bool native = true;
        AUTO_FREE char *text = mem_printf("{\"layers\":[%s]}", rows[i].layers);
        assert_non_null(text);
        AUTO_JSON struct json *manifest = NULL;
        assert_int_equal(json_parse(&manifest, text, strlen(text), "manifest", &e), 0);
        int rc = oci_manifest_is_native(&native, manifest, &e);
        if (rc != rows[i].result || native != rows[i].native)
            fail_msg("%s: %d, native %d: %s", rows[i].name, rc, native, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
