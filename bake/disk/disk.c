/* SPDX-License-Identifier: MIT */
/* Disks without templates: an image's, assembled but not booted; any disk as a file. */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "bake/common/run_lock.h"
#include "bake/common/slots.h"
#include "bake/disk.h"
#include "bake/image/image.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/proc.h"
#include "blockdev/blockdev.h"

enum { CONVERT_LIMIT_MS = 60 * 60 * 1000 };

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

/* Room for what the map covers: the rest of the file is holes. */
static int need_room(int fd, const struct block_map *m, struct err *e)
{
    uint64_t size = 0;
    for (size_t i = 0; i < block_map_count(m); i++)
        size += block_map_extent(m, i)->size;
    return file_need_room(fd, size, e);
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
    rc = need_room(fd, m, e);
    if (rc == 0)
        rc = store_export_map(s, m, fd, machine_cores(), c, e);
    if (rc == 0 && fsync(fd) < 0)
        rc = err_sys(e, "syncing %s", path);
    if (rc < 0)
        unlinkat(AT_FDCWD, path, 0);
    return rc < 0 ? err_in(e, "%s", path) : 0;
}

static int convert(const char *raw, const char *path, const struct cancel *c, struct err *e)
{
    const char *const argv[] = {"qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, path, NULL};
    AUTO_BUF struct buf said;
    buf_init(&said, LIMIT_OUTPUT_TAIL);
    int status = 0;
    struct proc_io io = {.err_out = &said, .timeout_ms = CONVERT_LIMIT_MS, .cancel = c};
    int rc = proc_run(argv, &io, &status, e);
    if (rc == -ERR_NOTFOUND)
        return err_hint(e, "install qemu-utils, or write the disk with --raw");
    if (rc == 0 && status != 0)
        rc = err_set(e, ERR_SYS, "qemu-img: %s", buf_text(&said));
    return rc;
}

int disk_export_qcow2(struct store *s, const struct digest *map, const char *path,
                      const struct cancel *c, struct err *e)
{
    if (file_exists(AT_FDCWD, path))
        return err_sysno(e, EEXIST, "%s", path);
    AUTO_FREE char *raw = mem_printf("%s.tb2-raw-%ld", path, (long)getpid());
    AUTO_FREE char *from = raw ? mem_printf("%s%s", raw[0] == '/' ? "" : "./", raw) : NULL;
    AUTO_FREE char *to = mem_printf("%s%s", path[0] == '/' ? "" : "./", path);
    if (!raw || !from || !to)
        return err_nomem(e, path);
    int rc = disk_export(s, map, raw, c, e);
    if (rc < 0)
        return rc;
    rc = convert(from, to, c, e);
    unlinkat(AT_FDCWD, raw, 0);
    if (rc < 0)
        unlinkat(AT_FDCWD, path, 0);
    return rc;
}
