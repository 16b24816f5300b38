/* SPDX-License-Identifier: MIT */
/*
 * Tar layers for tests, written byte by byte from a few words of text, and a reader for them that
 * keeps file data in memory. Everything aborts the test when it cannot go on.
 *
 * One entry a line, fields apart by spaces, "\xNN" for any byte in any field:
 *
 *     D path            directory, 0755        F path content    file, 0644
 *     S path target     symbolic link          H path target     hard link
 *     W path            empty file             P path            fifo
 *     C path 1:3        character device       B path 8:0        block device
 *
 * then any of mode=0755 uid=1 gid=1 mtime=7 and pax.KEY=VALUE. The time is 1700000000 by default.
 */
#ifndef TB2_TESTS_OCI_TARBALL_H
#define TB2_TESTS_OCI_TARBALL_H

#include "oci/oci.h"

enum { TAR_MTIME = 1700000000 };

struct tar_header {
    const char *name;
    char type;
    const char *link;
    uint32_t mode;
    int64_t uid;
    int64_t gid;
    int64_t mtime;
    uint64_t size;
    uint32_t major;
    uint32_t minor;
    bool gnu;            /* GNU's magic and, where set, its sparse fields */
    const uint64_t *map; /* old GNU sparse: offset and length pairs */
    size_t map_count;    /* pairs */
    uint64_t real_size;
};

/* Appends one header block (and the blocks of a long sparse map); base-256 where octal ends. */
void tar_header(struct buf *tar, const struct tar_header *h);
/* Appends content, padded to whole blocks. */
void tar_content(struct buf *tar, const void *bytes, size_t len);
/* Appends a PAX record to `records`. */
void tar_record(struct buf *records, const char *key, const void *value, size_t value_len);
/* Appends an extended header of type 'x' or 'g' that holds the records. */
void tar_extended(struct buf *tar, char type, const struct buf *records);
/* Appends the entries that the text describes; tar_end appends the two zero blocks. */
void tar_describe(struct buf *tar, const char *text);
void tar_end(struct buf *tar);

void gzip_member(struct buf *out, const void *bytes, size_t len);
/* window_log 0: the library's choice. */
void zstd_frame(struct buf *out, const void *bytes, size_t len, int window_log);

/* A layer and the bytes of its files. */
struct test_layer {
    struct oci_layer *layer;
    struct buf data; /* the region */
    uint64_t file_size;
    uint64_t data_len; /* of the file in hand: all bytes that were given for it */
    struct oci_extent *extents;
    size_t extent_count;
    size_t extent_capacity;
};

/* Reads a blob with right digests. `plain` is what it decompresses to. */
int test_layer_read(struct test_layer *out, const struct buf *blob, const struct buf *plain,
                    const char *media_type, struct err *e);
/* The same for a plain tar; the tar is ended first. */
int test_layer_read_text(struct test_layer *out, const char *text, struct err *e);
void test_layer_fini(struct test_layer *l);

/* The content of a file; free with free(). Holes are zeros. */
char *test_layer_content(const struct test_layer *l, const struct oci_entry *entry);

/* The first entry with this path; fails the test when there is none. */
const struct oci_entry *test_layer_find(const struct test_layer *l, const char *path);

#endif
