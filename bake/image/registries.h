/* SPDX-License-Identifier: MIT */
/* What the readers of registries' settings share; see registries_load in bake.h. */
#ifndef TB2_BAKE_IMAGE_REGISTRIES_H
#define TB2_BAKE_IMAGE_REGISTRIES_H

#include "bake/image.h"
#include "manifests/manifest.h"
#include "registry/registry.h"

/* Each adds to `n`, also when it fails. */
int registries_read_conf(struct registry_network *n, const char *path, const struct toml *document,
                         struct err *e) MUST_USE;
int registries_read_hosts(struct registry_network *n, const char *path, const char *name,
                          const struct toml *document, struct err *e) MUST_USE;
int registries_read_directory(struct registry_network *n, const char *path, struct err *e) MUST_USE;

#endif
