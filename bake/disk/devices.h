/* SPDX-License-Identifier: MIT */
/* Which disks are attached as devices. */
#ifndef TB2_BAKE_DISK_DEVICES_H
#define TB2_BAKE_DISK_DEVICES_H

#include "base/digest.h"
#include "base/err.h"

struct store;

/* Hands over the disk of each attached device (its map). */
int device_disks(struct store *s, void (*each)(void *ctx, const struct digest *disk), void *ctx,
                 struct err *e) MUST_USE;

#endif
