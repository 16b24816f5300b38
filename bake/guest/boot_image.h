/* SPDX-License-Identifier: MIT */
/* Boot images as the store keeps them (docs/formats/store.md). Records are replaced as a whole:
 * any number of threads and processes may read and store them. */
#ifndef TB2_BAKE_GUEST_BOOT_IMAGE_H
#define TB2_BAKE_GUEST_BOOT_IMAGE_H

#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"
#include "blockdev/blockdev.h"

/* What a machine was saved as. */
struct guest_saved {
    struct digest memory; /* map */
    struct digest state;  /* map */
    uint64_t state_size;
};

/* A snapshot of a booted guest that has not looked at its disk (boot_image.c). */
struct boot_image {
    struct digest key; /* of what it was made with: its name in the store */
    struct guest_saved saved;
};
/* Stores its record, whose maps are stored. */
int boot_image_put(const struct boot_image *b, struct store *s, struct err *e) MUST_USE;
/* Its record, checked; does not mark it as used. */
int boot_image_peek(struct boot_image *out, struct store *s, const struct digest *key,
                    struct err *e) MUST_USE;

struct machine_room;
/* From now on guests begin as boot images, where the VMM can do that. Before threads use the room. */
int machine_room_use_boot_images(struct machine_room *r, struct err *e) MUST_USE;

#endif
