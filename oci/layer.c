/* SPDX-License-Identifier: MIT */
/*
 * A layer blob becomes a list of entries: libarchive reads the tar from our decompressed stream,
 * file data goes to the caller's oci_data_ops, everything else into the index.
 *
 * What libarchive leaves to its caller, and is settled here:
 * - Names are bytes to us, text to libarchive. In the C locale it keeps the bytes: it tries to
 *   convert PAX names from UTF-8, fails for every non-ASCII one, warns, and hands out the original.
 *   So each read runs in its own C locale and takes that one warning (errno EILSEQ) for success;
 *   any other warning means that something would be lost, and refuses the layer.
 * - Sparse maps arrive unchecked: offsets must rise and stay inside the file, and the bytes
 *   received must be those that the map promised.
 * - What it misreads without a word is set right before it sees the bytes (tar_filter.c); PAX times
 *   are taken from there.
 * - It stops at the tar's end mark. The stream is read on to its own end, for the digests.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "oci/internal.h"

/* Attributes of overlayfs describe a host's mounts; they are not image content (layer.md). */
#define OVERLAY_XATTRS "trusted.overlay."

struct reader {
    const struct oci_layer_options *options;
    struct oci_stream *stream;
    struct oci_tar *tar;
    struct archive *archive;
    struct oci_layer *layer;
    struct err *e;
    int failed; /* the class of an error that a callback met; `e` holds it */
};

/* ---- The index in memory ---- */

void oci_layer_free(struct oci_layer *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->count; i++)
        oci_entry_fini(&l->entries[i]);
    free(l->entries);
    free(l);
}

size_t oci_layer_count(const struct oci_layer *l)
{
    return l->count;
}

const struct oci_entry *oci_layer_entry(const struct oci_layer *l, size_t index)
{
    return &l->entries[index];
}

static size_t entry_memory(const struct oci_entry *entry)
{
    size_t len = sizeof(*entry) + strlen(entry->path) + 1;
    if (entry->target)
        len += strlen(entry->target) + 1;
    for (size_t i = 0; i < entry->xattr_count; i++)
        len += sizeof(*entry->xattrs) + strlen(entry->xattrs[i].name) + entry->xattrs[i].value_len;
    return len + entry->extent_count * sizeof(*entry->extents);
}

int oci_layer_new(struct oci_layer **out, struct err *e)
{
    *out = mem_zalloc(sizeof(**out));
    return *out ? 0 : err_nomem(e, "layer index");
}

void oci_layer_drop(struct oci_layer *l, const bool *marks)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->count; i++) {
        if (marks[i])
            oci_entry_fini(&l->entries[i]);
        else
            l->entries[kept++] = l->entries[i];
    }
    l->count = kept;
}

int oci_layer_add(struct oci_layer *l, struct oci_entry *entry, struct err *e)
{
    l->memory_len += entry_memory(entry);
    int rc = 0;
    if (l->memory_len > LIMIT_LAYER_INDEX)
        rc = err_set(e, ERR_LIMIT, "the index of the layer needs more than %zu bytes",
                     LIMIT_LAYER_INDEX);
    if (rc == 0)
        rc = mem_grow(&l->entries, &l->capacity, l->count + 1, sizeof(*l->entries), e);
    if (rc < 0) {
        oci_entry_fini(entry);
        return rc;
    }
    l->entries[l->count++] = *entry;
    *entry = (struct oci_entry){0};
    return 0;
}

/* ---- libarchive ---- */

static la_ssize_t read_callback(struct archive *a, void *ctx, const void **data)
{
    struct reader *r = ctx;
    size_t len = 0;
    if (r->failed < 0)
        return ARCHIVE_FATAL;
    r->failed = oci_tar_read(r->tar, data, &len, r->e);
    if (r->failed < 0) {
        archive_set_error(a, EIO, "layer stream");
        return ARCHIVE_FATAL;
    }
    return (la_ssize_t)len;
}

/* The error of a libarchive call; an error of our own callbacks comes first. */
static int archive_failure(struct reader *r)
{
    if (r->failed < 0)
        return r->failed;
    if (archive_errno(r->archive) == ENOMEM)
        return err_nomem(r->e, "tar reader");
    const char *text = archive_error_string(r->archive);
    return err_set(r->e, ERR_CORRUPT, "bad tar archive: %s", text ? text : "damaged");
}

static int open_archive(struct reader *r)
{
    r->archive = archive_read_new();
    if (!r->archive)
        return err_nomem(r->e, "tar reader");
    struct archive *a = r->archive;
    if (archive_read_support_format_tar(a) != ARCHIVE_OK ||
        archive_read_support_format_empty(a) != ARCHIVE_OK ||
        archive_read_set_format_option(a, "tar", "mac-ext", NULL) != ARCHIVE_OK ||
        archive_read_set_format_option(a, "tar", "read_concatenated_archives", NULL) !=
            ARCHIVE_OK ||
        archive_read_set_read_callback(a, read_callback) != ARCHIVE_OK ||
        archive_read_set_callback_data(a, r) != ARCHIVE_OK || archive_read_open1(a) != ARCHIVE_OK)
        return archive_failure(r);
    return 0;
}

/* ---- Metadata of one entry ---- */

static int read_id(uint32_t *out, int64_t id, const char *what, struct err *e)
{
    if (id < 0 || id > UINT32_MAX)
        return err_set(e, ERR_LIMIT, "%s %lld is not between 0 and 4294967295", what,
                       (long long)id);
    *out = (uint32_t)id;
    return 0;
}

static void read_mtime(struct oci_entry *entry, struct archive_entry *from,
                       const struct oci_tar_facts *facts)
{
    entry->mtime_seconds = facts->has_mtime ? facts->mtime_seconds : archive_entry_mtime(from);
    entry->mtime_nanoseconds = facts->mtime_nanoseconds;
}

static int read_device(struct oci_entry *entry, struct archive_entry *from, struct err *e)
{
    uint64_t major = archive_entry_rdevmajor(from);
    uint64_t minor = archive_entry_rdevminor(from);
    /* Linux: include/linux/kdev_t.h, 12 bits of major and 20 of minor number. */
    if (major >= 1u << 12 || minor >= 1u << 20)
        return err_set(e, ERR_LIMIT, "device %llu:%llu does not exist on Linux",
                       (unsigned long long)major, (unsigned long long)minor);
    entry->device_major = (uint32_t)major;
    entry->device_minor = (uint32_t)minor;
    return 0;
}

static bool has_xattr(const struct oci_entry *entry, const char *name)
{
    for (size_t i = 0; i < entry->xattr_count; i++)
        if (strcmp(entry->xattrs[i].name, name) == 0)
            return true;
    return false;
}

static int add_xattr(struct oci_entry *entry, const char *name, const void *value, size_t len,
                     struct err *e)
{
    struct oci_xattr *x = &entry->xattrs[entry->xattr_count];
    if (*name == 0 || strlen(name) > OCI_MAX_NAME)
        return err_set(e, ERR_LIMIT, "an extended attribute with a name of %zu bytes",
                       strlen(name));
    x->name = mem_strdup(name);
    x->value = mem_dup(value, len);
    x->value_len = len;
    entry->xattr_count++; /* counted before the check, so that fini frees both */
    return x->name && x->value ? 0 : err_nomem(e, "extended attribute");
}

/*
 * libarchive lists the newest record first, so the first of equal names is the one that counts
 * (POSIX pax: the last record wins). A record without a value stands for no attribute.
 */
static int read_xattrs(struct oci_entry *entry, struct archive_entry *from, struct err *e)
{
    enum { MAX_COUNT = 4096 };
    int count = archive_entry_xattr_reset(from);
    if (count <= 0)
        return 0;
    if (count > MAX_COUNT)
        return err_set(e, ERR_LIMIT, "%d extended attributes, at most %d", count, MAX_COUNT);
    entry->xattrs = mem_array((size_t)count, sizeof(*entry->xattrs));
    if (!entry->xattrs)
        return err_nomem(e, "extended attributes");
    const char *name;
    const void *value;
    size_t len;
    size_t total = 0;
    while (archive_entry_xattr_next(from, &name, &value, &len) == ARCHIVE_OK) {
        if (len == 0 || has_xattr(entry, name) ||
            strncmp(name, OVERLAY_XATTRS, strlen(OVERLAY_XATTRS)) == 0)
            continue;
        total += strlen(name) + len;
        if (total > LIMIT_XATTRS)
            return err_set(e, ERR_LIMIT, "more than %zu bytes of extended attributes",
                           LIMIT_XATTRS);
        int rc = add_xattr(entry, name, value, len, e);
        if (rc < 0)
            return rc;
    }
    oci_entry_sort_xattrs(entry);
    return 0;
}

static int read_symlink(struct oci_entry *entry, struct archive_entry *from, struct err *e)
{
    const char *target = archive_entry_symlink(from);
    if (!target || *target == 0)
        return err_set(e, ERR_CORRUPT, "a symbolic link without a target");
    if (strlen(target) >= LIMIT_PATH)
        return err_set(e, ERR_LIMIT, "a symbolic link of %zu bytes", strlen(target));
    entry->target = mem_strdup(target);
    return entry->target ? 0 : err_nomem(e, "link target");
}

static int read_type(struct oci_entry *entry, struct archive_entry *from, struct err *e)
{
    const char *raw = archive_entry_pathname(from);
    size_t len = strlen(raw);
    switch (archive_entry_filetype(from)) {
    case AE_IFREG:
        /* Tar before POSIX had no type for directories but the slash. */
        entry->type = len > 0 && raw[len - 1] == '/' ? OCI_DIRECTORY : OCI_FILE;
        break;
    case AE_IFDIR:
        entry->type = OCI_DIRECTORY;
        break;
    case AE_IFLNK:
        entry->type = OCI_SYMLINK;
        return read_symlink(entry, from, e);
    case AE_IFCHR:
        entry->type = OCI_CHARACTER_DEVICE;
        return read_device(entry, from, e);
    case AE_IFBLK:
        entry->type = OCI_BLOCK_DEVICE;
        return read_device(entry, from, e);
    case AE_IFIFO:
        entry->type = OCI_FIFO;
        break;
    default:
        return err_set(e, ERR_UNSUPPORTED, "a tar entry of a type that no image has");
    }
    return 0;
}

static int read_metadata(struct oci_entry *entry, struct archive_entry *from,
                         const struct oci_tar_facts *facts, struct err *e)
{
    if (archive_entry_hardlink(from)) {
        entry->type = OCI_HARDLINK;
        return oci_entry_link(entry, archive_entry_hardlink(from), e);
    }
    int rc = read_type(entry, from, e);
    if (rc == 0)
        rc = read_id(&entry->uid, archive_entry_uid(from), "uid", e);
    if (rc == 0)
        rc = read_id(&entry->gid, archive_entry_gid(from), "gid", e);
    if (rc == 0)
        rc = read_xattrs(entry, from, e);
    if (rc < 0)
        return rc;
    entry->mode = (uint32_t)archive_entry_perm(from) & 07777;
    read_mtime(entry, from, facts);
    if (entry->type == OCI_FILE) {
        int64_t size = archive_entry_size(from);
        if (size < 0 || (uint64_t)size > OCI_MAX_FILE)
            return err_set(e, ERR_LIMIT, "a file of %lld bytes", (long long)size);
        entry->size = (uint64_t)size;
    }
    return 0;
}

/* ---- Data of one file ---- */

/* Bytes that the archive must hold for this file: its size, less the holes of a sparse map. */
static uint64_t promised_bytes(const struct oci_entry *entry, struct archive_entry *from)
{
    if (archive_entry_sparse_reset(from) == 0)
        return entry->size;
    uint64_t total = 0;
    int64_t off;
    int64_t len;
    while (archive_entry_sparse_next(from, &off, &len) == ARCHIVE_OK)
        total += (uint64_t)len;
    return total;
}

static int copy_data(struct reader *r, const struct oci_entry *entry, uint64_t *total)
{
    const struct oci_data_ops *ops = r->options->ops;
    uint64_t end = 0;
    for (;;) {
        const void *data;
        size_t len;
        int64_t off;
        int status = archive_read_data_block(r->archive, &data, &len, &off);
        if (status == ARCHIVE_EOF)
            return 0;
        if (status != ARCHIVE_OK)
            return archive_failure(r);
        if (off < 0 || (uint64_t)off < end || (uint64_t)off > entry->size ||
            len > entry->size - (uint64_t)off)
            return err_set(r->e, ERR_CORRUPT, "the sparse map is out of order or leaves the file");
        int rc = ops ? ops->file_data(r->options->ctx, (uint64_t)off, data, len, r->e) : 0;
        if (rc < 0)
            return rc;
        end = (uint64_t)off + len;
        *total += len;
    }
}

static int read_data(struct reader *r, struct oci_entry *entry, struct archive_entry *from)
{
    const struct oci_data_ops *ops = r->options->ops;
    uint64_t promised = promised_bytes(entry, from);
    uint64_t total = 0;
    int rc = ops ? ops->file_begin(r->options->ctx, entry->size, r->e) : 0;
    if (rc == 0)
        rc = copy_data(r, entry, &total);
    if (rc < 0)
        return rc;
    /* A file that is one hole may come with an empty map, which libarchive does not report. */
    if (total != promised && !(promised == entry->size && total == 0))
        return err_set(r->e, ERR_CORRUPT, "%llu bytes of data where %llu were promised",
                       (unsigned long long)total, (unsigned long long)promised);
    if (!ops)
        return 0;
    return ops->file_end(r->options->ctx, &entry->extents, &entry->extent_count, r->e);
}

/* ---- The pass ---- */

/* What the tar says of the entry must make sense for what it became. */
static int check_facts(const struct oci_entry *entry, const struct oci_tar_facts *facts,
                       struct err *e)
{
    if (facts->type != 0 && !strchr("01234567S", facts->type)) {
        char type[2] = {facts->type, 0};
        char text[OCI_QUOTE_MAX];
        return err_set(e, ERR_UNSUPPORTED, "a tar entry of type %s, which no image has",
                       oci_text_quote(type, text));
    }
    if (entry->type != OCI_FILE && facts->data > 0)
        return err_set(e, ERR_CORRUPT, "%llu bytes of data behind an entry that is no file",
                       (unsigned long long)facts->data);
    return 0;
}

static int read_named_entry(struct reader *r, struct oci_entry *entry, struct archive_entry *from,
                            const char *raw, int status)
{
    if (status != ARCHIVE_OK && !(status == ARCHIVE_WARN && archive_errno(r->archive) == EILSEQ))
        return archive_failure(r);
    if (archive_read_header_position(r->archive) != (int64_t)oci_tar_facts(r->tar)->off)
        return err_set(r->e, ERR_CORRUPT, "bad tar archive: its headers can be read in two ways");
    bool skip = false;
    int rc = oci_entry_name(entry, &skip, raw, r->e);
    if (rc < 0 || skip)
        return rc;
    if (entry->type != OCI_WHITEOUT && entry->type != OCI_OPAQUE) {
        rc = read_metadata(entry, from, oci_tar_facts(r->tar), r->e);
        if (rc == 0)
            rc = check_facts(entry, oci_tar_facts(r->tar), r->e);
    }
    if (rc == 0 && *entry->path == 0 && entry->type != OCI_DIRECTORY && entry->type != OCI_OPAQUE)
        rc = err_set(r->e, ERR_CORRUPT, "the root of the image is not a directory");
    if (rc == 0 && entry->type == OCI_FILE && entry->size > 0)
        rc = read_data(r, entry, from);
    return rc < 0 ? rc : oci_layer_add(r->layer, entry, r->e);
}

/* One entry; *ended at the end of the tar. */
static int read_entry(struct reader *r, bool *ended)
{
    struct archive_entry *from = NULL;
    int status = archive_read_next_header(r->archive, &from);
    if (r->failed < 0)
        return r->failed;
    *ended = status == ARCHIVE_EOF;
    if (*ended)
        return 0;
    const char *raw =
        status == ARCHIVE_OK || status == ARCHIVE_WARN ? archive_entry_pathname(from) : NULL;
    if (!raw) {
        int rc = archive_failure(r);
        return r->layer->count > 0 ? err_in(r->e, "after %zu entries", r->layer->count) : rc;
    }
    struct oci_entry entry = {0};
    int rc = read_named_entry(r, &entry, from, raw, status);
    oci_entry_fini(&entry);
    if (rc < 0) {
        char name[OCI_QUOTE_MAX];
        return err_in(r->e, "entry %s", oci_text_quote(raw, name));
    }
    return 0;
}

static int read_entries(struct reader *r)
{
    int rc = open_archive(r);
    bool ended = false;
    while (rc == 0 && !ended)
        rc = read_entry(r, &ended);
    size_t len = 1;
    while (rc == 0 && len > 0) {
        const void *rest;
        rc = oci_stream_read(r->stream, &rest, &len, r->e);
    }
    return rc;
}

/* Errors of content are first checked against the digest: a damaged download is said to be one. */
static int explain(struct reader *r, int rc)
{
    if (rc != -ERR_CORRUPT && rc != -ERR_LIMIT && rc != -ERR_UNSUPPORTED)
        return rc;
    struct err blob = ERR_INIT;
    if (r->options->wide && *r->options->wide)
        return rc; /* it is read again, to its end */
    if (oci_stream_check_blob(r->stream, &blob) == -ERR_DIGEST) {
        *r->e = blob;
        return -ERR_DIGEST;
    }
    return rc;
}

static int read_layer(struct reader *r)
{
    int rc = read_entries(r);
    if (rc < 0)
        return explain(r, rc);
    rc = oci_stream_check_blob(r->stream, r->e);
    if (rc < 0 || r->options->diff_id.algorithm == 0)
        return rc;
    return oci_stream_check_plain(r->stream, &r->options->diff_id, r->e);
}

int oci_layer_read(struct oci_layer **out, const struct source *blob,
                   const struct oci_layer_options *options, struct err *e)
{
    AUTO_OCI_LAYER struct oci_layer *layer = mem_zalloc(sizeof(*layer));
    if (!layer)
        return err_nomem(e, "layer index");
    char text[DIGEST_TEXT_MAX];
    digest_print(&options->blob.digest, text);
    AUTO_OCI_STREAM struct oci_stream *stream = NULL;
    struct oci_stream_options how = {
        .blob = &options->blob,
        .plain_algorithm = options->diff_id.algorithm ? options->diff_id.algorithm : DIGEST_SHA256,
        .threads = options->threads,
        .wide = options->wide,
        .cancel = options->cancel};
    int rc = oci_stream_new(&stream, blob, &how, e);
    AUTO_OCI_TAR struct oci_tar *tar = NULL;
    if (rc == 0)
        rc = oci_tar_new(&tar, stream, e);
    if (rc < 0)
        return err_in(e, "layer %s", text);
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return err_nomem(e, "C locale");
    locale_t before = uselocale(plain);
    struct reader r = {.options = options, .stream = stream, .tar = tar, .layer = layer, .e = e};
    rc = read_layer(&r);
    archive_read_free(r.archive);
    uselocale(before);
    freelocale(plain);
    if (rc < 0)
        return err_in(e, "layer %s", text);
    *out = MOVE(layer);
    return 0;
}
