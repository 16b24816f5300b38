/* SPDX-License-Identifier: MIT */
/*
 * Chunk files: one zstd frame each (docs/formats/store.md), at chunks/ab/<hex of the plain
 * bytes>.
 *
 * The frame carries its content size, so a reader knows before it decompresses whether the result
 * fits; compression is single-threaded, so equal bytes give equal files. A chunk is not synced when
 * it is written (docs/decisions/0001-chunk-durability.md): it is verified whenever it is read, and
 * everything that names chunks syncs them before it appears.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    CHUNK_FILE_MAX = CHUNK_STORED_MAX,
    SEAL_LEN = 16,
};
_Static_assert(CHUNK_STORED_MAX == ZSTD_COMPRESSBOUND(CHUNK_SIZE_MAX), "what zstd may make of it");

struct chunk_codec {
    ZSTD_CCtx *compressor;
    ZSTD_DCtx *decompressor;
    uint8_t *bytes; /* a chunk file's */
};

void chunk_codec_free(struct chunk_codec *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->compressor);
    ZSTD_freeDCtx(c->decompressor);
    free(c->bytes);
    free(c);
}
DEFINE_AUTO(chunk_codec, chunk_codec_free)

/*
 * At its level 3 zstd looks for matches of 5 bytes and more in what is larger than 256 KiB. Those of
 * 4 bytes make such chunks 0.8 % smaller, for 6 % of the time (docs/benchmarks.md, "Ingest").
 */
static bool set_level(ZSTD_CCtx *c, int level)
{
    return !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level)) &&
           (level != CHUNK_LEVEL_DEFAULT ||
            !ZSTD_isError(ZSTD_CCtx_setParameter(c, ZSTD_c_minMatch, CHUNK_MATCH_MIN)));
}

int chunk_codec_new(struct chunk_codec **out, int level, struct err *e)
{
    struct chunk_codec *c CLEANUP(chunk_codec_free_auto_) = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "chunk codec");
    c->compressor = ZSTD_createCCtx();
    c->decompressor = ZSTD_createDCtx();
    c->bytes = mem_zalloc(CHUNK_FILE_MAX);
    if (!c->compressor || !c->decompressor || !c->bytes || !set_level(c->compressor, level))
        return err_nomem(e, "chunk codec");
    *out = MOVE(c);
    return 0;
}

/*
 * What stands behind a frame that was made here: a skippable frame (RFC 8878, 3.1.2), which
 * decoders pass over, with the first bytes of the sha256 of all before it. Bits of a frame can
 * change without changing what it decompresses to; only the seal tells.
 */
static void make_seal(uint8_t seal[SEAL_LEN], const uint8_t *frame, size_t len)
{
    static const uint8_t head[] = {0x5e, 0x2a, 0x4d, 0x18, SEAL_LEN - 8, 0, 0, 0};
    struct digest d;
    digest_bytes(&d, frame, len);
    memcpy(seal, head, sizeof(head));
    memcpy(seal + sizeof(head), d.bytes, SEAL_LEN - sizeof(head));
}

/* A frame that came from elsewhere may have none. */
static int check_seal(const uint8_t *stored, size_t len, struct err *e)
{
    uint8_t seal[SEAL_LEN];
    size_t frame = ZSTD_findFrameCompressedSize(stored, len);
    if (frame == len)
        return 0;
    if (!ZSTD_isError(frame) && frame + SEAL_LEN == len) {
        make_seal(seal, stored, frame);
        if (memcmp(stored + frame, seal, SEAL_LEN) == 0)
            return 0;
    }
    return err_set(e, ERR_CORRUPT, "its stored bytes have changed");
}

int chunk_encode(struct chunk_codec *c, const void *data, size_t len, const void **out,
                 size_t *out_len, struct err *e)
{
    size_t got = ZSTD_compress2(c->compressor, c->bytes, CHUNK_FILE_MAX - SEAL_LEN, data, len);
    if (ZSTD_isError(got))
        return err_set(e, ERR_NOMEM, "compressing a chunk: %s", ZSTD_getErrorName(got));
    make_seal(c->bytes + got, c->bytes, got);
    *out = c->bytes;
    *out_len = got + SEAL_LEN;
    return 0;
}

int chunk_decode(struct chunk_codec *c, const void *stored, size_t stored_len, void *data,
                 size_t *len, struct err *e)
{
    unsigned long long size = ZSTD_getFrameContentSize(stored, stored_len);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size == 0 ||
        size > CHUNK_SIZE_MAX || size % BLOCK_SIZE != 0)
        return err_set(e, ERR_CORRUPT, "not a chunk");
    size_t got = ZSTD_decompressDCtx(c->decompressor, data, CHUNK_SIZE_MAX, stored, stored_len);
    if (ZSTD_isError(got) || got != size)
        return err_set(e, ERR_CORRUPT, "damaged: %s",
                       ZSTD_isError(got) ? ZSTD_getErrorName(got) : "wrong size");
    *len = got;
    return 0;
}

int chunk_decode_file(struct chunk_codec *c, int fd, void *data, size_t *len, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "reading its size");
    if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > CHUNK_FILE_MAX)
        return err_set(e, ERR_CORRUPT, "not a file of a chunk's size");
    size_t stored = (size_t)st.st_size;
    if (file_pread_full(fd, c->bytes, stored, 0, e) < 0)
        return err_in(e, "reading");
    return chunk_decode(c, c->bytes, stored, data, len, e);
}

const char *store_chunk_path(const struct digest *d, char path[CHUNK_PATH_MAX])
{
    char hex[DIGEST_TEXT_MAX];
    digest_hex(d, hex);
    snprintf(path, CHUNK_PATH_MAX, "chunks/%.2s/%s", hex, hex);
    return path;
}

/* A file of no bytes is what some file systems leave after a power cut: not there. */
static bool chunk_stat(struct store *s, const struct digest *d, struct stat *st)
{
    char path[CHUNK_PATH_MAX];
    return d->algorithm == DIGEST_SHA256 &&
           fstatat(store_dir(s), store_chunk_path(d, path), st, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(st->st_mode) && st->st_size > 0;
}

bool store_has_chunk(struct store *s, const struct digest *d)
{
    char path[CHUNK_PATH_MAX];
    return d->algorithm == DIGEST_SHA256 && store_use(s, store_chunk_path(d, path));
}

int store_chunk_stored_size(struct store *s, const struct digest *d, uint64_t *out, struct err *e)
{
    struct stat st;
    char text[DIGEST_TEXT_MAX];
    if (!chunk_stat(s, d, &st))
        return err_set(e, ERR_NOTFOUND, "chunk %s: not in the store", digest_print(d, text));
    *out = (uint64_t)st.st_size;
    return 0;
}

int store_check_chunk(struct store *s, const struct digest *d, struct err *e)
{
    size_t len;
    char text[DIGEST_TEXT_MAX];
    if (!store_has_chunk(s, d))
        return err_set(e, ERR_NOTFOUND, "chunk %s: not in the store", digest_print(d, text));
    if (!store_is_distrusted(s))
        return 0;
    AUTO_FREE void *data = mem_zalloc(CHUNK_SIZE_MAX);
    return data ? store_get_chunk(s, d, data, &len, e) : err_nomem(e, "chunk");
}

/* Whoever sweeps may have seen a file without bytes, or a damaged one, under this name: it must not
 * take the new one for it. */
int store_commit_chunk(struct store *s, const struct digest *d, struct file_tmp *t, struct err *e)
{
    char path[CHUNK_PATH_MAX];
    AUTO_FD int lock = -1;
    int rc = store_use_begin(&lock, s, e);
    return rc < 0 ? rc : file_tmp_commit(t, store_dir(s), store_chunk_path(d, path), false, e);
}

/* Says how much is missing, unless there is room again by now. */
static int tell_room(int fd, size_t need, struct err *e)
{
    struct err room = ERR_INIT;
    if (ftruncate(fd, 0) == 0 && file_need_room(fd, need, &room) < 0)
        *e = room;
    return -(int)e->class;
}

static int chunk_write(struct store *s, struct chunk_codec *c, const void *data, size_t len,
                       const struct digest *d, struct err *e)
{
    const void *bytes;
    size_t bytes_len;
    int rc = chunk_encode(c, data, len, &bytes, &bytes_len, e);
    if (rc < 0)
        return rc;
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    rc = store_begin_chunks(s, e);
    if (rc == 0)
        rc = file_tmp_open(&t, store_tmp_dir(s), e);
    if (rc == 0)
        rc = file_write_full(t.fd, bytes, bytes_len, e);
    if (rc < 0 && e->sys == ENOSPC && t.fd >= 0)
        rc = tell_room(t.fd, bytes_len, e);
    if (rc == 0)
        rc = store_commit_chunk(s, d, &t, e);
    if (rc == 0)
        store_count_chunk(s, bytes_len);
    return rc;
}

int store_put_chunk(struct store *s, const void *data, size_t len, struct digest *out,
                    struct err *e)
{
    if (len == 0 || len > CHUNK_SIZE_MAX || len % BLOCK_SIZE != 0)
        return err_set(e, ERR_INPUT, "a chunk of %zu bytes cannot be stored", len);
    struct digest d;
    digest_bytes(&d, data, len);
    struct err absent = ERR_INIT;
    if (store_check_chunk(s, &d, &absent) == 0) {
        store_count_chunk(s, 0);
        *out = d;
        return 0;
    }
    struct chunk_codec *c;
    int rc = store_take_codec(s, &c, e);
    if (rc < 0)
        return rc;
    rc = chunk_write(s, c, data, len, &d, e);
    store_give_codec(s, c);
    if (rc < 0) {
        char text[DIGEST_TEXT_MAX];
        return err_in(e, "chunk %s", digest_print(&d, text));
    }
    *out = d;
    return 0;
}

/* Out of the way with it: while it has the chunk's name, nobody would write the chunk again. */
static void discard_damaged(struct store *s, const char *path, int fd)
{
    struct stat seen, now;
    struct err ignored = ERR_INIT;
    AUTO_FD int lock = -1; /* so that nobody puts a good one there between look and deed */
    if (store_sweep_begin(&lock, s, &ignored) < 0)
        return;
    if (fstat(fd, &seen) == 0 && fstatat(store_dir(s), path, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
        seen.st_dev == now.st_dev && seen.st_ino == now.st_ino)
        unlinkat(store_dir(s), path, 0); /* a store that may not be written keeps it */
}

int store_read_chunk(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                     size_t *len, struct err *e)
{
    char path[CHUNK_PATH_MAX];
    AUTO_FD int fd = -1;
    if (d->algorithm != DIGEST_SHA256)
        return err_set(e, ERR_NOTFOUND, "not in the store");
    int rc = file_open(&fd, store_dir(s), store_chunk_path(d, path), O_RDONLY | O_NOFOLLOW, 0, e);
    if (rc < 0)
        return e->class == ERR_NOTFOUND ? err_set(e, ERR_NOTFOUND, "not in the store") : rc;
    rc = chunk_decode_file(c, fd, data, len, e);
    if (rc == 0)
        rc = digest_check(d, data, *len, e);
    if (rc == -ERR_CORRUPT || rc == -ERR_DIGEST)
        discard_damaged(s, path, fd);
    return rc;
}

int store_get_chunk(struct store *s, const struct digest *d, void *data, size_t *len, struct err *e)
{
    struct chunk_codec *c;
    int rc = store_take_codec(s, &c, e);
    if (rc < 0)
        return rc;
    size_t got = 0;
    rc = store_read_chunk(s, c, d, data, &got, e);
    if (rc == -ERR_CORRUPT || rc == -ERR_DIGEST || rc == -ERR_NOTFOUND) {
        store_count_reader(s, 1);
        rc = store_fetch_chunk(s, c, d, data, &got, e);
        store_count_reader(s, -1);
    }
    store_give_codec(s, c);
    if (rc < 0) {
        char text[DIGEST_TEXT_MAX];
        err_in(e, "chunk %s", digest_print(d, text));
        if (rc == -ERR_CORRUPT || rc == -ERR_DIGEST || rc == -ERR_NOTFOUND)
            err_hint(e, "bake the task again with --force: the chunk is then made anew");
        return rc;
    }
    *len = got;
    return 0;
}

static int audit(struct store *s, struct chunk_codec *c, const struct digest *d, uint8_t *data,
                 struct err *e)
{
    char path[CHUNK_PATH_MAX];
    AUTO_FD int fd = -1;
    struct stat st;
    size_t len = 0;
    int rc = file_open(&fd, store_dir(s), store_chunk_path(d, path), O_RDONLY | O_NOFOLLOW, 0, e);
    if (rc == 0)
        rc = chunk_decode_file(c, fd, data, &len, e);
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = err_sys(e, "reading its size");
    if (rc == 0)
        rc = digest_check(d, data, len, e);
    if (rc < 0)
        return rc;
    return check_seal(c->bytes, (size_t)st.st_size, e); /* where chunk_decode_file left them */
}

int store_audit_chunk(struct store *s, const struct digest *d, struct err *e)
{
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    struct chunk_codec *c;
    int rc = data ? store_take_codec(s, &c, e) : err_nomem(e, "chunk");
    if (rc < 0)
        return rc;
    rc = audit(s, c, d, data, e);
    store_give_codec(s, c);
    return rc;
}

static int recheck_directory(struct store *s, int dir, int64_t since, uint8_t *data, struct err *e)
{
    int copy = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    if (!list) {
        file_close(&copy);
        return err_sys(e, "reading the chunks");
    }
    const struct dirent *entry;
    int result = 0;
    while (result == 0 && (entry = readdir(list))) {
        struct stat st;
        if (entry->d_name[0] == '.' || fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            st.st_mtime < since)
            continue;
        char text[16 + NAME_MAX];
        snprintf(text, sizeof(text), "sha256:%s", entry->d_name);
        struct digest d;
        size_t len;
        err_clear(e);
        if (digest_parse(&d, text, e) == 0 && store_get_chunk(s, &d, data, &len, e) == 0)
            continue;
        if (e->class != ERR_CORRUPT && e->class != ERR_DIGEST) {
            result = -(int)e->class;
            break;
        }
        log_event(LOG_WARN, "blockdev", "removed after a power cut: %s", e->text);
        result = file_remove_tree(dir, entry->d_name, e);
    }
    closedir(list);
    return result;
}

int store_recheck_chunks(struct store *s, int64_t since, struct err *e)
{
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data)
        return err_nomem(e, "chunk");
    for (unsigned prefix = 0; prefix < 256; prefix++) {
        char path[sizeof("chunks/ab")];
        snprintf(path, sizeof(path), "chunks/%02x", prefix);
        AUTO_FD int dir = -1;
        int rc = file_open(&dir, store_dir(s), path, O_RDONLY | O_DIRECTORY, 0, e);
        if (rc < 0 && e->class == ERR_NOTFOUND)
            continue;
        if (rc == 0)
            rc = recheck_directory(s, dir, since, data, e);
        if (rc < 0)
            return rc;
    }
    err_clear(e);
    return 0;
}
