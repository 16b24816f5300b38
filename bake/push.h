/* SPDX-License-Identifier: MIT */
/*
 * Disks as images in a registry: as OverlayBD layers, which AgentENV hosts load on demand, or an
 * image as it is.
 */
#ifndef TB2_BAKE_PUSH_H
#define TB2_BAKE_PUSH_H

#include "bake/bake.h"
#include "blockdev/overlaybd.h"

enum push_format {
    PUSH_OVERLAYBD, /* the disk, one layer per region and one on top (docs/formats/overlaybd.md) */
    PUSH_OCI,       /* the image's own documents and blobs; not for templates */
};

/* Borrowed until push_close. */
struct push_options {
    enum push_format format;
    enum overlaybd_compression compression; /* 0: zstd */
    uint32_t block_size;                    /* plain bytes compressed together; 0: 16 KiB */
    uint64_t free_size;                     /* bytes that must be free on the disk of an image */
    struct image_options images;
    const struct cancel *cancel;
};

struct push_report {
    char *reference; /* REPOSITORY:TAG@DIGEST */
    struct digest digest;
    size_t layers;
    size_t converted; /* of these, made now */
    size_t sent, mounted;
    uint64_t size, sent_size; /* bytes of all layers, and of those sent */
};
void push_report_fini(struct push_report *r);

/* What several pushes share: connections, logins, and what is converted only once. */
struct push;
int push_open(struct push **out, struct store *s, const struct push_options *o,
              struct err *e) MUST_USE;
void push_close(struct push *p);
DEFINE_AUTO(push, push_close)
#define AUTO_PUSH CLEANUP(push_close_auto_)

/*
 * Pushes what the template's disk is to the repository `to` ("host/name[:tag]"; without a tag: the
 * alias). Blobs that are there, or that the store knows converted, are not made again; the manifest
 * goes last, so that a tag never names what is not whole. *out is for push_report_fini, whatever the
 * result. ERR_INPUT: `to` is no repository. ERR_UNSUPPORTED: the format does not go. Thread-safe.
 */
int push_template(struct push *p, const struct template *t, const char *to, struct push_report *out,
                  struct err *e) MUST_USE;
/* The same with an image, which is pulled and assembled, not booted; without a tag: its name and
 * tag, "debian-12". ERR_BUSY while a bake works in the store. */
int push_image(struct push *p, const char *image, const char *to, struct push_report *out,
               struct err *e) MUST_USE;

#endif
