/* SPDX-License-Identifier: MIT */
/*
 * A guest's disk as its VMM can use it. Below is always the same: a copy-on-write device over the
 * map, whose upper is what the guest changed. On top of it is
 *
 * - NBD from this process, for QEMU;
 * - a ublk device, for a VMM that wants a block device (decision 0023);
 * - where this host has no ublk, a sparse file with the disk's whole content. What the guest changed in
 *   it is found by comparison, and written to the copy-on-write device (guest_disk_settle), so that
 *   from there on all is as ever.
 *
 * The kernel keeps a ublk device whose server was killed. So each has a note in the cache, named by
 * the device's cookie and locked while its process lives; notes that nobody holds are followed
 * before the first device is made.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "bake/common/slots.h"
#include "bake/guest/internal.h"
#include "bake/vm.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { COMPARE_SIZE = 256 << 10, NOTE_NAME_MAX = 32 };

#define NOTES "guest-disks"

struct guest_disk {
    struct ublk_server *ublk; /* NULL: a file */
    int notes;                /* directory of the notes; -1 */
    int note;                 /* held while the device is there; -1 */
    char note_name[NOTE_NAME_MAX];
    char *path;
};

/* ---- ublk ---- */

static int open_notes(const struct machine_room *r, int *out, struct err *e)
{
    AUTO_FREE char *path = mem_printf("%s/" NOTES, r->cache_dir);
    return path ? file_open_dir(out, AT_FDCWD, path, e) : err_nomem(e, "guest's disk");
}

/* The device that a dead process left, if the kernel still has it. */
static void follow_note(int notes, const char *name)
{
    struct err e = ERR_INIT;
    AUTO_FD int lock = -1;
    uint32_t number = 0;
    char *end = NULL;
    uint64_t cookie = strtoull(name, &end, 16);
    if (*end || file_lock(&lock, notes, name, true, false, &e) < 0)
        return; /* no note of ours, or its process lives */
    int rc = ublk_find(cookie, &number, &e);
    if (rc == 0)
        rc = ublk_remove(number, cookie, &e);
    if (rc < 0 && rc != -ERR_NOTFOUND) {
        log_event(LOG_WARN, "bake", "a dead guest's disk stays behind: %s", e.text);
        return;
    }
    (void)unlinkat(notes, name, 0);
}

void guest_disk_sweep(const struct machine_room *r)
{
    struct err ignored = ERR_INIT;
    AUTO_FD int notes = -1;
    if (open_notes(r, &notes, &ignored) < 0)
        return;
    int fd = fcntl(notes, F_DUPFD_CLOEXEC, 0);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (const struct dirent *entry = d ? readdir(d) : NULL; entry; entry = readdir(d)) {
        if (entry->d_name[0] != '.')
            follow_note(notes, entry->d_name);
    }
    if (d)
        closedir(d);
    else
        file_close(&fd);
}

static int start_ublk(struct guest *g, struct guest_disk *d, struct err *e)
{
    struct ublk_options options = {.recover = -1};
    if (getrandom(&options.cookie, sizeof(options.cookie), 0) != sizeof(options.cookie))
        return err_sys(e, "getting a random number for the guest's disk");
    snprintf(d->note_name, sizeof(d->note_name), "%016llx", (unsigned long long)options.cookie);
    int rc = open_notes(g->room, &d->notes, e);
    if (rc == 0)
        rc = file_lock(&d->note, d->notes, d->note_name, true, true, e);
    if (rc == 0)
        rc = ublk_start(&d->ublk, g->disk, &options, e);
    if (rc < 0)
        return rc;
    char path[32];
    d->path = mem_strdup(ublk_path(d->ublk, path));
    return d->path ? 0 : err_nomem(e, "guest's disk");
}

/* ---- A file ---- */

static int start_file(struct guest *g, struct guest_disk *d, const struct block_map *disk,
                      struct err *e)
{
    AUTO_FD int fd = -1;
    d->path = mem_printf("%s/disk.img", g->dir);
    if (!d->path)
        return err_nomem(e, "guest's disk");
    int rc = file_open(&fd, AT_FDCWD, d->path, O_RDWR | O_CREAT | O_EXCL, 0600, e);
    if (rc == 0)
        rc = store_export_map(g->room->store, disk, fd, machine_cores(), g->room->cancel, e);
    return rc < 0 ? err_in(e, "guest's disk") : 0;
}

struct comparison {
    struct bdev *disk;
    int fd;
    uint8_t *file; /* COMPARE_SIZE bytes each */
    uint8_t *device;
    const struct cancel *cancel;
};

/* What the file has in the range, and the device has not. `len` is at most COMPARE_SIZE. */
static int settle_range(struct comparison *c, uint64_t at, size_t len, struct err *e)
{
    int rc = file_pread_full(c->fd, c->file, len, at, e);
    if (rc < 0)
        return rc;
    rc = bdev_read(c->disk, c->device, len, at);
    for (size_t i = 0; rc == 0 && i < len; i += BLOCK_SIZE) {
        if (memcmp(c->file + i, c->device + i, BLOCK_SIZE) != 0)
            rc = bdev_write(c->disk, c->file + i, BLOCK_SIZE, at + i);
    }
    return rc < 0 ? err_sysno(e, -rc, "comparing the guest's disk") : 0;
}

static int settle_file(struct comparison *c, struct err *e)
{
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < c->disk->size;) {
        uint64_t left = c->disk->size - at;
        uint64_t run = left < COMPARE_SIZE ? left : COMPARE_SIZE;
        off_t data = lseek(c->fd, (off_t)at, SEEK_DATA);
        uint64_t hole = data < 0 ? left : (uint64_t)data - at;
        if (hole > 0 && bdev_content(c->disk, hole < left ? hole : left, at, &run) == BDEV_ZEROS) {
            at += run; /* nothing on either side */
            continue;
        }
        run = left < COMPARE_SIZE ? left : COMPARE_SIZE;
        rc = settle_range(c, at, (size_t)run, e);
        at += run;
        if (rc == 0)
            rc = cancel_check(c->cancel, e);
    }
    return rc;
}

int guest_disk_settle(struct guest *g, struct err *e)
{
    if (!g->front || g->front->ublk)
        return 0;
    AUTO_FD int fd = -1;
    AUTO_FREE uint8_t *file = mem_zalloc(COMPARE_SIZE);
    AUTO_FREE uint8_t *device = mem_zalloc(COMPARE_SIZE);
    if (!file || !device)
        return err_nomem(e, "guest's disk");
    struct comparison c = {
        .disk = g->disk, .file = file, .device = device, .cancel = g->room->cancel};
    int rc = file_open(&fd, AT_FDCWD, g->front->path, O_RDONLY, 0, e);
    c.fd = fd;
    return rc == 0 ? settle_file(&c, e) : rc;
}

/* ---- All of them ---- */

/* Whether guests get ublk devices; why not is said once. */
static bool use_ublk(const struct machine_room *r)
{
    static atomic_flag told = ATOMIC_FLAG_INIT;
    struct err e = ERR_INIT;
    if (ublk_probe(&e) == 0)
        return true;
    if (!atomic_flag_test_and_set(&told))
        log_event(LOG_INFO, "bake", "disks of guests are whole files (%s needs a block device): %s",
                  vm_driver_name(r->driver), e.text);
    return false;
}

static int start_front(struct guest *g, const struct block_map *disk, struct err *e)
{
    struct guest_disk *d = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "guest's disk");
    d->notes = d->note = -1;
    g->front = d;
    return use_ublk(g->room) ? start_ublk(g, d, e) : start_file(g, d, disk, e);
}

int guest_disk_start(struct guest *g, const struct block_map *disk, struct err *e)
{
    struct bdev *leaf = NULL;
    int rc = bdev_open_map(&leaf, disk, g->room->cache, e);
    g->leaf = leaf;
    if (rc == 0)
        rc = bdev_open_cow(&g->disk, leaf, store_tmp_dir(g->room->store), 0, e);
    if (rc < 0)
        return rc;
    if (!vm_driver_can(g->room->driver)->nbd_disk)
        return start_front(g, disk, e);
    AUTO_FREE char *socket = mem_printf("%s/nbd.sock", g->dir);
    return socket ? nbd_server_start(&g->nbd, g->disk, socket, e) : err_nomem(e, "guest");
}

const char *guest_disk_path(const struct guest *g)
{
    return g->front ? g->front->path : NULL;
}

void guest_disk_stop(struct guest *g)
{
    struct guest_disk *d = g->front;
    struct err e = ERR_INIT;
    nbd_server_stop(g->nbd);
    if (d && d->ublk && ublk_stop(d->ublk, &e) < 0)
        log_event(LOG_WARN, "bake", "guest's disk: %s", e.text);
    else if (d && d->note >= 0)
        (void)unlinkat(d->notes, d->note_name, 0);
    bdev_close(g->disk);
    if (!d)
        return;
    file_close(&d->note);
    file_close(&d->notes);
    free(d->path);
    free(d);
}
