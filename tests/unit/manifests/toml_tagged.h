/* SPDX-License-Identifier: MIT */
/* A TOML document as JSON: each scalar is {"type": …, "value": text}, the bytes of
 * strings and keys as json_bytes writes them. */
#ifndef TB2_TEST_TOML_TAGGED_H
#define TB2_TEST_TOML_TAGGED_H

#include "manifests/manifest.h"

struct json *toml_tagged(const struct toml *t);

#endif
