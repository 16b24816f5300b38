/* SPDX-License-Identifier: MIT */
/*
 * The store's directory (docs/formats/store.md).
 *
 * Every process that has the store open owns a directory under tmp/ and holds a lock on a file in
 * it; the kernel drops the lock when the process dies, however it dies, so whoever opens the store
 * next can tell what is left over. Opening is serialised by a lock on the store itself, so that
 * nobody works while left-overs of a power cut are being looked through.
 */
#include "blockdev/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

#define FORMAT_TEXT "tb2-bake store 1\n"
#define FORMAT_PREFIX "tb2-bake store "

enum {
    IDLE_CODECS_MAX = 16,
    TMP_NAME_MAX = 64,
    RECHECK_SLACK_SECONDS = 24 * 60 * 60, /* for clocks that were set back */
    BOOT_ID_MAX = 64,
};

static const char *const directories[] = {"tmp",   "chunks",    "blobs",   "layers",
                                          "disks", "templates", "catalog", "runs"};

struct store {
    int dir;
    int tmp_dir;
    int tmp_lock;
    int64_t opened_ns;           /* by the file system's clock: when tmp_lock was made */
    char tmp_name[TMP_NAME_MAX]; /* "tmp/<name>"; empty until made */
    char *path;
    char *tmp_path;
    pthread_mutex_t mutex; /* guards idle and idle_count */
    int level;             /* of compression; set before the first codec is made */
    struct chunk_codec *idle[IDLE_CODECS_MAX];
    size_t idle_count;
    atomic_bool marked;     /* tmp/<name>/boot is there, durably */
    atomic_bool distrusted; /* what is there is verified before it counts as there */
    struct chunk_fetches fetches;
    atomic_uint_least64_t chunks_put, chunks_new, chunk_bytes_new;
    atomic_uint_least64_t maps_unsynced; /* written without waiting for the disk */
    atomic_uint_least64_t synced;        /* of chunks_put and these together, so many are durable */
};

/* ---- Format ---------------------------------------------------------------------------- */

static bool is_ours(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(directories); i++) {
        if (strcmp(name, directories[i]) == 0)
            return true;
    }
    return name[0] == '.' || strcmp(name, "lock") == 0 || strcmp(name, "run.lock") == 0 ||
           strcmp(name, "gc.lock") == 0;
}

/* Without a format file the directory must be empty, or hold what an interrupted first opening
 * left. */
static int check_empty(const struct store *s, struct err *e)
{
    int copy = -1;
    int rc = file_open(&copy, s->dir, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(copy);
    if (!list) {
        file_close(&copy);
        return err_sys(e, "listing the directory");
    }
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list))) {
        if (is_ours(entry->d_name))
            continue;
        rc = err_set(e, ERR_INPUT, "not a store: it holds %s but no file named format",
                     entry->d_name);
        err_hint(e, "Name a directory that is empty or does not exist yet.");
    }
    closedir(list);
    return rc;
}

static int make_directories(const struct store *s, struct err *e)
{
    for (size_t i = 0; i < ARRAY_LEN(directories); i++) {
        if (mkdirat(s->dir, directories[i], 0777) < 0 && errno != EEXIST)
            return err_sys(e, "making %s", directories[i]);
    }
    for (unsigned prefix = 0; prefix < 256; prefix++) {
        char path[sizeof("chunks/ab")];
        snprintf(path, sizeof(path), "chunks/%02x", prefix);
        if (mkdirat(s->dir, path, 0777) < 0 && errno != EEXIST)
            return err_sys(e, "making %s", path);
    }
    return 0;
}

static int check_format(const struct store *s, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, 4096);
    int rc = file_read(s->dir, "format", &text, e);
    if (rc < 0 && e->class == ERR_NOTFOUND) {
        err_clear(e);
        rc = check_empty(s, e);
        if (rc == 0)
            rc = make_directories(s, e);
        if (rc == 0 && syncfs(s->dir) < 0)
            rc = err_sys(e, "syncing a new store");
        /* Last, so that a store with a format is whole. */
        return rc < 0 ? rc
                      : file_put(s->dir, s->dir, "format", FORMAT_TEXT, strlen(FORMAT_TEXT), e);
    }
    if (rc < 0)
        return rc;
    if (strcmp(buf_text(&text), FORMAT_TEXT) == 0)
        return 0;
    if (strncmp(buf_text(&text), FORMAT_PREFIX, strlen(FORMAT_PREFIX)) == 0) {
        rc = err_set(e, ERR_UNSUPPORTED, "store format version %.16s is not known to this program",
                     buf_text(&text) + strlen(FORMAT_PREFIX));
        err_hint(e, "Use a newer tb2-bake, or another store.");
        return rc;
    }
    return err_set(e, ERR_CORRUPT, "its format file is damaged");
}

/* ---- Temporaries ----------------------------------------------------------------------- */

/* Names this boot of the machine; empty where the kernel does not tell, which matches nothing. */
static void read_boot_id(struct buf *out)
{
    struct err ignored = ERR_INIT;
    if (file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", out, &ignored) < 0)
        out->len = 0;
}

/* Looks at one process's directory; if the process is dead: rechecks chunks when the machine died
 * with it, then removes the directory. */
static int remove_if_dead(struct store *s, int tmp, const char *name, struct err *e)
{
    AUTO_FD int dir = -1;
    int rc = file_open(&dir, tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e);
    if (rc < 0)
        return file_remove_tree(tmp, name, e);
    AUTO_FD int lock = -1;
    rc = file_lock(&lock, dir, "lock", true, false, e);
    if (rc == -ERR_BUSY || (rc < 0 && e->sys == ENOENT)) { /* it lives, or has just left */
        err_clear(e);
        return 0;
    }
    struct stat st;
    if (rc < 0 || fstat(lock, &st) < 0)
        return rc < 0 ? rc : err_sys(e, "tmp/%s/lock", name);

    AUTO_BUF struct buf boot, then;
    buf_init(&boot, BOOT_ID_MAX);
    buf_init(&then, BOOT_ID_MAX);
    read_boot_id(&boot);
    rc = file_read(dir, "boot", &then, e);
    if (rc < 0 && e->class != ERR_NOTFOUND)
        return rc;
    err_clear(e);
    if (rc < 0) /* it wrote no chunk, or was just removing the directory */
        return file_remove_tree(tmp, name, e);
    bool same_boot =
        boot.len > 0 && boot.len == then.len && memcmp(boot.data, then.data, boot.len) == 0;
    if (!same_boot)
        rc = store_recheck_chunks(s, (int64_t)st.st_mtime - RECHECK_SLACK_SECONDS, e);
    else if (syncfs(s->dir) < 0) /* its chunks are whole, but nothing tells so after a power cut */
        rc = err_sys(e, "syncing what process %s left", name);
    return rc < 0 ? rc : file_remove_tree(tmp, name, e);
}

static int remove_dead(struct store *s, int tmp, struct err *e)
{
    int copy = -1;
    int rc = file_open(&copy, tmp, ".", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(copy);
    if (!list) {
        file_close(&copy);
        return err_sys(e, "listing tmp");
    }
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = remove_if_dead(s, tmp, entry->d_name, e);
    }
    closedir(list);
    return rc;
}

/* The name only has to be free; it shows in no result. */
static int make_tmp(struct store *s, struct err *e)
{
    uint64_t number;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        return err_sys(e, "getting a random number");
    char name[TMP_NAME_MAX];
    snprintf(name, sizeof(name), "tmp/%ld-%016llx", (long)getpid(), (unsigned long long)number);
    if (mkdirat(s->dir, name, 0700) < 0)
        return err_sys(e, "making %s", name);
    memcpy(s->tmp_name, name, sizeof(name));
    int rc = file_open(&s->tmp_dir, s->dir, name, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = file_lock(&s->tmp_lock, s->tmp_dir, "lock", true, false, e);
    struct stat st;
    if (rc == 0 && fstat(s->tmp_lock, &st) < 0)
        rc = err_sys(e, "%s/lock", name);
    if (rc < 0)
        return rc;
    s->opened_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    s->tmp_path = mem_printf("%s/%s", s->path, name);
    if (!s->tmp_path)
        return err_nomem(e, "store");
    return 0;
}

/* Several threads may come here at once; they write the same. */
int store_begin_chunks(struct store *s, struct err *e)
{
    if (atomic_load(&s->marked))
        return 0;
    AUTO_BUF struct buf boot;
    buf_init(&boot, BOOT_ID_MAX);
    read_boot_id(&boot);
    int rc = file_put(s->tmp_dir, s->tmp_dir, "boot", buf_text(&boot), boot.len, e);
    AUTO_FD int tmp = -1;
    if (rc == 0)
        rc = file_open(&tmp, s->dir, "tmp", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0 && fsync(tmp) < 0)
        rc = err_sys(e, "syncing tmp");
    if (rc == 0)
        atomic_store(&s->marked, true);
    return rc;
}

/* ---- Opening --------------------------------------------------------------------------- */

static int open_locked(struct store *s, struct err *e)
{
    AUTO_FD int lock = -1;
    int rc = file_lock(&lock, s->dir, "lock", true, true, e);
    if (rc < 0)
        return rc;
    rc = check_format(s, e);
    if (rc < 0)
        return rc;
    AUTO_FD int tmp = -1;
    rc = file_open_dir(&tmp, s->dir, "tmp", e);
    if (rc == 0)
        rc = remove_dead(s, tmp, e);
    if (rc == 0)
        rc = make_tmp(s, e);
    return rc;
}

int store_open(struct store **out, const char *path, struct err *e)
{
    AUTO_STORE struct store *s = mem_zalloc(sizeof(*s));
    if (!s)
        return err_nomem(e, "store");
    s->dir = s->tmp_dir = s->tmp_lock = -1;
    chunk_fetches_init(&s->fetches);
    s->level = CHUNK_LEVEL_DEFAULT;
    pthread_mutex_init(&s->mutex, NULL);
    int rc = file_open_dir(&s->dir, AT_FDCWD, path, e);
    if (rc < 0)
        return err_in(e, "store %s", path);
    s->path = realpath(path, NULL);
    if (!s->path)
        return err_sys(e, "store %s: finding its absolute path", path);
    rc = open_locked(s, e);
    if (rc < 0)
        return err_in(e, "store %s", path);
    *out = MOVE(s);
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    /* The directory tells the next store_open to look for torn chunks, so it goes only when all are
     * durable; what stays is removed then. */
    struct err ignored = ERR_INIT;
    if (s->tmp_name[0] && store_sync_chunks(s, &ignored) == 0 &&
        file_remove_tree(s->dir, s->tmp_name, &ignored) < 0)
        err_clear(&ignored);
    for (size_t i = 0; i < s->idle_count; i++)
        chunk_codec_free(s->idle[i]);
    chunk_fetches_fini(&s->fetches);
    pthread_mutex_destroy(&s->mutex);
    file_close(&s->tmp_lock);
    file_close(&s->tmp_dir);
    file_close(&s->dir);
    free(s->tmp_path);
    free(s->path);
    free(s);
}

int store_dir(const struct store *s)
{
    return s->dir;
}

int store_tmp_dir(const struct store *s)
{
    return s->tmp_dir;
}

const char *store_tmp_path(const struct store *s)
{
    return s->tmp_path;
}

const char *store_path(const struct store *s)
{
    return s->path;
}

void store_set_compression_level(struct store *s, int level)
{
    s->level = level;
}

int64_t store_opened_ns(const struct store *s)
{
    return s->opened_ns;
}

void store_distrust(struct store *s)
{
    atomic_store(&s->distrusted, true);
}

void store_set_source(struct store *s, const struct chunk_source *source)
{
    s->fetches.source = source;
}

bool store_has_source(struct store *s)
{
    return s->fetches.source;
}

struct chunk_fetches *store_fetches(struct store *s)
{
    return &s->fetches;
}

bool store_is_distrusted(const struct store *s)
{
    return atomic_load(&s->distrusted);
}

/* ---- Chunks ---------------------------------------------------------------------------- */

int store_take_codec(struct store *s, struct chunk_codec **out, struct err *e)
{
    struct chunk_codec *c = NULL;
    pthread_mutex_lock(&s->mutex);
    if (s->idle_count > 0)
        c = s->idle[--s->idle_count];
    pthread_mutex_unlock(&s->mutex);
    if (!c)
        return chunk_codec_new(out, s->level, e);
    *out = c;
    return 0;
}

void store_give_codec(struct store *s, struct chunk_codec *c)
{
    pthread_mutex_lock(&s->mutex);
    if (s->idle_count < IDLE_CODECS_MAX)
        s->idle[s->idle_count++] = MOVE(c);
    pthread_mutex_unlock(&s->mutex);
    chunk_codec_free(c);
}

void store_count_chunk(struct store *s, uint64_t stored_size)
{
    if (stored_size > 0)
        atomic_fetch_add(&s->chunks_new, 1);
    atomic_fetch_add(&s->chunk_bytes_new, stored_size);
    atomic_fetch_add(&s->chunks_put, 1);
}

struct store_stats store_stats(const struct store *s)
{
    return (struct store_stats){.chunks_put = atomic_load(&s->chunks_put),
                                .chunks_new = atomic_load(&s->chunks_new),
                                .chunk_bytes_new = atomic_load(&s->chunk_bytes_new)};
}

void store_count_unsynced_map(struct store *s)
{
    atomic_fetch_add(&s->maps_unsynced, 1);
}

int store_sync_chunks(struct store *s, struct err *e)
{
    /* What another thread is only about to have synced counts as not synced. */
    uint_least64_t offered = atomic_load(&s->chunks_put) + atomic_load(&s->maps_unsynced);
    uint_least64_t synced = atomic_load(&s->synced);
    if (synced >= offered)
        return 0;
    if (syncfs(s->dir) < 0)
        return err_sys(e, "store %s: syncing", s->path);
    while (synced < offered && !atomic_compare_exchange_weak(&s->synced, &synced, offered))
        ;
    return 0;
}
