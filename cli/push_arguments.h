/* SPDX-License-Identifier: MIT */
/* The options of every command that pushes disks. */
#ifndef TB2_CLI_PUSH_ARGUMENTS_H
#define TB2_CLI_PUSH_ARGUMENTS_H

#include "bake/bake.h"

/* ERR_INPUT for words that are none. */
int push_format_parse(enum push_format *out, const char *value, struct err *e) MUST_USE;
int push_compression_parse(enum push_compression *out, const char *value, struct err *e) MUST_USE;

/* Rows of an option table, with the command's own functions. */
#define PUSH_OPTION_ROWS(take_format, take_compression)                                            \
    {"push-format", "FORMAT",                                                                      \
     "overlaybd: the disk, to be loaded on demand (the default);\n"                                \
     "oci: a plain image, of a template its image's layers and one of what\n"                      \
     "baking changed",                                                                             \
     take_format},                                                                                 \
    {                                                                                              \
        "compression", "WHICH",                                                                    \
            "of pushed layers: zstd (overlaybd: the default), lz4 (overlaybd, larger\n"            \
            "and quicker to read), gzip (oci: the default)",                                       \
            take_compression                                                                       \
    }

#endif
