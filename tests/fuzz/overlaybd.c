/* SPDX-License-Identifier: MIT */
/* OverlayBD layers: whatever the bytes, opening and reading stay within them. */
#include <string.h>

#include "blockdev/overlaybd.h"
#include "fuzz.h"

enum { READ_MAX = 256 << 10 };

static void read_blob(const struct source *blob)
{
    static uint8_t disk[READ_MAX];
    struct err e = ERR_INIT;
    AUTO_OVERLAYBD_LAYER struct overlaybd_layer *layer = NULL;
    AUTO_BDEV struct bdev *device = NULL;
    int rc = overlaybd_open(&layer, blob, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    struct overlaybd_layer *twice[] = {layer, layer};
    rc = bdev_open_overlaybd(&device, twice, 2, &e);
    PROMISE_ERROR(rc, &e);
    if (rc < 0)
        return;
    PROMISE(device->size > 0 && device->size % 512 == 0);
    uint64_t len = device->size < READ_MAX ? device->size : READ_MAX;
    uint64_t run;
    (void)bdev_content(device, len, 0, &run);
    PROMISE(run > 0 && run <= len);
    rc = bdev_read(device, disk, len, 0);
    PROMISE(rc <= 0);
    rc = bdev_read(device, disk, len, device->size - len);
    PROMISE(rc <= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct source blob;
    PROMISE(source_from_memory(&blob, data, size, &e) == 0);
    read_blob(&blob);
    source_close(&blob);
    return 0;
}
