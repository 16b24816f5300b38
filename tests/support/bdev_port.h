/* SPDX-License-Identifier: MIT */
/* A device, opened directly, as a disk_model port. */
#ifndef TB2_TESTS_BDEV_PORT_H
#define TB2_TESTS_BDEV_PORT_H

#include "blockdev/blockdev.h"
#include "disk_model.h"

static inline int bdev_port_read(void *ctx, void *data, size_t len, uint64_t off)
{
    return bdev_read(ctx, data, len, off);
}

static inline int bdev_port_write(void *ctx, const void *data, size_t len, uint64_t off)
{
    return bdev_write(ctx, data, len, off);
}

static inline int bdev_port_zero(void *ctx, uint64_t len, uint64_t off)
{
    return bdev_discard(ctx, len, off);
}

static inline int bdev_port_flush(void *ctx)
{
    return bdev_flush(ctx);
}

static inline struct disk_port bdev_port(struct bdev *d)
{
    return (struct disk_port){bdev_port_read, bdev_port_write, bdev_port_zero, bdev_port_flush, d};
}

#endif
