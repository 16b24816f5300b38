/* SPDX-License-Identifier: MIT */
/* A FUSE mount without a place (files_mount.c). Apart from internal.h: <sys/mount.h> has a BLOCK_SIZE of its own. */
#ifndef TB2_BLOCKDEV_FILES_MOUNT_H
#define TB2_BLOCKDEV_FILES_MOUNT_H

#include "base/err.h"

/* Mounts a FUSE file system that no mount table names. *device is the connection, *root its top
 * directory; it ends when both are closed, and what is open in it. ERR_DENIED or ERR_UNSUPPORTED. */
int files_mount(int *device, int *root, struct err *e) MUST_USE;

#endif
