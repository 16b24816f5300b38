/* SPDX-License-Identifier: MIT */
/* Private to bake/kernel: the parts that a guest kernel is made of. */
#ifndef TB2_BAKE_KERNEL_INTERNAL_H
#define TB2_BAKE_KERNEL_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/err.h"

/* The agent's binary, linked into this library (agent_blob.S). */
extern const uint8_t tb2_agent_start[];
extern const uint8_t tb2_agent_end[];

struct initramfs_module {
    const char *name; /* "virtio_blk.ko" */
    const void *data;
    size_t len;
};

/*
 * Appends a newc cpio archive to `out`: /dev/console, /init (the agent), /modules/NAME and
 * /modules/order (the names, a line each, in the order given, which is the order of loading). The
 * bytes depend on the arguments alone.
 */
int initramfs_build(struct buf *out, const void *agent, size_t agent_len,
                    const struct initramfs_module *modules, size_t count, struct err *e) MUST_USE;

/*
 * Fills `dir` (a directory descriptor) from an unpacked Debian kernel package at `tree`: vmlinux,
 * modules/NAME.ko for each wanted module and what it depends on, modules/order. DIR/modules exists.
 */
int kernel_import(int dir, int tree, const char *release, const struct cancel *c,
                  struct err *e) MUST_USE;

/*
 * Finds the compressed kernel proper inside a bzImage: *off and *len get its place (Linux
 * Documentation/arch/x86/boot.rst, fields setup_sects, payload_offset, payload_length).
 */
int kernel_payload(const void *image, size_t len, size_t *payload_off, size_t *payload_len,
                   struct err *e) MUST_USE;

#endif
