/* SPDX-License-Identifier: MIT */
/*
 * Disks as images in a registry: as OverlayBD layers, which AgentENV hosts load on demand, or as plain
 * images, which everything reads.
 */
#ifndef TB2_BAKE_PUSH_H
#define TB2_BAKE_PUSH_H

#include "bake/image.h"
#include "blockdev/overlaybd.h"

struct template;

/* What disks are pushed as. */
enum push_format {
    PUSH_OVERLAYBD, /* the disk, one layer per region and one on top (docs/formats/overlaybd.md) */
    PUSH_OCI,       /* a plain image: of a template, its image's layers and one of what baking
                       changed; an image as it is */
};
enum push_compression {
    PUSH_COMPRESSION_DEFAULT, /* zstd; of plain images gzip, which all read */
    PUSH_ZSTD,
    PUSH_LZ4, /* not for plain images */
    PUSH_GZIP /* for plain images alone */
};

/* Borrowed until push_close. */
struct push_options {
    enum push_format format;
    enum push_compression compression; /* of layers that are made */
    uint32_t block_size; /* of OverlayBD: plain bytes compressed together; 0: 16 KiB */
    uint64_t free_size;  /* bytes that must be free on the disk of an image */
    bool in_run;         /* the caller has the store's run_lock */
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
/* ERR_INPUT: a compression that the format does not have. */
int push_open(struct push **out, struct store *s, const struct push_options *o,
              struct err *e) MUST_USE;
void push_close(struct push *p);
DEFINE_AUTO(push, push_close)
#define AUTO_PUSH CLEANUP(push_close_auto_)

/*
 * Pushes what the template's disk is to the repository `to` ("host/name[:tag]"; without a tag: the
 * alias). Blobs that are there, or that the store knows converted, are not made again; the manifest
 * goes last, so that a tag never names what is not whole. *out is for push_report_fini, whatever the
 * result. ERR_INPUT: `to` is no repository. As a plain image it needs its image, whose layers are pulled
 * again where the store has them no more: ERR_NOTFOUND where the image is gone, ERR_BUSY while a bake
 * works in the store. Thread-safe.
 */
int push_template(struct push *p, const struct template *t, const char *to, struct push_report *out,
                  struct err *e) MUST_USE;
/* The same with an image, which is pulled and assembled, not booted; without a tag: its name and
 * tag, "debian-12". ERR_BUSY while a bake works in the store. */
int push_image(struct push *p, const char *image, const char *to, struct push_report *out,
               struct err *e) MUST_USE;

#endif
