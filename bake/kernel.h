/* SPDX-License-Identifier: MIT */
/* The guest kernel and its initramfs: found, fetched, built. */
#ifndef TB2_BAKE_KERNEL_H
#define TB2_BAKE_KERNEL_H

#include <stdbool.h>

#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"

struct guest_kernel {
    char *kernel_path;    /* vmlinux */
    char *initramfs_path; /* agent and modules */
    char *release;        /* "6.12.…-cloud-amd64" */
    struct digest digest; /* over kernel and initramfs: part of every template's key */
    bool vsock; /* has what machines without PCI need (a cache of an older version may not) */
};

/*
 * Finds the guest kernel in `cache_dir` (absolute), fetching and unpacking Debian's
 * linux-image-6.12-cloud-amd64 there if it is missing (apt-get download, dpkg-deb; nothing is
 * installed), and builds the initramfs (newc cpio, same inputs, same bytes). Safe beside other
 * processes.
 */
int guest_kernel_get(struct guest_kernel *out, const char *cache_dir, const struct cancel *c,
                     struct err *e) MUST_USE;
/* ERR_NOTFOUND with a hint when guest_kernel_get would have to fetch. */
int guest_kernel_check(const char *cache_dir, struct err *e) MUST_USE;
void guest_kernel_fini(struct guest_kernel *k);

#endif
