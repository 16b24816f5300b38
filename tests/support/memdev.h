/* SPDX-License-Identifier: MIT */
/* A block device in memory, with faults on demand. */
#ifndef TB2_TESTS_MEMDEV_H
#define TB2_TESTS_MEMDEV_H

#include "blockdev/blockdev.h"

/* `size` zero bytes. Without `writable` it has no write and no discard. */
struct bdev *memdev_new(uint64_t size, bool writable);

uint8_t *memdev_bytes(struct bdev *d);

/* From now on requests fail with this errno (positive); 0: they work. */
void memdev_fail(struct bdev *d, int sys);

/* From now on reads wait until memdev_open_gate; memdev_waiting is how many do. */
void memdev_close_gate(struct bdev *d);
void memdev_open_gate(struct bdev *d);
unsigned memdev_waiting(struct bdev *d);

#endif
