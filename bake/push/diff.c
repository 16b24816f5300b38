/* SPDX-License-Identifier: MIT */
/*
 * Two trees, each in the order of its file system's reader (depth first, siblings by name), are laid
 * side by side: names that both have are matched, what has no match in the upper one is a whiteout.
 * Then it is found out what of the upper tree is not as in the lower one, and that is written.
 *
 * A file's bytes are compared only where that needs to be: as a rule it lies at the same place on both
 * disks, and the disks' maps have the same chunks there.
 */

#include <stdlib.h>
#include <string.h>

#include "bake/push/diff.h"
#include "base/mem.h"
#include "blockdev/ext4_read.h"

enum { PIECE = 256 << 10, CACHE_SIZE = 64 << 20 };

#define NONE UINT32_MAX
#define OVERLAY_XATTRS "trusted.overlay." /* of mounts, not of files */

/* One of the disks. */
struct side {
    struct bdev *device;
    struct ext4_reader *reader;
    size_t count;
    uint32_t *ends; /* per node: number behind its last descendant */
};

struct diff {
    const struct push_diff *options;
    struct chunk_cache *cache;
    struct side lower, upper; /* lower.reader NULL: nothing below */
    struct block_map *data;   /* what of the upper disk is not as on the lower one */
    struct block_map *zeros;
    uint32_t *matches; /* per upper node: the lower one of the same path, or NONE */
    uint32_t *claims;  /* per lower node that is first of its names: the upper one that it is */
    bool *removed;     /* per lower node */
    bool *wanted;      /* per upper node: it is in the layer */
    struct oci_layer_writer *writer;
    uint64_t written;
    uint8_t *piece, *other; /* PIECE bytes each */
};

/* ---- Disks ---- */

static void side_fini(struct side *s)
{
    ext4_reader_close(s->reader);
    bdev_close(s->device);
    free(s->ends);
}

/* Where the descendants of each node end: in the order of the nodes. */
static int find_ends(struct side *s, struct err *e)
{
    s->ends = mem_array(s->count, sizeof(*s->ends));
    if (!s->ends)
        return err_nomem(e, "tree");
    for (size_t i = s->count; i-- > 0;) {
        struct ext4_node n;
        ext4_reader_peek(s->reader, i, &n);
        if (s->ends[i] == 0)
            s->ends[i] = (uint32_t)i + 1;
        if (i > 0 && s->ends[n.parent] < s->ends[i])
            s->ends[n.parent] = s->ends[i];
    }
    return 0;
}

static int side_open(struct side *s, const struct diff *d, const struct block_map *m, struct err *e)
{
    int rc = bdev_open_map(&s->device, m, d->cache, e);
    if (rc == 0)
        rc = ext4_reader_open(&s->reader, s->device, d->options->cancel, e);
    if (rc < 0)
        return rc;
    s->count = ext4_reader_count(s->reader);
    return find_ends(s, e);
}

static int open_sides(struct diff *d, struct err *e)
{
    const struct push_diff *o = d->options;
    int rc = chunk_cache_new(&d->cache, o->store, CACHE_SIZE, e);
    if (rc == 0 && o->lower) {
        rc = side_open(&d->lower, d, o->lower, e);
        if (rc < 0)
            return err_in(e, "reading the image's disk");
        rc = block_map_delta(&d->data, &d->zeros, o->lower, o->upper, e);
    }
    if (rc == 0 && side_open(&d->upper, d, o->upper, e) < 0)
        return err_in(e, "reading the template's disk");
    d->matches = mem_array(d->upper.count + 1, sizeof(*d->matches));
    d->wanted = mem_array(d->upper.count + 1, sizeof(*d->wanted));
    d->claims = mem_array(d->lower.count + 1, sizeof(*d->claims));
    d->removed = mem_array(d->lower.count + 1, sizeof(*d->removed));
    d->piece = mem_zalloc(PIECE);
    d->other = mem_zalloc(PIECE);
    if (rc == 0 &&
        (!d->matches || !d->wanted || !d->claims || !d->removed || !d->piece || !d->other))
        rc = err_nomem(e, "trees");
    return rc;
}

static void diff_fini(struct diff *d)
{
    side_fini(&d->lower);
    side_fini(&d->upper);
    chunk_cache_free(d->cache);
    block_map_free(d->data);
    block_map_free(d->zeros);
    free(d->matches);
    free(d->claims);
    free(d->removed);
    free(d->wanted);
    free(d->piece);
    free(d->other);
    oci_layer_writer_free(d->writer);
}

/* ---- Which names belong together ---- */

static struct ext4_node peek(const struct side *s, size_t index)
{
    struct ext4_node n;
    ext4_reader_peek(s->reader, index, &n);
    return n;
}

/* The first name of the node's inode. */
static size_t first_name(const struct side *s, size_t index)
{
    struct ext4_node n = peek(s, index);
    return n.link_of == SIZE_MAX ? index : n.link_of;
}

/* Lays the names of two directories side by side. */
static void match_directory(struct diff *d, size_t lower, size_t upper)
{
    size_t a = lower + 1, b = upper + 1;
    while (a < d->lower.ends[lower] || b < d->upper.ends[upper]) {
        bool has_a = a < d->lower.ends[lower], has_b = b < d->upper.ends[upper];
        struct ext4_node x = has_a ? peek(&d->lower, a) : (struct ext4_node){0};
        struct ext4_node y = has_b ? peek(&d->upper, b) : (struct ext4_node){0};
        int order = !has_a ? 1 : !has_b ? -1 : strcmp(x.name, y.name);
        if (order < 0) {
            d->removed[a] = true;
            d->wanted[upper] = true;
        }
        if (order == 0 && x.type == y.type)
            d->matches[b] = (uint32_t)a;
        if (order <= 0)
            a = d->lower.ends[a];
        if (order >= 0)
            b = d->upper.ends[b];
    }
}

static void match_all(struct diff *d)
{
    for (size_t i = 0; i < d->upper.count; i++)
        d->matches[i] = NONE;
    for (size_t i = 0; i < d->lower.count; i++)
        d->claims[i] = NONE;
    if (!d->lower.reader)
        return;
    d->matches[0] = 0;
    for (size_t i = 0; i < d->upper.count; i++) {
        if (d->matches[i] != NONE && peek(&d->upper, i).type == EXT4_DIRECTORY)
            match_directory(d, d->matches[i], i);
    }
}

/* Names of one inode are as they were if below they were all names of one, and of no other's here. What
 * is not is noted at the first name. */
static void match_links(struct diff *d)
{
    for (size_t i = 0; i < d->upper.count; i++) {
        size_t first = first_name(&d->upper, i);
        if (d->matches[i] == NONE) {
            d->wanted[first] = true;
            continue;
        }
        if (peek(&d->upper, i).type == EXT4_DIRECTORY)
            continue;
        size_t below = first_name(&d->lower, d->matches[i]);
        if (d->claims[below] == NONE)
            d->claims[below] = (uint32_t)first;
        bool same = d->claims[below] == first && d->matches[first] != NONE &&
                    first_name(&d->lower, d->matches[first]) == below;
        d->wanted[first] |= !same;
    }
}

/* ---- Content ---- */

/* Reads part of a file; what no extent has is zeros. */
static int read_content(const struct side *s, const struct ext4_node *n, uint64_t off, void *data,
                        size_t len, struct err *e)
{
    memset(data, 0, len);
    size_t low = 0, high = n->extent_count; /* the first extent that ends behind `off` */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (n->extents[middle].file_off + n->extents[middle].len > off)
            high = middle;
        else
            low = middle + 1;
    }
    for (size_t i = low; i < n->extent_count && n->extents[i].file_off < off + len; i++) {
        const struct ext4_extent *x = &n->extents[i];
        uint64_t from = x->file_off > off ? x->file_off : off;
        uint64_t end = x->file_off + x->len < off + len ? x->file_off + x->len : off + len;
        if (bdev_read(s->device, (uint8_t *)data + (from - off), end - from,
                      x->disk_off + (from - x->file_off)) < 0)
            return err_set(e, ERR_CORRUPT, "%s cannot be read", n->name);
    }
    return 0;
}

static bool touches(const struct block_map *m, uint64_t off, uint64_t len)
{
    size_t at = block_map_find(m, off);
    return at < block_map_count(m) && block_map_extent(m, at)->off < off + len;
}

/* True if that needs no reading: same blocks, and none of them changed. */
static bool same_blocks(const struct diff *d, const struct ext4_node *a, const struct ext4_node *b)
{
    if (a->extent_count != b->extent_count)
        return false;
    for (size_t i = 0; i < a->extent_count; i++) {
        const struct ext4_extent *x = &a->extents[i];
        const struct ext4_extent *y = &b->extents[i];
        if (x->file_off != y->file_off || x->len != y->len || x->disk_off != y->disk_off ||
            touches(d->data, x->disk_off, x->len) || touches(d->zeros, x->disk_off, x->len))
            return false;
    }
    return true;
}

static int same_content(struct diff *d, const struct ext4_node *a, const struct ext4_node *b,
                        bool *same, struct err *e)
{
    *same = a->size == b->size;
    if (!*same || same_blocks(d, a, b))
        return 0;
    for (uint64_t off = 0; *same && off < a->size; off += PIECE) {
        size_t len = a->size - off < PIECE ? (size_t)(a->size - off) : PIECE;
        int rc = cancel_check(d->options->cancel, e);
        if (rc == 0)
            rc = read_content(&d->lower, a, off, d->piece, len, e);
        if (rc == 0)
            rc = read_content(&d->upper, b, off, d->other, len, e);
        if (rc < 0)
            return rc;
        *same = memcmp(d->piece, d->other, len) == 0;
    }
    return 0;
}

/* ---- What has changed ---- */

static bool is_content(const struct ext4_xattr *x)
{
    return strncmp(x->name, OVERLAY_XATTRS, strlen(OVERLAY_XATTRS)) != 0;
}

static bool same_xattrs(const struct ext4_node *a, const struct ext4_node *b)
{
    if (a->xattr_count != b->xattr_count)
        return false;
    for (size_t i = 0; i < a->xattr_count; i++) {
        const struct ext4_xattr *x = &a->xattrs[i];
        const struct ext4_xattr *y = &b->xattrs[i];
        if (strcmp(x->name, y->name) != 0 || x->value_len != y->value_len ||
            memcmp(x->value, y->value, x->value_len) != 0)
            return false;
    }
    return true;
}

static bool same_facts(const struct ext4_node *a, const struct ext4_node *b)
{
    bool same_mode = a->mode == b->mode || a->type == EXT4_SYMLINK; /* a link's means nothing */
    bool same_target = !a->target || strcmp(a->target, b->target) == 0;
    return same_mode && same_target && a->uid == b->uid && a->gid == b->gid &&
           a->mtime_seconds == b->mtime_seconds && a->mtime_nanoseconds == b->mtime_nanoseconds &&
           a->device_major == b->device_major && a->device_minor == b->device_minor &&
           same_xattrs(a, b);
}

static int compare(struct diff *d, size_t index, struct err *e)
{
    struct ext4_node a, b;
    bool same = true;
    int rc = ext4_reader_node(d->lower.reader, d->matches[index], &a, e);
    if (rc < 0)
        return err_in(e, "reading the image's disk");
    rc = ext4_reader_node(d->upper.reader, index, &b, e);
    if (rc == 0 && a.type == EXT4_FILE)
        rc = same_content(d, &a, &b, &same, e);
    d->wanted[index] = !same || !same_facts(&a, &b);
    return rc;
}

/* Empty, and root's alone: mke2fs makes it, images have none. */
static int is_lost_found(struct diff *d, size_t index, bool *yes, struct err *e)
{
    struct ext4_node n = peek(&d->upper, index);
    *yes = false;
    if (n.parent != 0 || index == 0 || strcmp(n.name, "lost+found") != 0 ||
        n.type != EXT4_DIRECTORY || d->upper.ends[index] > index + 1)
        return 0;
    int rc = ext4_reader_node(d->upper.reader, index, &n, e);
    *yes = rc == 0 && n.mode == 0700 && n.uid == 0;
    return rc;
}

/* Which nodes of the upper tree are in the layer. Above what is in it, directories are too: unpackers
 * would change their times. */
static int choose(struct diff *d, struct err *e)
{
    bool leave = false;
    match_all(d);
    match_links(d);
    for (size_t i = 0; i < d->upper.count; i++) {
        size_t first = first_name(&d->upper, i);
        int rc = 0;
        if (first == i && !d->wanted[i])
            rc = compare(d, i, e);
        else if (!d->lower.reader)
            rc = is_lost_found(d, i, &leave, e);
        if (rc < 0)
            return rc;
        d->wanted[i] = d->wanted[first] && !leave;
        leave = false;
    }
    for (size_t i = d->upper.count; i-- > 1;) {
        if (d->wanted[i])
            d->wanted[peek(&d->upper, i).parent] = true;
    }
    return 0;
}

/* ---- Writing ---- */

static int set_path(struct oci_entry *entry, const struct side *s, size_t index, char **member,
                    struct err *e)
{
    AUTO_BUF struct buf path;
    buf_init(&path, LIMIT_PATH);
    int rc = ext4_reader_path(s->reader, index, &path, e);
    if (rc < 0)
        return rc;
    *member = buf_take(&path);
    return *member ? 0 : err_nomem(e, entry->path ? entry->path : "path");
}

static int set_xattrs(struct oci_entry *entry, const struct ext4_node *n, struct err *e)
{
    entry->xattrs = mem_array(n->xattr_count + 1, sizeof(*entry->xattrs));
    if (!entry->xattrs)
        return err_nomem(e, "attributes");
    for (size_t i = 0; i < n->xattr_count; i++) {
        const struct ext4_xattr *x = &n->xattrs[i];
        if (!is_content(x))
            continue;
        struct oci_xattr *y = &entry->xattrs[entry->xattr_count++];
        y->name = mem_strdup(x->name);
        y->value = mem_dup(x->value, x->value_len);
        y->value_len = x->value_len;
        if (!y->name || !y->value)
            return err_nomem(e, "attributes");
    }
    return 0;
}

static enum oci_entry_type entry_type(enum ext4_type type)
{
    switch (type) {
    case EXT4_DIRECTORY:
        return OCI_DIRECTORY;
    case EXT4_SYMLINK:
        return OCI_SYMLINK;
    case EXT4_CHARACTER_DEVICE:
        return OCI_CHARACTER_DEVICE;
    case EXT4_BLOCK_DEVICE:
        return OCI_BLOCK_DEVICE;
    case EXT4_FIFO:
        return OCI_FIFO;
    case EXT4_FILE:
        break;
    }
    return OCI_FILE;
}

static int make_entry(struct oci_entry *out, const struct diff *d, size_t index,
                      const struct ext4_node *n, struct err *e)
{
    bool is_link = n->link_of != SIZE_MAX;
    *out = (struct oci_entry){.type = is_link ? OCI_HARDLINK : entry_type(n->type),
                              .mode = n->mode,
                              .uid = n->uid,
                              .gid = n->gid,
                              .mtime_seconds = n->mtime_seconds,
                              .mtime_nanoseconds = n->mtime_nanoseconds};
    int rc = set_path(out, &d->upper, index, &out->path, e);
    if (rc == 0 && is_link)
        return set_path(out, &d->upper, n->link_of, &out->target, e);
    if (rc < 0)
        return rc;
    out->size = n->size;
    out->device_major = n->device_major;
    out->device_minor = n->device_minor;
    out->target = n->target ? mem_strdup(n->target) : NULL;
    return n->target && !out->target ? err_nomem(e, "link") : set_xattrs(out, n, e);
}

static int write_content(struct diff *d, const struct ext4_node *n, struct err *e)
{
    if (n->size > LIMIT_DIFF_LAYER - d->written)
        return err_set(e, ERR_LIMIT, "%s: the layer would have more than %llu bytes", n->name,
                       (unsigned long long)LIMIT_DIFF_LAYER);
    d->written += n->size;
    for (uint64_t off = 0; off < n->size; off += PIECE) {
        size_t len = n->size - off < PIECE ? (size_t)(n->size - off) : PIECE;
        int rc = cancel_check(d->options->cancel, e);
        if (rc == 0)
            rc = read_content(&d->upper, n, off, d->piece, len, e);
        if (rc == 0)
            rc = oci_layer_writer_data(d->writer, d->piece, len, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int write_node(struct diff *d, size_t index, struct err *e)
{
    struct oci_entry entry = {0};
    struct ext4_node n;
    int rc = ext4_reader_node(d->upper.reader, index, &n, e);
    if (rc == 0)
        rc = make_entry(&entry, d, index, &n, e);
    if (rc == 0)
        rc = oci_layer_writer_add(d->writer, &entry, e);
    if (rc == 0 && entry.type == OCI_FILE)
        rc = write_content(d, &n, e);
    oci_entry_fini(&entry);
    return rc;
}

static int write_whiteouts(struct diff *d, size_t lower, struct err *e)
{
    int rc = 0;
    for (size_t a = lower + 1; rc == 0 && a < d->lower.ends[lower]; a = d->lower.ends[a]) {
        if (!d->removed[a])
            continue;
        struct oci_entry entry = {.type = OCI_WHITEOUT};
        rc = set_path(&entry, &d->lower, a, &entry.path, e);
        if (rc == 0)
            rc = oci_layer_writer_add(d->writer, &entry, e);
        oci_entry_fini(&entry);
    }
    return rc;
}

static int write_all(struct diff *d, const struct sink *to, struct oci_layer_facts *out,
                     struct err *e)
{
    int rc = oci_layer_writer_new(&d->writer, to, d->options->compression, e);
    for (size_t i = 0; rc == 0 && i < d->upper.count; i++) {
        if (!d->wanted[i])
            continue;
        rc = write_node(d, i, e);
        if (rc == 0 && d->matches[i] != NONE && peek(&d->upper, i).type == EXT4_DIRECTORY)
            rc = write_whiteouts(d, d->matches[i], e);
    }
    return rc < 0 ? rc : oci_layer_writer_finish(d->writer, out, e);
}

int push_diff_write(const struct push_diff *o, const struct sink *to, struct oci_layer_facts *out,
                    struct err *e)
{
    struct diff d = {.options = o};
    int rc = open_sides(&d, e);
    if (rc == 0)
        rc = choose(&d, e);
    if (rc == 0)
        rc = write_all(&d, to, out, e);
    diff_fini(&d);
    return rc;
}
