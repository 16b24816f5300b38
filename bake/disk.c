/* SPDX-License-Identifier: MIT */
/* Disks without templates: an image's, assembled but not booted; any disk as a sparse raw file. */
#include "bake/pipeline.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"

static int assemble_image(struct digest *out, struct image_room *r, const char *reference,
                          uint64_t free_size, struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    AUTO_BLOCK_MAP struct block_map *disk = NULL;
    int rc = image_resolve(&i, r, reference, e);
    if (rc == 0)
        rc = image_drop_damaged(i, r, e);
    if (rc == 0)
        rc = image_pull(i, r, NULL, e);
    if (rc == 0)
        rc = image_ingest(i, r, e);
    return rc < 0 ? rc : image_assemble(i, r, free_size, &disk, out, e);
}

int disk_assemble(struct digest *out, struct store *s, const char *reference,
                  const struct disk_options *o, struct err *e)
{
    AUTO_FD int lock = -1;
    struct image_room room = {0};
    int rc = run_lock(&lock, s, e);
    if (rc == 0)
        rc = image_room_open(&room, s, &o->images, o->cancel, e);
    if (rc == 0)
        rc = assemble_image(out, &room, reference, o->free_size, e);
    image_room_close(&room);
    return rc;
}

int disk_export(struct store *s, const struct digest *map, const char *path, const struct cancel *c,
                struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_FD int fd = -1;
    int rc = store_get_map(s, map, &m, e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, path, O_RDWR | O_CREAT | O_EXCL, 0666, e);
    if (rc < 0)
        return rc;
    rc = store_export_map(s, m, fd, machine_cores(), c, e);
    if (rc == 0 && fsync(fd) < 0)
        rc = err_sys(e, "syncing %s", path);
    if (rc < 0)
        unlinkat(AT_FDCWD, path, 0);
    return rc;
}
