/* SPDX-License-Identifier: MIT */
/* Grafts that come after steps have run: the same layers as when a disk is assembled, laid by the agent. */
#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/image/graft.h"
#include "bake/image/layer_store.h"
#include "bake/step/steps.h"
#include "base/mem.h"
#include "manifests/manifest.h"

enum { PORTION = 1 << 20 };

struct laying {
    struct guest *guest;
    struct agent_copy *copy;
    const struct recipe_files *files;
    size_t skip; /* bytes of an entry's path that are the graft's own */
    uint8_t *data;
};

/* Below the graft's path. */
static const char *path_below(const struct laying *l, const char *path)
{
    return path + l->skip + (path[l->skip] == '/');
}

static int describe(const struct laying *l, const struct oci_entry *entry,
                    struct agent_copy_entry *out, struct err *e)
{
    *out = (struct agent_copy_entry){.path = path_below(l, entry->path),
                                     .mode = entry->mode,
                                     .owned = !l->files->owner,
                                     .uid = entry->uid,
                                     .gid = entry->gid,
                                     .time = entry->mtime_seconds};
    const char *what = entry->xattr_count > 0 ? "it has extended attributes" : NULL;
    switch (entry->type) {
    case OCI_FILE:
        out->type = COPY_FILE;
        out->size = entry->size;
        break;
    case OCI_DIRECTORY:
        out->type = COPY_DIRECTORY;
        break;
    case OCI_SYMLINK:
        out->type = COPY_SYMLINK;
        out->target = entry->target;
        break;
    case OCI_HARDLINK:
        out->type = COPY_HARD_LINK;
        out->target = path_below(l, entry->target);
        break;
    case OCI_CHARACTER_DEVICE:
    case OCI_BLOCK_DEVICE:
    case OCI_FIFO:
    case OCI_WHITEOUT:
    case OCI_OPAQUE:
        what = "it is a device or a pipe";
        break;
    }
    if (!what)
        return 0;
    err_set(e, ERR_UNSUPPORTED, "/%s cannot be laid in a running guest: %s", entry->path, what);
    return err_hint(e, "put the graft before the first run, copy and workdir step");
}

/* Bytes [off, off + len) of the file; off only rises, and gaps read as zeros. */
static int send_part(struct laying *l, struct bdev *region, const struct oci_extent *x,
                     uint64_t *off, uint64_t end, struct err *e)
{
    static const uint8_t zeros[4096];
    uint64_t hole_end = x ? x->file_off : end;
    int rc = 0;
    while (rc == 0 && *off < hole_end) {
        size_t len = hole_end - *off < sizeof(zeros) ? (size_t)(hole_end - *off) : sizeof(zeros);
        rc = agent_copy_data(l->copy, zeros, len, e);
        *off += len;
    }
    for (uint64_t at = 0; rc == 0 && x && at < x->len;) {
        size_t len = x->len - at < PORTION ? (size_t)(x->len - at) : PORTION;
        int sys = bdev_read(region, l->data, len, x->region_off + at);
        rc = sys < 0 ? err_sysno(e, -sys, "reading the graft")
                     : agent_copy_data(l->copy, l->data, len, e);
        at += len;
        *off += len;
    }
    return rc;
}

static int send_file(struct laying *l, struct bdev *region, const struct oci_entry *entry,
                     struct err *e)
{
    uint64_t off = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < entry->extent_count; i++)
        rc = send_part(l, region, &entry->extents[i], &off, entry->size, e);
    return rc < 0 ? rc : send_part(l, region, NULL, &off, entry->size, e);
}

static int lay_layer(struct laying *l, const struct oci_layer *layer, struct bdev *region,
                     struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < oci_layer_count(layer); i++) {
        const struct oci_entry *entry = oci_layer_entry(layer, i);
        struct agent_copy_entry record;
        rc = describe(l, entry, &record, e);
        if (rc == 0)
            rc = agent_copy_add(l->copy, &record, e);
        if (rc == 0 && entry->type == OCI_FILE && entry->size > 0)
            rc = send_file(l, region, entry, e);
    }
    return rc;
}

/* All directories are in the first layer; the innermost come last there. */
static int settle(struct laying *l, const struct oci_layer *first, struct err *e)
{
    int rc = 0;
    for (size_t i = oci_layer_count(first); rc == 0 && i-- > 0;) {
        struct agent_copy_entry record;
        if (oci_layer_entry(first, i)->type != OCI_DIRECTORY)
            continue;
        rc = describe(l, oci_layer_entry(first, i), &record, e);
        record.type = COPY_SETTLE;
        if (rc == 0)
            rc = agent_copy_add(l->copy, &record, e);
    }
    /* As a directory that no layer lists. */
    const struct agent_copy_entry root = {
        .type = COPY_SETTLE, .path = "", .mode = 0755, .owned = true};
    return rc < 0 ? rc : agent_copy_add(l->copy, &root, e);
}

static int lay_all(struct laying *l, const struct digest *ids, size_t count, struct err *e)
{
    AUTO_OCI_LAYER struct oci_layer *first = NULL;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        AUTO_OCI_LAYER struct oci_layer *layer = NULL;
        AUTO_BLOCK_MAP struct block_map *map = NULL;
        AUTO_BDEV struct bdev *region = NULL;
        rc = layer_load(l->guest->room->store, &ids[i], &layer, &map, e);
        if (rc == 0)
            rc = bdev_open_map(&region, map, l->guest->room->cache, e);
        if (rc == 0)
            rc = lay_layer(l, layer, region, e);
        if (i == 0)
            first = MOVE(layer);
    }
    if (rc == 0)
        rc = settle(l, first, e);
    return rc < 0 ? rc : agent_copy_finish(l->copy, e);
}

int graft_lay(struct guest *g, struct image_room *room, const struct recipe_files *f, struct err *e)
{
    AUTO_AGENT_COPY struct agent_copy *copy = NULL;
    AUTO_FREE struct digest *ids = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(PORTION);
    struct laying l = {.guest = g, .files = f, .data = data};
    const struct agent_copy_target target = {.to = f->to, .owner = f->owner};
    size_t count = 0;
    int rc = data ? graft_make(&ids, &count, room, f, e) : err_nomem(e, "graft");
    if (rc == 0)
        rc = agent_copy_open(&copy, g->agent, &target, e);
    if (rc < 0)
        return rc;
    l.copy = copy;
    l.skip = graft_path_len(f);
    rc = lay_all(&l, ids, count, e);
    if (rc == -ERR_NOTFOUND) /* a path of the guest: nobody's input is wrong */
        e->class = ERR_STEP;
    return rc < 0 ? -(int)e->class : 0;
}
