/* SPDX-License-Identifier: MIT */
/*
 * OCI images as data: references, documents, the layout on disk, layers, the merged tree.
 * Knows nothing of block devices or HTTP.
 */
#ifndef TB2_OCI_OCI_H
#define TB2_OCI_OCI_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/json.h"

/* ---- References ------------------------------------------------------------------------- */

enum oci_transport {
    OCI_REGISTRY,       /* [docker://]host[:port]/path[:tag][@digest] */
    OCI_LAYOUT,         /* oci:DIR[:TAG | :@N][@digest] */
    OCI_LAYOUT_ARCHIVE, /* oci-archive:FILE[:TAG | :@N][@digest] */
    OCI_DOCKER_ARCHIVE, /* docker-archive:FILE[:NAME[:TAG] | :@N] */
};

/*
 * An image name. Grammar: distribution's reference package (distribution-spec, section Pulling
 * manifests); short names belong to docker.io, one-component ones there to library/. Images in
 * files are spelled as containers-transports(5) has it, so their paths hold no colon.
 */
struct oci_ref {
    enum oci_transport transport;
    char *host;       /* registry: "docker.io", "127.0.0.1:5000"; else NULL */
    char *repository; /* registry: "library/debian"; else the path of directory or file */
    char *tag;        /* registry: "latest" when nothing else was given, NULL when only a digest
                         was. Layout: an org.opencontainers.image.ref.name. docker save: a name
                         in full, "docker.io/library/debian:latest". NULL: not given */
    bool has_digest;
    struct digest digest;
    bool has_index; /* of images in files: the one with this number in their list, from 0 */
    size_t index;
};

/* ERR_INPUT when `text` is no legal reference. */
int oci_ref_parse(struct oci_ref *out, const char *text, struct err *e) MUST_USE;
void oci_ref_fini(struct oci_ref *r);
/* Canonical full form, free with free(); NULL when memory is short. */
char *oci_ref_print(const struct oci_ref *r) MUST_USE;

/* ---- Documents -------------------------------------------------------------------------- */

enum oci_document_kind { OCI_INDEX, OCI_MANIFEST };

enum oci_compression { OCI_PLAIN, OCI_GZIP, OCI_ZSTD };

struct oci_descriptor {
    char *media_type; /* never NULL */
    struct digest digest;
    uint64_t size; /* bytes */
};

/* A platform, as in image-index.md; `variant` may be NULL. */
struct oci_platform {
    const char *os;
    const char *architecture;
    const char *variant;
};

/* What this machine runs: linux/amd64, linux/arm64/v8, ... */
struct oci_platform oci_platform_host(void);

/* Reads "os/architecture[/variant]"; the parts lie in `text`. ERR_INPUT. */
enum { OCI_PLATFORM_MAX = 128 };
int oci_platform_parse(struct oci_platform *out, char text[OCI_PLATFORM_MAX], const char *from,
                       struct err *e) MUST_USE;
/* The name that image documents use for an architecture: "amd64" for "x86_64". */
const char *oci_architecture_name(const char *name);

struct oci_manifest {
    struct digest digest; /* of the manifest's own bytes */
    struct oci_descriptor config;
    struct oci_descriptor *layers; /* bottom first */
    size_t layer_count;
};

/* The parts of an image config that a sandbox needs (config.md). */
struct oci_config {
    struct digest digest;
    char *architecture;
    char *os;
    struct digest *diff_ids;
    size_t diff_id_count;
    char **env;        /* NULL-terminated list of NAME=value */
    char *user;        /* "" when unset */
    char *working_dir; /* "" when unset */
    struct json *raw;  /* the whole document */
};

/* Reads an index (manifest list) or an image manifest, and says which it is, by structure; media_type
 * is the transport's word and only a hint. Schema 1, artifacts and helm charts: ERR_UNSUPPORTED with
 * the reason. *out is for json_free, and for the functions that follow. */
int oci_document_parse(struct json **out, enum oci_document_kind *kind, const char *media_type,
                       const void *bytes, size_t len, struct err *e) MUST_USE;

/*
 * Picks the entry of an index for a platform: attestations and unknown/unknown are skipped, entries
 * without platform are returned only when nothing else matches (*needs_check: compare the config
 * afterwards). No match: ERR_NOTFOUND listing what there is. *out is for oci_descriptor_fini.
 */
int oci_index_select(struct oci_descriptor *out, bool *needs_check, const struct json *index,
                     const struct oci_platform *platform, struct err *e) MUST_USE;

/* All but its digest. */
int oci_manifest_read(struct oci_manifest *out, const struct json *manifest,
                      struct err *e) MUST_USE;
/* Both in one, and the digest of the bytes. */
int oci_manifest_parse(struct oci_manifest *out, const void *bytes, size_t len,
                       struct err *e) MUST_USE;
void oci_manifest_fini(struct oci_manifest *m);
int oci_config_parse(struct oci_config *out, const void *bytes, size_t len, struct err *e) MUST_USE;
void oci_config_fini(struct oci_config *c);
void oci_descriptor_fini(struct oci_descriptor *d);

/* True if the layers of the image manifest are OverlayBD layers (AgentENV's rule). ERR_UNSUPPORTED for
 * what is neither that nor a plain image: TurboOCI, layers of both kinds. */
int oci_manifest_is_native(bool *out, const struct json *manifest, struct err *e) MUST_USE;

/* Layer count equals diff_id count, layer types are usable, os is linux; else ERR_CORRUPT or
 * ERR_UNSUPPORTED. */
int oci_image_check(const struct oci_manifest *m, const struct oci_config *c,
                    struct err *e) MUST_USE;

/* ---- Images in files (image-layout.md) --------------------------------------------------- */

/*
 * A tar that holds images; gzip and zstd around it are undone into a temporary file in `tmp_dir`,
 * which is gone when the archive is closed. Hostile input: names, links, counts and sizes are
 * checked, nothing is unpacked. Read-only, so threads may share one. `c` (may be NULL) is borrowed until
 * it is closed: what is compressed in it is hashed later. ERR_NOTFOUND; ERR_INPUT: no tar; ERR_CORRUPT, ERR_LIMIT, ERR_UNSUPPORTED (another compression).
 */
struct oci_archive;
int oci_archive_open(struct oci_archive **out, const char *path, int tmp_dir,
                     const struct cancel *c, struct err *e) MUST_USE;
void oci_archive_close(struct oci_archive *a);
DEFINE_AUTO(oci_archive, oci_archive_close)
#define AUTO_OCI_ARCHIVE CLEANUP(oci_archive_close_auto_)

/* An image layout, or what `docker save` makes, looked at as one. Once an image is resolved,
 * threads may share it. Paths of a layout never lead out of it, links in a directory may. */
struct oci_layout;
int oci_layout_open(struct oci_layout **out, const char *path, struct err *e) MUST_USE;
/* Borrows the archive for the layout's life. */
int oci_layout_open_archive(struct oci_layout **out, const struct oci_archive *a,
                            enum oci_transport transport, struct err *e) MUST_USE;
void oci_layout_close(struct oci_layout *l);
DEFINE_AUTO(oci_layout, oci_layout_close)
#define AUTO_OCI_LAYOUT CLEANUP(oci_layout_close_auto_)
/* Descriptor of the image with that name, digest or number, or, when none of these is given and
 * there is just one, of the only image; for oci_descriptor_fini. ERR_NOTFOUND, ERR_INPUT when the
 * name fits several images. */
int oci_layout_resolve(struct oci_layout *l, const struct oci_ref *ref, struct oci_descriptor *out,
                       struct err *e) MUST_USE;
/* Opens a blob, for source_close; its size is checked here, its digest by whoever reads it. */
int oci_layout_blob(struct oci_layout *l, const struct oci_descriptor *d, struct source *out,
                    struct err *e) MUST_USE;

/* ---- Layers ------------------------------------------------------------------------------ */

enum oci_entry_type {
    OCI_FILE,
    OCI_DIRECTORY,
    OCI_SYMLINK,
    OCI_HARDLINK,
    OCI_CHARACTER_DEVICE,
    OCI_BLOCK_DEVICE,
    OCI_FIFO,
    OCI_WHITEOUT, /* path = the name that is removed (layer.md, Whiteouts) */
    OCI_OPAQUE,   /* path = the directory whose lower content is hidden */
};

struct oci_xattr {
    char *name;
    uint8_t *value;
    size_t value_len;
};

/* `len` bytes of a file's data at file offset `file_off`, stored at region offset `region_off`. */
struct oci_extent {
    uint64_t file_off;
    uint64_t len;
    uint64_t region_off;
};

/*
 * One entry of a layer. Paths are relative, cleaned ("a/b", "" for the root), raw bytes without
 * NUL; they never hold "." or ".." components, each component has at most 255 bytes and the whole
 * less than LIMIT_PATH. They are the tar's by spelling: symbolic links on the way are resolved by
 * oci_tree_merge. Hard links, whiteouts and opaque markers carry nothing but path and target.
 */
struct oci_entry {
    enum oci_entry_type type;
    char *path;
    char *target;  /* symlink: as written; hardlink: cleaned path; else NULL */
    uint32_t mode; /* permission bits and setuid, setgid, sticky */
    uint32_t uid;
    uint32_t gid;
    int64_t mtime_seconds;      /* rounded down, also before 1970 */
    uint32_t mtime_nanoseconds; /* to be added; below 1,000,000,000 */
    uint64_t size;              /* files: bytes */
    uint32_t device_major;
    uint32_t device_minor;
    struct oci_xattr *xattrs; /* sorted by name */
    size_t xattr_count;
    struct oci_extent *extents; /* sorted by file_off; gaps are holes */
    size_t extent_count;
};
void oci_entry_fini(struct oci_entry *entry); /* frees what it holds; zeroes it */

/*
 * Where file data goes while a layer is read. All calls come from one thread, in order:
 * file_begin, file_data*, file_end for each non-empty regular file. Offsets skip over holes of
 * sparse files.
 */
struct oci_data_ops {
    int (*file_begin)(void *ctx, uint64_t size, struct err *e);
    int (*file_data)(void *ctx, uint64_t off, const void *data, size_t len, struct err *e);
    /* Gives the file's extents: an array that the callee allocates with base/mem.h and hands over
     * (NULL and 0 when all is hole). */
    int (*file_end)(void *ctx, struct oci_extent **extents, size_t *count, struct err *e);
};

/* Bytes that the window of a zstd layer may take: `zstd --long` uses the larger one, anything above
 * is refused; all but `zstd --ultra` and --long stay within the smaller one (RFC 8878, 3.1.1.1.2). */
#define OCI_WINDOW_MAX ((size_t)128 << 20)
#define OCI_WINDOW_NARROW ((size_t)8 << 20)

struct oci_layer_options {
    struct oci_descriptor blob;     /* digest and size that the compressed bytes must have */
    struct digest diff_id;          /* digest that the uncompressed bytes must have; zeros: any */
    const struct oci_data_ops *ops; /* NULL: data is checked and dropped, files have no extents */
    void *ctx;
    bool threads;                /* two more: inflate and hash beside the tar reader */
    bool *wide;                  /* NULL: a zstd window may take OCI_WINDOW_MAX. Else one above
                                  * OCI_WINDOW_NARROW is ERR_LIMIT, and sets *wide */
    const struct cancel *cancel; /* may be NULL */
};

struct oci_layer; /* the layer index: every entry in tar order, whiteouts included */

/*
 * Reads a layer blob in one streaming pass: decompress (by magic: plain, gzip, zstd, with many
 * members or frames), tar (libarchive), digest of the blob, size and diff_id, all checked. The
 * blob is always read to its very end, far beyond the tar's end mark if need be.
 * Memory is bounded whatever the layer's size, but for the index itself (LIMIT_LAYER_INDEX).
 *
 * Errors start with "layer <blob digest>" and name the entry where there is one:
 * ERR_DIGEST: the blob's bytes are not those that the descriptor promises; getting them again may
 * help. Damage of any kind is told apart from a damaged image by this.
 * ERR_CORRUPT: the blob is right, its content is not, or does not have the diff_id.
 * ERR_LIMIT, ERR_UNSUPPORTED: an entry or the compression goes past what can be stored.
 * ERR_CANCELLED, and whatever the source and the data operations return.
 *
 * What becomes of a tar's oddities: docs/formats/tree.md, docs/decisions/0007-tar-filter.md.
 *
 * Thread-safe (each call is on its own); runs in the C locale whatever the program's is.
 */
int oci_layer_read(struct oci_layer **out, const struct source *blob,
                   const struct oci_layer_options *options, struct err *e) MUST_USE;

void oci_layer_free(struct oci_layer *l);
DEFINE_AUTO(oci_layer, oci_layer_free)
#define AUTO_OCI_LAYER CLEANUP(oci_layer_free_auto_)

size_t oci_layer_count(const struct oci_layer *l);
const struct oci_entry *oci_layer_entry(const struct oci_layer *l, size_t index);

/* A layer that is made of something else than a tar: entries as a tar would have them. */
int oci_layer_new(struct oci_layer **out, struct err *e) MUST_USE;
/* Appends the entry and takes over what it holds, also on failure (it is zeroed). ERR_LIMIT when
 * the index grows past LIMIT_LAYER_INDEX. */
int oci_layer_add(struct oci_layer *l, struct oci_entry *entry, struct err *e) MUST_USE;
/* Removes the entries that are marked. */
void oci_layer_drop(struct oci_layer *l, const bool *marks);

/* The index as bytes (docs/formats/layer-index.md) and back. Encoding depends on nothing but the
 * entries and appends to `out` (ceiling: LIMIT_LAYER_INDEX); decoding treats the bytes as hostile:
 * ERR_CORRUPT. */
int oci_layer_encode(const struct oci_layer *l, struct buf *out, struct err *e) MUST_USE;
int oci_layer_decode(struct oci_layer **out, const void *bytes, size_t len, struct err *e) MUST_USE;

/* ---- Layers that are written --------------------------------------------------------------- */

/*
 * A layer blob, entry by entry: a tar (ustar, PAX records where that has no room), compressed. The same
 * entries give the same bytes. One owner, one thread at a time.
 */
struct oci_layer_writer;

struct oci_layer_facts {
    struct digest blob;    /* of the compressed bytes */
    struct digest diff_id; /* of the tar */
    uint64_t size, plain_size;
    uint64_t entries;
};

/* `to` takes the blob; borrowed for the writer's life. */
int oci_layer_writer_new(struct oci_layer_writer **out, const struct sink *to,
                         enum oci_compression compression, struct err *e) MUST_USE;
/*
 * Adds an entry; extents are not looked at. The `size` bytes of a file follow by
 * oci_layer_writer_data. A hard link carries mode, owner and time of its target, which some unpackers
 * apply; whiteouts and opaque markers carry a path. ERR_UNSUPPORTED, naming the entry: a name that
 * would be a whiteout, numbers and attributes that a tar cannot hold.
 */
int oci_layer_writer_add(struct oci_layer_writer *w, const struct oci_entry *entry,
                         struct err *e) MUST_USE;
/* The next bytes of the file that was added last. ERR_INPUT past its size. */
int oci_layer_writer_data(struct oci_layer_writer *w, const void *data, size_t len,
                          struct err *e) MUST_USE;
/* Ends the blob. ERR_INPUT when the last file is not whole. */
int oci_layer_writer_finish(struct oci_layer_writer *w, struct oci_layer_facts *out,
                            struct err *e) MUST_USE;
void oci_layer_writer_free(struct oci_layer_writer *w);
DEFINE_AUTO(oci_layer_writer, oci_layer_writer_free)
#define AUTO_OCI_LAYER_WRITER CLEANUP(oci_layer_writer_free_auto_)

/* ---- Merged tree ------------------------------------------------------------------------- */

/*
 * One name in the flattened image. Nodes are numbered depth first, children sorted by the bytes of
 * their names; node 0 is the root; a parent's number is below its children's. Further names of an
 * inode come after its first name and point to it by `link_of`.
 */
struct oci_node {
    const char *name; /* last path component; "" for the root */
    size_t parent;    /* 0 for the root itself */
    size_t link_of;   /* SIZE_MAX, or the number of the node whose inode this name shares */
    size_t layer;     /* which layer the data lies in */
    /* Metadata; type never OCI_HARDLINK or a whiteout. Its path is the one of the tar, not of the
     * tree: links on the way and further names differ. Directories that no layer lists share one
     * entry with mode 0755, owner 0:0, time 0 and path "". */
    const struct oci_entry *entry;
};

struct oci_tree;

/*
 * Applies the layers, bottom first, which must outlive the tree (it borrows their entries). The
 * rules are those of docs/formats/tree.md; errors name layer (counted from 1) and entry:
 * ERR_CORRUPT, ERR_LIMIT; ERR_CANCELLED (`cancel` may be NULL). A tree is read-only, so threads may
 * share it, and the same layer may be part of many trees at once.
 */
int oci_tree_merge(struct oci_tree **out, struct oci_layer *const *layers, size_t layer_count,
                   const struct cancel *cancel, struct err *e) MUST_USE;
void oci_tree_free(struct oci_tree *t);
DEFINE_AUTO(oci_tree, oci_tree_free)
#define AUTO_OCI_TREE CLEANUP(oci_tree_free_auto_)
size_t oci_tree_count(const struct oci_tree *t); /* at least 1: the root */
struct oci_node oci_tree_node(const struct oci_tree *t, size_t index);

/* One line a node, the canonical text form that tests and `image tree` use
 * (docs/formats/tree.md). */
int oci_tree_dump(const struct oci_tree *t, const struct sink *out, struct err *e) MUST_USE;

/* ---- Differences ------------------------------------------------------------------------- */

enum oci_change { OCI_REMOVED, OCI_ADDED, OCI_CHANGED };

/* A name that two trees do not agree on. */
struct oci_difference {
    enum oci_change change;
    const char *path;   /* from the root, escaped as in the text form; borrowed, as the rest */
    const char *fields; /* changed: which, parted by spaces ("mode size content"); else "" */
    const char *line;   /* docs/formats/tree.md, "Differences"; ends with a newline */
};

struct oci_diff_ops {
    /* Whether two files of the same size, not 0, hold the same bytes. */
    int (*same_content)(void *ctx, const struct oci_node *a, const struct oci_node *b, bool *same,
                        struct err *e);
    /* Receives the differences in the order of the text form. */
    int (*difference)(void *ctx, const struct oci_difference *d, struct err *e);
    void *ctx;
};

/* Compares by names; directories that were replaced bring all below them. */
int oci_tree_diff(const struct oci_tree *a, const struct oci_tree *b,
                  const struct oci_diff_ops *ops, struct err *e) MUST_USE;

#endif
