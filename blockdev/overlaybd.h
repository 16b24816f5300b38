/* SPDX-License-Identifier: MIT */
/*
 * OverlayBD layers: the block images that hosts of AgentENV and containerd's overlaybd-snapshotter
 * load on demand from a registry. A layer is an LSMT file (sectors and an index of what they hide),
 * compressed as a ZFile, in a tar wrapper; docs/formats/overlaybd.md has the bytes. Layers are
 * stacked, bottom first, to a disk.
 */
#ifndef TB2_BLOCKDEV_OVERLAYBD_H
#define TB2_BLOCKDEV_OVERLAYBD_H

#include "blockdev/blockdev.h"

enum overlaybd_compression {
    OVERLAYBD_LZ4 = 1, /* the values that a ZFile's header has for them */
    OVERLAYBD_ZSTD = 2,
};

enum {
    OVERLAYBD_LAYERS_MAX = 255, /* of one disk: what the reference readers can stack */
    OVERLAYBD_BLOCK_SIZE_MIN = 4096,
    OVERLAYBD_BLOCK_SIZE_MAX = 32768, /* the reference reader fails on larger ones */
};
/* The reference reader counts sectors in 32 bits, and its last one is no good. */
#define OVERLAYBD_DISK_SIZE_MAX (((uint64_t)1 << 41) - 4096)

struct overlaybd_write_options {
    const struct block_map *data;  /* what the layer holds; its virtual size is the disk's */
    const struct block_map *zeros; /* where it hides what lies below, chunks ignored; may be NULL */
    enum overlaybd_compression compression;
    uint32_t block_size; /* plain bytes compressed together: a power of two, 4096 to 32768 */
    size_t workers;      /* threads that compress; does not change the result */
    const struct cancel *cancel;
};

/* A layer as a registry knows it. */
struct overlaybd_blob {
    struct digest digest;
    uint64_t size; /* bytes */
};

/*
 * Writes a layer into the empty file `fd`, wrapped as `overlaybd-commit -z -t` does it. The bytes
 * depend on maps, disk size, compression and block size alone: ids derive from these and nothing
 * says what lies below, so images that share a layer share its blob. What two extents take from one
 * place of a chunk is stored once.
 *
 * ERR_UNSUPPORTED for a disk over OVERLAYBD_DISK_SIZE_MAX or a layer of more pieces than readers
 * take (a million); ERR_CORRUPT where data and zeros overlap; errors of store_get_chunk.
 */
int overlaybd_write(int fd, struct store *s, const struct overlaybd_write_options *o,
                    struct overlaybd_blob *out, struct err *e) MUST_USE;

/* A layer that is open for reading; any wrapper that the reference readers take, or none. */
struct overlaybd_layer;

/* Reads headers and indexes; `blob` (borrowed for the layer's life) may be hostile: ERR_CORRUPT,
 * ERR_LIMIT or ERR_UNSUPPORTED say what is wrong with it. */
int overlaybd_open(struct overlaybd_layer **out, const struct source *blob, struct err *e) MUST_USE;
void overlaybd_close(struct overlaybd_layer *l);
DEFINE_AUTO(overlaybd_layer, overlaybd_close)
#define AUTO_OVERLAYBD_LAYER CLEANUP(overlaybd_close_auto_)

/* Size in bytes of the disk that the layer was made for; 0: that of the layer below. */
uint64_t overlaybd_virtual_size(const struct overlaybd_layer *l);

/*
 * Read-only device over a stack, layers[0] at the bottom (1 to OVERLAYBD_LAYERS_MAX of them,
 * borrowed for the device's life). Its size is that of the topmost layer that has one. A block that
 * fails its check is -EIO, logged with its offset.
 */
int bdev_open_overlaybd(struct bdev **out, struct overlaybd_layer *const *layers, size_t count,
                        struct err *e) MUST_USE;

#endif
