/* SPDX-License-Identifier: MIT */
/* An archive of images: its headers, its documents, and the blobs of the image that it names. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "fuzz.h"
#include "oci/oci.h"

/* A blob that opens has the promised size, and its bytes can be had. */
static void read_blob(struct oci_layout *layout, const struct oci_descriptor *d, struct buf *out)
{
    struct err e = ERR_INIT;
    struct source from = {0};
    int rc = oci_layout_blob(layout, d, &from, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    PROMISE(from.size == d->size);
    AUTO_FREE char *bytes = mem_zalloc((size_t)from.size);
    PROMISE(bytes);
    rc = source_read_full(&from, 0, bytes, (size_t)from.size, &e);
    PROMISE_ERROR(rc, &e);
    PROMISE(rc == 0);
    if (from.size <= out->ceiling)
        PROMISE(buf_add(out, bytes, (size_t)from.size, &e) == 0);
    source_close(&from);
}

static void read_image(struct oci_layout *layout, const struct oci_descriptor *d)
{
    struct err e = ERR_INIT;
    struct oci_manifest manifest = {0};
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_MANIFEST);
    read_blob(layout, d, &text);
    if (text.len == 0 || oci_manifest_parse(&manifest, text.data, text.len, &e) < 0)
        return;
    for (size_t i = 0; i <= manifest.layer_count && i < 64; i++) {
        AUTO_BUF struct buf blob;
        buf_init(&blob, LIMIT_CONFIG);
        read_blob(layout, i == 0 ? &manifest.config : &manifest.layers[i - 1], &blob);
    }
    oci_manifest_fini(&manifest);
}

static void look_at(const struct oci_archive *a, enum oci_transport transport)
{
    struct err e = ERR_INIT;
    AUTO_OCI_LAYOUT struct oci_layout *layout = NULL;
    struct oci_descriptor d = {0};
    const struct oci_ref ref = {.transport = transport, .has_index = true};
    int rc = oci_layout_open_archive(&layout, a, transport, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    rc = oci_layout_resolve(layout, &ref, &d, &e);
    PROMISE_ERROR(rc, &e);
    if (rc == 0)
        read_image(layout, &d);
    oci_descriptor_fini(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_OCI_ARCHIVE struct oci_archive *a = NULL;
    char path[64];
    AUTO_FD int fd = memfd_create("archive", MFD_CLOEXEC);
    AUTO_FD int tmp = -1;
    PROMISE(fd >= 0 && file_write_full(fd, data, size, &e) == 0);
    PROMISE(file_open(&tmp, AT_FDCWD, "/tmp", O_RDONLY | O_DIRECTORY, 0, &e) == 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = oci_archive_open(&a, path, tmp, NULL, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return 0;
    look_at(a, OCI_DOCKER_ARCHIVE);
    look_at(a, OCI_LAYOUT_ARCHIVE);
    return 0;
}
