/* SPDX-License-Identifier: MIT */
/*
 * OverlayBD layers as a whole: LSMT in ZFile in tar, written and opened, and a stack of them as a
 * disk. The layers' indexes are merged once, when the disk is opened; a read is then one search and
 * one read of one layer, however many there are.
 */
#include "blockdev/overlaybd.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/overlaybd_internal.h"

/* Pieces of a merged index; as many as take half a gigabyte. */
enum { PIECES_MAX = 16 << 20, HASH_READ = 1 << 20 };

/* ---- Writing ---- */

static int check_options(const struct overlaybd_write_options *o, struct err *e)
{
    uint64_t size = block_map_virtual_size(o->data);
    if (size > OVERLAYBD_DISK_SIZE_MAX)
        return err_set(e, ERR_UNSUPPORTED,
                       "OverlayBD: a disk of %" PRIu64 " bytes; readers fail from 2 TiB on", size);
    if (o->block_size < OVERLAYBD_BLOCK_SIZE_MIN || o->block_size > OVERLAYBD_BLOCK_SIZE_MAX ||
        (o->block_size & (o->block_size - 1)) != 0)
        return err_set(e, ERR_INPUT, "OverlayBD: blocks of %u bytes; readers take 4096 to 32768",
                       o->block_size);
    if (o->zeros && block_map_virtual_size(o->zeros) != size)
        return err_set(e, ERR_CORRUPT, "OverlayBD: the maps are of disks of different sizes");
    return 0;
}

/* The blob's headers are written last, so it is hashed when it is whole. */
static int hash_file(struct digest *out, int fd, uint64_t size, struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(HASH_READ);
    if (!data)
        return err_nomem(e, "OverlayBD layer");
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    for (uint64_t at = 0; rc == 0 && at < size; at += HASH_READ) {
        size_t len = size - at < HASH_READ ? (size_t)(size - at) : HASH_READ;
        rc = file_pread_full(fd, data, len, at, e);
        hasher_add(h, data, len);
    }
    if (rc == 0)
        hasher_finish(h, out);
    return rc;
}

int overlaybd_write(int fd, struct store *s, const struct overlaybd_write_options *o,
                    struct overlaybd_blob *out, struct err *e)
{
    struct source plain = {0};
    int rc = check_options(o, e);
    if (rc == 0)
        rc = lsmt_compose(&plain, s, o, e);
    if (rc < 0)
        return rc;
    struct zfile_options options = {.compression = o->compression,
                                    .block_size = o->block_size,
                                    .workers = o->workers,
                                    .cancel = o->cancel};
    uint64_t size = 0;
    rc = zfile_write(fd, OVERLAYBD_TAR_HEAD, &plain, &options, &size, e);
    source_close(&plain);
    if (rc == 0)
        rc = overlaybd_tar_write(fd, size, &out->size, e);
    return rc == 0 ? hash_file(&out->digest, fd, out->size, e) : rc;
}

/* ---- Opening ---- */

struct overlaybd_layer {
    const struct source *blob; /* borrowed */
    uint64_t payload;          /* where in the blob the tar wrapper's member starts */
    struct source unwrapped;   /* the payload; its self is the layer */
    struct source plain;       /* LSMT: of the ZFile, or `unwrapped` again */
    bool compressed;           /* `plain` is to be closed */
    struct lsmt_layer lsmt;
};

static int unwrapped_read(void *self, uint64_t off, void *data, size_t len, size_t *got,
                          struct err *e)
{
    const struct overlaybd_layer *l = self;
    *got = 0;
    if (off >= l->unwrapped.size)
        return 0;
    if (len > l->unwrapped.size - off)
        len = (size_t)(l->unwrapped.size - off);
    return l->blob->read(l->blob->self, l->payload + off, data, len, got, e);
}

void overlaybd_close(struct overlaybd_layer *l)
{
    if (!l)
        return;
    lsmt_layer_fini(&l->lsmt);
    if (l->compressed)
        source_close(&l->plain);
    free(l);
}

int overlaybd_open(struct overlaybd_layer **out, const struct source *blob, struct err *e)
{
    AUTO_OVERLAYBD_LAYER struct overlaybd_layer *l = mem_zalloc(sizeof(*l));
    if (!l)
        return err_nomem(e, "OverlayBD layer");
    l->blob = blob;
    l->unwrapped = (struct source){.read = unwrapped_read, .self = l};
    int rc = overlaybd_tar_find(blob, &l->payload, &l->unwrapped.size, e);
    if (rc == 0)
        rc = zfile_open(&l->plain, &l->unwrapped, e);
    if (rc == 0)
        l->compressed = true;
    if (rc == -ERR_NOTFOUND) { /* not compressed */
        err_clear(e);
        l->plain = l->unwrapped;
        rc = 0;
    }
    if (rc == 0)
        rc = lsmt_parse(&l->lsmt, &l->plain, e);
    if (rc < 0)
        return err_in(e, "OverlayBD layer");
    *out = MOVE(l);
    return 0;
}

uint64_t overlaybd_virtual_size(const struct overlaybd_layer *l)
{
    return l->lsmt.virtual_size;
}

/* ---- Stacks ---- */

/* `count` sectors of the disk are those at `at` of a layer, or zeros. */
struct piece {
    uint64_t sector;
    uint64_t at;
    uint32_t count;
    uint16_t layer;
    bool zeros;
};

struct pieces {
    struct piece *piece;
    size_t count, capacity;
};

static uint64_t piece_end(const struct piece *p)
{
    return p->sector + p->count;
}

static int add_piece(struct pieces *to, const struct piece *p, struct err *e)
{
    if (to->count == PIECES_MAX)
        return err_set(e, ERR_LIMIT, "OverlayBD disk: its layers are in more than %d pieces",
                       PIECES_MAX);
    int rc = mem_grow(&to->piece, &to->capacity, to->count + 1, sizeof(*p), e);
    if (rc == 0)
        to->piece[to->count++] = *p;
    return rc;
}

/* Adds what `lower` has in sectors [from, to); *next is the first of its pieces that may reach
 * there. */
static int add_range(struct pieces *out, const struct pieces *lower, size_t *next, uint64_t from,
                     uint64_t to, struct err *e)
{
    int rc = 0;
    for (; rc == 0 && *next < lower->count && lower->piece[*next].sector < to; (*next)++) {
        struct piece p = lower->piece[*next];
        uint64_t start = p.sector > from ? p.sector : from;
        uint64_t end = piece_end(&p) < to ? piece_end(&p) : to;
        if (start < end) {
            p.at += p.zeros ? 0 : start - p.sector;
            p.sector = start;
            p.count = (uint32_t)(end - start);
            rc = add_piece(out, &p, e);
        }
        if (piece_end(&lower->piece[*next]) > to)
            break; /* goes on behind what hides it */
    }
    return rc;
}

/* The upper layer's pieces, and the lower ones where it has none. */
static int stack(struct pieces *out, const struct pieces *lower, const struct lsmt_layer *upper,
                 uint16_t layer, struct err *e)
{
    uint64_t from = 0;
    size_t next = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < upper->count; i++) {
        const struct lsmt_entry *x = &upper->entries[i];
        struct piece p = {x->sector, x->at, x->count, layer, x->zeros};
        rc = add_range(out, lower, &next, from, x->sector, e);
        if (rc == 0)
            rc = add_piece(out, &p, e);
        from = piece_end(&p);
    }
    return rc == 0 ? add_range(out, lower, &next, from, UINT64_MAX, e) : rc;
}

struct overlaybd_disk {
    struct bdev device;
    struct overlaybd_layer *layers[OVERLAYBD_LAYERS_MAX]; /* borrowed */
    struct pieces pieces;
};

static struct overlaybd_disk *disk_of(struct bdev *d)
{
    return (struct overlaybd_disk *)(void *)d; /* the device is the first member */
}

/* The first piece that ends after `sector`. */
static size_t find_piece(const struct pieces *p, uint64_t sector)
{
    size_t low = 0, high = p->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (piece_end(&p->piece[middle]) <= sector)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The bytes from `off` to the end of the piece or gap there, at most `len`; *p is NULL for zeros. */
static uint64_t run_at(const struct overlaybd_disk *d, uint64_t off, uint64_t len,
                       const struct piece **p)
{
    size_t i = find_piece(&d->pieces, off / SECTOR_SIZE);
    const struct piece *found = i < d->pieces.count ? &d->pieces.piece[i] : NULL;
    uint64_t end = UINT64_MAX;
    *p = NULL;
    if (found && found->sector * SECTOR_SIZE > off) {
        end = found->sector * SECTOR_SIZE;
    } else if (found) {
        end = piece_end(found) * SECTOR_SIZE;
        *p = found->zeros ? NULL : found;
    }
    return end - off < len ? end - off : len;
}

static int disk_read(struct bdev *device, void *data, size_t len, uint64_t off)
{
    struct overlaybd_disk *d = disk_of(device);
    uint8_t *to = data;
    while (len > 0) {
        const struct piece *p;
        size_t run = (size_t)run_at(d, off, len, &p);
        struct err e = ERR_INIT;
        if (!p) {
            memset(to, 0, run);
        } else if (source_read_full(&d->layers[p->layer]->plain,
                                    p->at * SECTOR_SIZE + (off - p->sector * SECTOR_SIZE), to, run,
                                    &e) < 0) {
            log_event(LOG_WARN, "blockdev", "disk range %" PRIu64 "+%zu: layer %u: %s", off, run,
                      p->layer + 1U, e.text);
            return e.class == ERR_NOMEM ? -ENOMEM : -EIO;
        }
        to += run;
        off += run;
        len -= run;
    }
    return 0;
}

static enum bdev_content disk_content(struct bdev *device, uint64_t len, uint64_t off,
                                      uint64_t *run)
{
    const struct piece *p;
    *run = run_at(disk_of(device), off, len, &p);
    return p ? BDEV_DATA : BDEV_ZEROS;
}

static void disk_close(struct bdev *device)
{
    struct overlaybd_disk *d = disk_of(device);
    free(d->pieces.piece);
    free(d);
}

static const struct bdev_ops disk_ops = {
    .read = disk_read, .content = disk_content, .close = disk_close};

static void disk_free(struct overlaybd_disk *d)
{
    if (d)
        disk_close(&d->device);
}
DEFINE_AUTO(overlaybd_disk, disk_free)

int bdev_open_overlaybd(struct bdev **out, struct overlaybd_layer *const *layers, size_t count,
                        struct err *e)
{
    if (count == 0 || count > OVERLAYBD_LAYERS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "OverlayBD disk: %zu layers; 1 to %d can be stacked",
                       count, OVERLAYBD_LAYERS_MAX);
    struct overlaybd_disk *d CLEANUP(disk_free_auto_) = mem_zalloc(sizeof(*d));
    if (!d)
        return err_nomem(e, "OverlayBD disk");
    d->device.ops = &disk_ops;
    for (size_t i = 0; i < count; i++) {
        struct pieces merged = {0};
        int rc = stack(&merged, &d->pieces, &layers[i]->lsmt, (uint16_t)i, e);
        free(d->pieces.piece);
        d->pieces = merged;
        if (rc < 0)
            return rc;
        d->layers[i] = layers[i];
        if (layers[i]->lsmt.virtual_size > 0)
            d->device.size = layers[i]->lsmt.virtual_size;
    }
    if (d->device.size == 0)
        return err_set(e, ERR_CORRUPT, "OverlayBD disk: none of its layers says how large it is");
    *out = &d->device;
    d = NULL;
    return 0;
}
