/* SPDX-License-Identifier: MIT */
/* What disks are pushed as, by its words. */
#include "cli/push_arguments.h"

#include <string.h>

int push_format_parse(enum push_format *out, const char *value, struct err *e)
{
    if (strcmp(value, "overlaybd") != 0 && strcmp(value, "oci") != 0)
        return err_set(e, ERR_INPUT, "--push-format is overlaybd or oci, not '%s'", value);
    *out = strcmp(value, "oci") == 0 ? PUSH_OCI : PUSH_OVERLAYBD;
    return 0;
}

int push_compression_parse(enum push_compression *out, const char *value, struct err *e)
{
    static const char *const names[] = {
        [PUSH_ZSTD] = "zstd", [PUSH_LZ4] = "lz4", [PUSH_GZIP] = "gzip"};
    for (size_t i = PUSH_ZSTD; i < ARRAY_LEN(names); i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = (enum push_compression)i;
            return 0;
        }
    }
    return err_set(e, ERR_INPUT, "--compression is zstd, lz4 or gzip, not '%s'", value);
}
