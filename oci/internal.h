/* SPDX-License-Identifier: MIT */
/* What the files of this folder share. */
#ifndef TB2_OCI_INTERNAL_H
#define TB2_OCI_INTERNAL_H

#include "base/err.h"
#include "base/json.h"
#include "oci/oci.h"

/* ---- Documents (doc.c) -------------------------------------------------------------------- */

/* Media types, image-spec media-types.md; Docker's are the schema 2 equivalents. */
#define OCI_TYPE_INDEX "application/vnd.oci.image.index.v1+json"
#define OCI_TYPE_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define OCI_TYPE_CONFIG "application/vnd.oci.image.config.v1+json"
#define DOCKER_TYPE_LIST "application/vnd.docker.distribution.manifest.list.v2+json"
#define DOCKER_TYPE_MANIFEST "application/vnd.docker.distribution.manifest.v2+json"
#define DOCKER_TYPE_CONFIG "application/vnd.docker.container.image.v1+json"

/* Entries that one index, or layers that one manifest, may list. */
enum { OCI_MAX_DESCRIPTORS = 4096 };

/* Reads mediaType, digest and size of a descriptor (descriptor.md, Properties). */
int oci_descriptor_read(struct oci_descriptor *out, const struct json *j, struct err *e) MUST_USE;

#endif
