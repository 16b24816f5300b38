/* SPDX-License-Identifier: MIT */
/*
 * A tar as a read-only set of files: `docker save`, a packed image layout.
 *
 * One pass over the headers (libarchive; data is skipped by seeking) notes where each file's bytes
 * lie; after that files are read in place. Nothing is ever unpacked under a name of the archive's,
 * and its links are followed among its own names only. A compressed archive cannot be read in
 * place: it becomes plain once, in a temporary file.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "oci/internal.h"

enum {
    MAX_ENTRIES = 1 << 17,    /* of all kinds */
    MAX_NAMES_LEN = 64 << 20, /* bytes of all names and link targets */
    MAX_LINK_DEPTH = 16,      /* links that point to links */
    READ_LEN = 64 << 10,      /* bytes of one read while the headers are gone through */
    COPY_LEN = 1 << 20,       /* bytes hashed at once */
    TAR_MAGIC_LEN = 6,
};

/* A name of the archive. Of several with the same name the last counts, as if it were unpacked. */
struct member {
    char *name; /* cleaned: "a/b" */
    size_t order;
    bool is_link;
    char *target; /* of a link: cleaned; NULL when it leads out of the archive */
    uint64_t off; /* of a file: where its bytes lie */
    uint64_t size;
};

struct oci_archive {
    char *path; /* as it was given, for messages */
    const struct cancel *cancel;
    int fd; /* of the plain tar */
    uint64_t size;
    struct file_tmp unpacked; /* holds `fd` when the archive came compressed */
    struct member *members;   /* sorted by name, then order */
    size_t count;
    size_t capacity;
    size_t names_len;
};

void oci_archive_close(struct oci_archive *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->count; i++) {
        free(a->members[i].name);
        free(a->members[i].target);
    }
    free(a->members);
    if (a->unpacked.fd < 0)
        file_close(&a->fd);
    file_tmp_abort(&a->unpacked);
    free(a->path);
    free(a);
}

/* ---- Names ---- */

/* Appends the components of `name` to the cleaned path `out`; false when it climbs above the top,
 * is too long, or absolute. */
static bool append_clean(char *out, size_t capacity, const char *name)
{
    size_t len = strlen(out);
    if (*name == '/')
        return false;
    while (*name) {
        size_t part = strcspn(name, "/");
        if (part == 2 && name[0] == '.' && name[1] == '.') {
            if (len == 0)
                return false;
            char *slash = strrchr(out, '/');
            len = slash ? (size_t)(slash - out) : 0;
            out[len] = 0;
        } else if (part > 0 && !(part == 1 && name[0] == '.')) {
            if (len + 1 + part + 1 > capacity)
                return false;
            if (len > 0)
                out[len++] = '/';
            memcpy(out + len, name, part);
            len += part;
            out[len] = 0;
        }
        name += part;
        name += *name == '/';
    }
    return true;
}

/* The target of a symbolic link that stands in the directory of `name`. */
static bool clean_symlink(char *out, size_t capacity, const char *name, const char *target)
{
    const char *slash = strrchr(name, '/');
    size_t len = slash ? (size_t)(slash - name) : 0;
    if (len + 1 > capacity)
        return false;
    memcpy(out, name, len);
    out[len] = 0;
    return append_clean(out, capacity, target);
}

/* ---- The pass over the headers ---- */

struct pass {
    struct oci_archive *into;
    struct archive *archive;
    const struct cancel *cancel;
    uint64_t off; /* of the next read */
    uint8_t buffer[READ_LEN];
};

static la_ssize_t read_callback(struct archive *a, void *ctx, const void **data)
{
    struct pass *p = ctx;
    ssize_t n;
    do {
        n = pread(p->into->fd, p->buffer, sizeof(p->buffer), (off_t)p->off);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        archive_set_error(a, errno, "reading: %s", strerror(errno));
        return ARCHIVE_FATAL;
    }
    p->off += (uint64_t)n;
    *data = p->buffer;
    return n;
}

static la_int64_t skip_callback(struct archive *a UNUSED, void *ctx, la_int64_t request)
{
    struct pass *p = ctx;
    uint64_t left = p->into->size > p->off ? p->into->size - p->off : 0;
    uint64_t len = (uint64_t)request < left ? (uint64_t)request : left;
    p->off += len;
    return (la_int64_t)len;
}

static int pass_failure(const struct pass *p, struct err *e)
{
    if (archive_errno(p->archive) == ENOMEM)
        return err_nomem(e, "tar reader");
    const char *text = archive_error_string(p->archive);
    return err_set(e, ERR_CORRUPT, "bad tar archive: %s", text ? text : "damaged");
}

static int add_member(struct oci_archive *a, const char *name, struct member *m, struct err *e)
{
    a->names_len += strlen(name) + (m->target ? strlen(m->target) : 0);
    if (a->count == MAX_ENTRIES || a->names_len > MAX_NAMES_LEN)
        return err_set(e, ERR_LIMIT, "more than %d entries, or %d bytes of names", MAX_ENTRIES,
                       MAX_NAMES_LEN);
    int rc = mem_grow(&a->members, &a->capacity, a->count + 1, sizeof(*a->members), e);
    if (rc < 0)
        return rc;
    m->name = mem_strdup(name);
    if (!m->name)
        return err_nomem(e, "archive");
    m->order = a->count;
    a->members[a->count++] = *m;
    return 0;
}

/* `target` is NULL where libarchive finds none. */
static int add_link(struct oci_archive *a, const char *name, const char *target, bool is_hard,
                    struct err *e)
{
    char clean[LIMIT_PATH] = "";
    bool inside = target && (is_hard ? append_clean(clean, sizeof(clean), target)
                                     : clean_symlink(clean, sizeof(clean), name, target));
    struct member m = {.is_link = true};
    if (inside) {
        m.target = mem_strdup(clean);
        if (!m.target)
            return err_nomem(e, "archive");
    }
    int rc = add_member(a, name, &m, e);
    if (rc < 0)
        free(m.target);
    return rc;
}

static int add_entry(struct pass *p, const char *name, struct archive_entry *entry, struct err *e)
{
    struct oci_archive *a = p->into;
    if (archive_entry_hardlink(entry))
        return add_link(a, name, archive_entry_hardlink(entry), true, e);
    if (archive_entry_filetype(entry) == AE_IFLNK)
        return add_link(a, name, archive_entry_symlink(entry), false, e);
    if (archive_entry_filetype(entry) != AE_IFREG)
        return 0;
    if (archive_entry_sparse_count(entry) > 0)
        return err_set(e, ERR_UNSUPPORTED, "it is stored as a sparse file");
    int64_t size = archive_entry_size(entry);
    int64_t off = archive_filter_bytes(p->archive, 0);
    if (off < 0 || size < 0 || (uint64_t)off > a->size || (uint64_t)size > a->size - (uint64_t)off)
        return err_set(e, ERR_CORRUPT, "the archive is cut short");
    struct member m = {.off = (uint64_t)off, .size = (uint64_t)size};
    return add_member(a, name, &m, e);
}

static int read_header(struct pass *p, bool *ended, struct err *e)
{
    struct archive_entry *entry = NULL;
    int rc = cancel_check(p->cancel, e);
    if (rc < 0)
        return rc;
    int status = archive_read_next_header(p->archive, &entry);
    *ended = status == ARCHIVE_EOF;
    if (*ended)
        return 0;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
        return pass_failure(p, e);
    const char *raw = archive_entry_pathname(entry);
    char name[LIMIT_PATH] = "";
    char quoted[OCI_QUOTE_MAX];
    if (!raw)
        return 0; /* no name that an image could use */
    if (!append_clean(name, sizeof(name), raw))
        return err_set(e, ERR_CORRUPT, "entry %s: the name leads out of the archive",
                       oci_text_quote(raw, quoted));
    if (!name[0])
        return 0;
    rc = add_entry(p, name, entry, e);
    return rc < 0 ? err_in(e, "entry %s", oci_text_quote(raw, quoted)) : 0;
}

static int compare_members(const void *a, const void *b)
{
    const struct member *x = a;
    const struct member *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->order > y->order) - (x->order < y->order);
}

static int read_headers(struct pass *p, struct err *e)
{
    struct archive *a = p->archive;
    if (archive_read_support_format_tar(a) != ARCHIVE_OK ||
        archive_read_set_format_option(a, "tar", "mac-ext", NULL) != ARCHIVE_OK ||
        archive_read_set_read_callback(a, read_callback) != ARCHIVE_OK ||
        archive_read_set_skip_callback(a, skip_callback) != ARCHIVE_OK ||
        archive_read_set_callback_data(a, p) != ARCHIVE_OK)
        return pass_failure(p, e);
    if (archive_read_open1(a) != ARCHIVE_OK)
        return err_set(e, ERR_INPUT, "not a tar archive");
    bool ended = false;
    int rc = 0;
    while (rc == 0 && !ended)
        rc = read_header(p, &ended, e);
    if (rc == 0 && p->into->count > 0)
        qsort(p->into->members, p->into->count, sizeof(*p->into->members), compare_members);
    return rc;
}

static int index_members(struct oci_archive *a, const struct cancel *c, struct err *e)
{
    struct pass *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "tar reader");
    p->into = a;
    p->cancel = c;
    p->archive = archive_read_new();
    int rc = p->archive ? read_headers(p, e) : err_nomem(e, "tar reader");
    archive_read_free(p->archive);
    free(p);
    return rc;
}

/* ---- Compressed archives ---- */

static int copy_stream(struct oci_archive *a, struct oci_stream *stream, struct err *e)
{
    const void *data = NULL;
    size_t len = 1;
    int rc = 0;
    while (rc == 0 && len > 0) {
        rc = oci_stream_read(stream, &data, &len, e);
        if (rc == 0 && len > 0)
            rc = file_write_full(a->unpacked.fd, data, len, e);
        a->size += len;
    }
    return rc;
}

/* Makes `fd` a plain tar. The ratio and size ceilings are those of layers. */
static int unpack(struct oci_archive *a, char *type, int tmp_dir, const struct cancel *c,
                  struct err *e)
{
    struct source from = {0};
    int compressed = a->fd;
    a->fd = -1;
    int rc = source_from_fd(&from, compressed, e);
    if (rc < 0)
        return rc;
    struct oci_descriptor d = {
        .media_type = type, .digest = {.algorithm = DIGEST_SHA256}, .size = from.size};
    struct oci_stream_options options = {.blob = &d, .plain_algorithm = DIGEST_SHA256, .cancel = c};
    AUTO_OCI_STREAM struct oci_stream *stream = NULL;
    rc = file_tmp_open(&a->unpacked, tmp_dir, e);
    if (rc == 0)
        rc = oci_stream_new(&stream, &from, &options, e);
    a->size = 0;
    if (rc == 0)
        rc = copy_stream(a, stream, e);
    a->fd = a->unpacked.fd;
    source_close(&from);
    return rc < 0 ? err_in(e, "unpacking") : 0;
}

enum packing { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD, PACKED_OTHERWISE };

static enum packing packing_of(const uint8_t *at, size_t len)
{
    static const struct {
        uint8_t magic[TAR_MAGIC_LEN];
        size_t len;
        enum packing packing;
    } known[] = {
        {{0x1f, 0x8b}, 2, PACKED_GZIP},                       /* gzip: RFC 1952 */
        {{0x28, 0xb5, 0x2f, 0xfd}, 4, PACKED_ZSTD},           /* zstd: RFC 8878 */
        {{'B', 'Z', 'h'}, 3, PACKED_OTHERWISE},               /* bzip2 */
        {{0xfd, '7', 'z', 'X', 'Z', 0}, 6, PACKED_OTHERWISE}, /* xz */
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (len >= known[i].len && memcmp(at, known[i].magic, known[i].len) == 0)
            return known[i].packing;
    }
    return PACKED_NOT;
}

static int open_plain(struct oci_archive *a, int tmp_dir, const struct cancel *c, struct err *e)
{
    char gzip_type[] = OCI_TYPE_LAYER "+gzip";
    char zstd_type[] = OCI_TYPE_LAYER "+zstd";
    struct stat status;
    /* O_NONBLOCK: a FIFO under that name must not hang us. */
    int rc = file_open(&a->fd, AT_FDCWD, a->path, O_RDONLY | O_NONBLOCK, 0, e);
    if (rc < 0)
        return rc;
    if (fstat(a->fd, &status) < 0)
        return err_sys(e, "%s", a->path);
    if (!S_ISREG(status.st_mode)) {
        err_set(e, ERR_INPUT, "%s is not a file", a->path);
        return S_ISDIR(status.st_mode) ? err_hint(e, "oci:%s names an image layout", a->path)
                                       : -ERR_INPUT;
    }
    a->size = (uint64_t)status.st_size;
    uint8_t head[TAR_MAGIC_LEN];
    ssize_t n = pread(a->fd, head, sizeof(head), 0);
    if (n < 0)
        return err_sys(e, "reading");
    switch (packing_of(head, (size_t)n)) {
    case PACKED_NOT:
        return 0;
    case PACKED_GZIP:
        return unpack(a, gzip_type, tmp_dir, c, e);
    case PACKED_ZSTD:
        return unpack(a, zstd_type, tmp_dir, c, e);
    case PACKED_OTHERWISE:
        break;
    }
    err_set(e, ERR_UNSUPPORTED, "the archive is compressed with something else than gzip or zstd");
    return err_hint(e, "unpack it first: bunzip2 or unxz");
}

int oci_archive_open(struct oci_archive **out, const char *path, int tmp_dir,
                     const struct cancel *c, struct err *e)
{
    AUTO_OCI_ARCHIVE struct oci_archive *a = mem_zalloc(sizeof(*a));
    if (!a)
        return err_nomem(e, "archive");
    a->fd = -1;
    a->unpacked.fd = -1;
    a->cancel = c;
    a->path = mem_strdup(path);
    int rc = a->path ? open_plain(a, tmp_dir, c, e) : err_nomem(e, "archive");
    if (rc == 0)
        rc = index_members(a, c, e);
    if (rc < 0)
        return err_in(e, "archive %s", path);
    *out = MOVE(a);
    return 0;
}

/* ---- Files of the archive ---- */

const char *oci_archive_path(const struct oci_archive *a)
{
    return a->path;
}

const struct cancel *oci_archive_cancel(const struct oci_archive *a)
{
    return a->cancel;
}

static const struct member *find_member(const struct oci_archive *a, const char *name)
{
    size_t low = 0;
    size_t high = a->count;
    while (low < high) { /* the first one behind all of that name */
        size_t middle = low + (high - low) / 2;
        if (strcmp(a->members[middle].name, name) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && strcmp(a->members[low - 1].name, name) == 0 ? &a->members[low - 1] : NULL;
}

static int find_file(const struct oci_archive *a, const char *name, const struct member **out,
                     struct err *e)
{
    char clean[LIMIT_PATH] = "";
    char quoted[OCI_QUOTE_MAX];
    oci_text_quote(name, quoted);
    if (!append_clean(clean, sizeof(clean), name))
        return err_set(e, ERR_CORRUPT, "%s: the name leads out of the archive", quoted);
    const struct member *m = find_member(a, clean);
    for (int depth = 0; m && m->is_link; depth++) {
        if (depth == MAX_LINK_DEPTH)
            return err_set(e, ERR_CORRUPT, "%s: more than %d links to follow", quoted,
                           MAX_LINK_DEPTH);
        if (!m->target)
            return err_set(e, ERR_CORRUPT, "%s: a link that leads nowhere, or out of the archive",
                           quoted);
        m = find_member(a, m->target);
    }
    if (!m)
        return err_set(e, ERR_NOTFOUND, "%s: not in the archive", quoted);
    *out = m;
    return 0;
}

bool oci_archive_has(const struct oci_archive *a, const char *name)
{
    struct err e = ERR_INIT;
    const struct member *m = NULL;
    return find_file(a, name, &m, &e) == 0;
}

/* A part of the archive's file. */
struct part {
    int fd;
    uint64_t off;
    uint64_t size;
};

static int part_read(void *self, uint64_t off, void *data, size_t len, size_t *got, struct err *e)
{
    const struct part *p = self;
    uint64_t left = off < p->size ? p->size - off : 0;
    size_t want = len < left ? len : (size_t)left;
    ssize_t n;
    do {
        n = pread(p->fd, data, want, (off_t)(p->off + off));
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(e, "reading at offset %llu", (unsigned long long)(p->off + off));
    *got = (size_t)n;
    return 0;
}

static void part_close(void *self)
{
    struct part *p = self;
    file_close(&p->fd);
    free(p);
}

int oci_archive_file(const struct oci_archive *a, const char *name, struct source *out,
                     struct err *e)
{
    const struct member *m = NULL;
    int rc = find_file(a, name, &m, e);
    if (rc < 0)
        return rc;
    struct part *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "source");
    *p = (struct part){.fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0), .off = m->off, .size = m->size};
    if (p->fd < 0) {
        free(p);
        return err_sys(e, "archive %s", a->path);
    }
    *out = (struct source){.read = part_read, .close = part_close, .self = p, .size = m->size};
    return 0;
}

int oci_source_read(const struct source *from, struct buf *out, struct err *e)
{
    if (from->size > out->ceiling)
        return err_set(e, ERR_LIMIT, "a document of %llu bytes, more than %zu",
                       (unsigned long long)from->size, out->ceiling);
    AUTO_FREE char *data = mem_zalloc((size_t)from->size);
    if (!data)
        return err_nomem(e, "document");
    int rc = source_read_full(from, 0, data, (size_t)from->size, e);
    return rc < 0 ? rc : buf_add(out, data, (size_t)from->size, e);
}

int oci_source_digest(const struct source *from, const struct cancel *c, struct digest *out,
                      struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    AUTO_FREE char *data = mem_zalloc(COPY_LEN);
    if (!data)
        return err_nomem(e, "hash");
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    for (uint64_t off = 0; rc == 0 && off < from->size;) {
        size_t len = from->size - off < COPY_LEN ? (size_t)(from->size - off) : COPY_LEN;
        rc = cancel_check(c, e);
        if (rc == 0)
            rc = source_read_full(from, off, data, len, e);
        if (rc == 0)
            hasher_add(h, data, len);
        off += len;
    }
    if (rc == 0)
        hasher_finish(h, out);
    return rc;
}
