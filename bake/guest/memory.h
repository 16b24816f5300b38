/* SPDX-License-Identifier: MIT */
/*
 * Memory of templates, as restores want it: random access to its bytes, and a file to map whose pages
 * come when they are touched.
 */
#ifndef TB2_BAKE_GUEST_MEMORY_H
#define TB2_BAKE_GUEST_MEMORY_H

#include <stdbool.h>

#include "blockdev/blockdev.h"

/* The images that restores of this process use, each once however many use it. Thread-safe. */
struct memory_room;
/* Store and cache are borrowed. */
int memory_room_new(struct memory_room **out, struct store *s, struct chunk_cache *c,
                    struct err *e) MUST_USE;
void memory_room_free(struct memory_room *r); /* when no image is open; NULL is fine */

struct memory_image;
/* The memory that a stored map describes. ERR_CORRUPT if it is not `size` bytes. */
int memory_open(struct memory_image **out, struct memory_room *r, const struct digest *map,
                uint64_t size, struct err *e) MUST_USE;
void memory_close(struct memory_image *m); /* NULL is fine */

const struct block_map *memory_map(const struct memory_image *m); /* borrowed */
/* Its bytes: read-only, from bdev_open_map. Borrowed. */
struct bdev *memory_device(const struct memory_image *m);
/* *path is that of a file of its bytes, for other processes of this user, never for this one
 * (bdev_file_path); borrowed. NULL: there can be none here. */
int memory_file(struct memory_image *m, const char **path, struct err *e) MUST_USE;
/* Whether there can be such files here; if not, why is logged, once. */
bool memory_has_files(struct memory_room *r);

#endif
