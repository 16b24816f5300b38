/* SPDX-License-Identifier: MIT */
/* What the files of this folder share. */
#ifndef TB2_OCI_INTERNAL_H
#define TB2_OCI_INTERNAL_H

#include "base/err.h"
#include "base/json.h"
#include "oci/oci.h"

/* ---- Documents (doc.c) -------------------------------------------------------------------- */

/* Media types, image-spec media-types.md; Docker's are the schema 2 equivalents. */
#define OCI_TYPE_INDEX "application/vnd.oci.image.index.v1+json"
#define OCI_TYPE_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define OCI_TYPE_CONFIG "application/vnd.oci.image.config.v1+json"
#define OCI_TYPE_LAYER "application/vnd.oci.image.layer.v1.tar"
#define DOCKER_TYPE_LIST "application/vnd.docker.distribution.manifest.list.v2+json"
#define DOCKER_TYPE_MANIFEST "application/vnd.docker.distribution.manifest.v2+json"
#define DOCKER_TYPE_CONFIG "application/vnd.docker.container.image.v1+json"

/* Entries that one index, or layers that one manifest, may list. */
enum { OCI_MAX_DESCRIPTORS = 4096 };

/* Reads mediaType, digest and size of a descriptor (descriptor.md, Properties). */
int oci_descriptor_read(struct oci_descriptor *out, const struct json *j, struct err *e) MUST_USE;

/* ---- Archives (archive.c, docker_archive.c) -------------------------------------------------- */

/* The path that the archive was opened by; borrowed. */
const char *oci_archive_path(const struct oci_archive *a);
/* What the archive was opened with; may be NULL. */
const struct cancel *oci_archive_cancel(const struct oci_archive *a);
/* Whether there is a file of that name, perhaps by a link. */
bool oci_archive_has(const struct oci_archive *a, const char *name);
/* Opens a file of the archive, for source_close; the archive may be closed before. Links are
 * followed among the archive's names. ERR_NOTFOUND; ERR_CORRUPT for names and links that lead
 * out. */
int oci_archive_file(const struct oci_archive *a, const char *name, struct source *out,
                     struct err *e) MUST_USE;

/* All bytes; ERR_LIMIT past the buffer's ceiling. */
int oci_source_read(const struct source *from, struct buf *out, struct err *e) MUST_USE;
/* The sha256 of all bytes. */
int oci_source_digest(const struct source *from, const struct cancel *c, struct digest *out,
                      struct err *e) MUST_USE;

/* The images of an archive of `docker save`. Borrows the archive. */
struct oci_docker;
int oci_docker_open(struct oci_docker **out, const struct oci_archive *a, struct err *e) MUST_USE;
void oci_docker_close(struct oci_docker *d);
/* As oci_layout_resolve. */
int oci_docker_resolve(struct oci_docker *d, const struct oci_ref *ref, struct oci_descriptor *out,
                       struct err *e) MUST_USE;
/* Opens a blob of the image that was resolved last. */
int oci_docker_blob(const struct oci_docker *d, const struct oci_descriptor *want,
                    struct source *out, struct err *e) MUST_USE;

/* ---- Ceilings of layers -------------------------------------------------------------------- */

/*
 * Uncompressed bytes that one blob may grow to: a fixed allowance, plus gzip's own greatest ratio
 * (1032, rounded up) for each compressed byte. Only a bomb meets it.
 */
#define OCI_MAX_PLAIN ((uint64_t)16 << 30)
#define OCI_MAX_RATIO ((uint64_t)1100)

/* Bytes of one file: what ext4 with 4 KiB blocks can hold. */
#define OCI_MAX_FILE ((uint64_t)16 << 40)

/* Bytes of one path component and of an extended attribute's name: Linux NAME_MAX,
 * XATTR_NAME_MAX. */
enum { OCI_MAX_NAME = 255 };

/* Symbolic links followed for one path, as Linux does. */
enum { OCI_MAX_LINKS = 40 };

/* ---- gzip members (gunzip_isal.c, gunzip_zlib.c) ------------------------------------------- */

/* What is left of input and output; moved on by what was used. */
struct oci_gunzip_io {
    uint8_t *in; /* not written to */
    size_t in_len;
    uint8_t *out;
    size_t out_len;
};

/*
 * A decoder of one gzip member after another (RFC 1952). Where both come to a member's end, they give
 * the same bytes, and a test holds them to that; of the damaged members whose checksum is right all
 * the same, ISA-L refuses fewer. One thread at a time.
 */
struct oci_gunzip {
    const char *name;
    void *(*open)(void); /* NULL when memory is short */
    /*
     * Decodes as far as input and output go; may hold bytes back until there is room for them, so the
     * end of the input is no end as long as calls without it still give output. *ended behind the
     * last byte of the member's trailer. ERR_CORRUPT, with the reason alone, or ERR_NOMEM.
     */
    int (*inflate)(void *self, struct oci_gunzip_io *io, bool *ended, struct err *e);
    void (*restart)(void *self); /* for the next member */
    void (*close)(void *self);
};

extern const struct oci_gunzip oci_gunzip_zlib;
#if TB2_ISAL
extern const struct oci_gunzip oci_gunzip_isal;
#endif

/* ---- Layers that are written (tar_write.c, compress.c) --------------------------------------- */

enum { OCI_TAR_BLOCK = 512 };

/* Appends what stands before an entry's data: records and header, whole blocks. ERR_UNSUPPORTED. */
int oci_tar_headers(struct buf *out, const struct oci_entry *entry, struct err *e) MUST_USE;

/* Compresses into `to`, borrowed for the encoder's life. One owner, one thread at a time. */
struct oci_encoder;
int oci_encoder_new(struct oci_encoder **out, enum oci_compression kind, const struct sink *to,
                    struct err *e) MUST_USE;
/* `end`: these are the last bytes. */
int oci_encoder_write(struct oci_encoder *c, const void *data, size_t len, bool end,
                      struct err *e) MUST_USE;
void oci_encoder_free(struct oci_encoder *c);
DEFINE_AUTO(oci_encoder, oci_encoder_free)
#define AUTO_OCI_ENCODER CLEANUP(oci_encoder_free_auto_)

/* ---- Decompression (decompress.c) ---------------------------------------------------------- */

/* The plain bytes of a layer blob, in order; the blob is hashed meanwhile. One thread at a time. */
struct oci_decoder;
struct oci_stream_options;

/*
 * Starts reading `blob`; it and what `o` points to are borrowed for the decoder's life. `cancel` may
 * be NULL. ERR_DIGEST when the blob's size is not the descriptor's.
 */
int oci_decoder_new(struct oci_decoder **out, const struct source *blob,
                    const struct oci_stream_options *o, struct err *e) MUST_USE;

/* Puts up to `room` plain bytes into `data`; *len is 0 at the very end. */
int oci_decoder_read(struct oci_decoder *d, uint8_t *data, size_t room, size_t *len,
                     struct err *e) MUST_USE;

/* As oci_stream_check_blob. */
int oci_decoder_check_blob(struct oci_decoder *d, struct err *e) MUST_USE;

void oci_decoder_free(struct oci_decoder *d);
DEFINE_AUTO(oci_decoder, oci_decoder_free)
#define AUTO_OCI_DECODER CLEANUP(oci_decoder_free_auto_)

/* Compares what was hashed with a promise: an error of that class, or 0. */
int oci_digest_check(struct hasher *h, const struct digest *promised, enum err_class class,
                     const char *what, struct err *e) MUST_USE;

/* ---- Stages (stream.c) --------------------------------------------------------------------- */

/* The plain bytes of a layer blob, in order, both sides hashed. One owner, one thread at a time. */
struct oci_stream;

struct oci_stream_options {
    const struct oci_descriptor *blob; /* borrowed for the stream's life */
    enum digest_algorithm plain_algorithm;
    bool threads; /* inflate and hash beside the caller */
    bool *wide;   /* as in struct oci_layer_options */
    const struct cancel *cancel;
};

/* Starts reading `blob`, borrowed for the stream's life. ERR_DIGEST when the blob's size is not the
 * descriptor's. */
int oci_stream_new(struct oci_stream **out, const struct source *blob,
                   const struct oci_stream_options *o, struct err *e) MUST_USE;

/* Borrows the next plain bytes, valid until the next call; *len is 0 at the very end. */
int oci_stream_read(struct oci_stream *s, const void **data, size_t *len, struct err *e) MUST_USE;

/*
 * Reads what is left of the compressed blob and compares its digest: ERR_DIGEST. Ends the stream;
 * useful after an error too, since it tells a damaged download from a damaged image.
 */
int oci_stream_check_blob(struct oci_stream *s, struct err *e) MUST_USE;

/* After the end: compares the digest of the plain bytes. ERR_CORRUPT. */
int oci_stream_check_plain(struct oci_stream *s, const struct digest *diff_id,
                           struct err *e) MUST_USE;

void oci_stream_free(struct oci_stream *s);
DEFINE_AUTO(oci_stream, oci_stream_free)
#define AUTO_OCI_STREAM CLEANUP(oci_stream_free_auto_)

/* ---- The framing of a tar (tar_filter.c) --------------------------------------------------- */

/* The bytes of a tar, set right where libarchive would misread them. One owner, one thread. */
struct oci_tar;

/* What libarchive cannot tell about the entry whose headers were handed out last. */
struct oci_tar_facts {
    uint64_t off;  /* of its first header in the bytes handed out */
    char type;     /* of its header */
    uint64_t data; /* bytes that follow its headers, as the tar has them */
    bool has_mtime;
    int64_t mtime_seconds; /* rounded down */
    uint32_t mtime_nanoseconds;
};

/* Borrows the stream, which is read by the filter alone until the tar's end. */
int oci_tar_new(struct oci_tar **out, struct oci_stream *stream, struct err *e) MUST_USE;

/*
 * Borrows the next bytes, valid until the next call: all headers of one entry in one piece, then
 * its data. *len is 0 at the very end. ERR_CORRUPT, ERR_LIMIT, and what the stream returns.
 */
int oci_tar_read(struct oci_tar *t, const void **data, size_t *len, struct err *e) MUST_USE;

const struct oci_tar_facts *oci_tar_facts(const struct oci_tar *t);

void oci_tar_free(struct oci_tar *t);
DEFINE_AUTO(oci_tar, oci_tar_free)
#define AUTO_OCI_TAR CLEANUP(oci_tar_free_auto_)

/* Names that are removals and hidden directories (layer.md, "Whiteouts"). */
#define OCI_WHITEOUT_PREFIX ".wh."
#define OCI_OPAQUE_NAME ".wh..wh..opq"

/* ---- Entries (entry.c) --------------------------------------------------------------------- */

/*
 * Gives the entry its path and, for whiteouts, its type, from a name as the tar has it. *skip when
 * the name is bookkeeping of AUFS that is no part of the image. ERR_CORRUPT, ERR_LIMIT.
 */
int oci_entry_name(struct oci_entry *entry, bool *skip, const char *raw, struct err *e) MUST_USE;

/* Cleans the target of a hard link in the same way. */
int oci_entry_link(struct oci_entry *entry, const char *raw, struct err *e) MUST_USE;

/* Sorts attributes by name. */
void oci_entry_sort_xattrs(struct oci_entry *entry);

/* Everything that struct oci_entry promises, for entries decoded from bytes. ERR_CORRUPT. */
int oci_entry_check(const struct oci_entry *entry, struct err *e) MUST_USE;

/* Where the last component of a cleaned path starts. */
size_t oci_path_base(const char *path);

/*
 * Writes bytes as printable ASCII without spaces: everything outside '!'..'~', and the backslash,
 * becomes \xNN. Reversible.
 */
int oci_text_escape(struct buf *out, const void *bytes, size_t len, struct err *e) MUST_USE;

/* The same for error texts: cut short with "..." when `text` is too small. Returns `text`. */
enum { OCI_QUOTE_MAX = 512 };
const char *oci_text_quote(const char *bytes, char text[OCI_QUOTE_MAX]);

/* ---- Text of a tree (dump.c) --------------------------------------------------------------- */

/* Bytes of the longest line: every byte of path and target escaped; of an attribute, whose name has
 * at least one byte, the name escaped, the value in hex and " xattr=:". */
#define OCI_LINE_MAX (8 * LIMIT_PATH + (4 + 8) * LIMIT_XATTRS + 4096)

/* Appends the path of a node, escaped. */
int oci_tree_path(const struct oci_tree *t, size_t index, struct buf *line, struct err *e) MUST_USE;
/* Appends the line of a node, with its newline. */
int oci_tree_line(const struct oci_tree *t, size_t index, struct buf *line, struct err *e) MUST_USE;
const char *oci_type_name(enum oci_entry_type type);

/* ---- The layer index (layer.c, index.c) ---------------------------------------------------- */

struct oci_layer {
    struct oci_entry *entries; /* in tar order */
    size_t count;
    size_t capacity;
    size_t memory_len; /* what the entries hold, kept below LIMIT_LAYER_INDEX */
};

#endif
