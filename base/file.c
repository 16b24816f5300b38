/* SPDX-License-Identifier: MIT */
/*
 * Files: see file.h. A temporary is created in a directory of the same file system as its
 * destination, so that a rename is atomic; the name holds the process id and a counter, and the
 * directory is private to the process, so names never collide.
 */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/mem.h"

void file_close(int *fd)
{
    if (*fd < 0)
        return;
    int saved = errno;
    close(*fd);
    errno = saved;
    *fd = -1;
}

int file_open(int *out, int dir, const char *path, int flags, mode_t mode, struct err *e)
{
    int fd;
    do {
        fd = openat(dir, path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == ENOENT && !(flags & O_CREAT))
        return err_set(e, ERR_NOTFOUND, "%s: no such file or directory", path);
    if (fd < 0)
        return err_sys(e, "opening %s", path);
    *out = fd;
    return 0;
}

/* Makes the entry of dir/path durable. */
static int sync_parent(int dir, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    AUTO_FREE char *parent = slash ? mem_strndup(path, len > 0 ? len : 1) : mem_strdup(".");
    if (!parent)
        return err_nomem(e, path);
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, dir, parent, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    if (fsync(fd) < 0)
        return err_sys(e, "syncing the directory %s", parent);
    return 0;
}

int file_make_dirs(int dir, const char *path, struct err *e)
{
    AUTO_FREE char *copy = mem_strdup(path);
    if (!copy)
        return err_nomem(e, path);
    for (char *at = copy + 1; *copy && at; at = *at ? at + 1 : NULL) {
        at = strchrnul(at, '/');
        char held = *at;
        *at = 0;
        bool made = mkdirat(dir, copy, 0777) == 0;
        if (!made && errno != EEXIST)
            return err_sys(e, "making the directory %s", copy);
        /* Else a file that was committed in it could vanish with it. */
        int rc = made ? sync_parent(dir, copy, e) : 0;
        if (rc < 0)
            return rc;
        *at = held;
    }
    return 0;
}

int file_open_dir(int *out, int dir, const char *path, struct err *e)
{
    int rc = file_make_dirs(dir, path, e);
    if (rc < 0)
        return rc;
    return file_open(out, dir, path, O_RDONLY | O_DIRECTORY, 0, e);
}

int file_write_full(int fd, const void *data, size_t len, struct err *e)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "writing %zu bytes", len);
        at += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_pwrite_full(int fd, const void *data, size_t len, uint64_t off, struct err *e)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = pwrite(fd, at, len, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "writing %zu bytes at offset %llu", len, (unsigned long long)off);
        at += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

int file_pread_full(int fd, void *data, size_t len, uint64_t off, struct err *e)
{
    char *at = data;
    while (len > 0) {
        ssize_t n = pread(fd, at, len, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(e, "reading %zu bytes at offset %llu", len, (unsigned long long)off);
        if (n == 0)
            return err_set(e, ERR_CORRUPT, "file ends at offset %llu, %zu bytes short",
                           (unsigned long long)off, len);
        at += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* For what a pipe or a terminal gives. Files always have something. */
static int await_input(int fd, const char *path, struct err *e)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, -1) == 1)
        return 0;
    return errno == EINTR ? err_set(e, ERR_CANCELLED, "cancelled while %s was waited for", path)
                          : err_sys(e, "waiting for %s", path);
}

int file_read(int dir, const char *path, struct buf *out, struct err *e)
{
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, dir, path, O_RDONLY | O_NONBLOCK, 0, e);
    if (rc < 0)
        return rc;
    for (;;) {
        char piece[32768];
        rc =
            await_input(fd, path, e); /* a pipe that nobody writes to yet reads as one at its end */
        if (rc < 0)
            return rc;
        ssize_t n = read(fd, piece, sizeof(piece));
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return err_sys(e, "reading %s", path);
        if (n == 0)
            return 0;
        rc = buf_add(out, piece, (size_t)n, e);
        if (rc < 0)
            return err_in(e, "%s", path);
    }
}

bool file_exists(int dir, const char *path)
{
    struct stat st;
    return fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int file_size(int dir, const char *path, uint64_t *out, struct err *e)
{
    struct stat st;
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT)
            return err_set(e, ERR_NOTFOUND, "%s: no such file", path);
        return err_sys(e, "%s", path);
    }
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_CORRUPT, "%s is not a regular file", path);
    *out = (uint64_t)st.st_size;
    return 0;
}

/* Empties the directory `fd` (taken over). Each level holds one descriptor, so their limit bounds
 * the depth. */
static int empty_dir(int fd, struct err *e)
{
    DIR *d = fdopendir(fd);
    if (!d) {
        file_close(&fd);
        return err_sys(e, "listing a directory");
    }
    int rc = 0;
    struct dirent *entry;
    while (rc == 0 && (entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        rc = file_remove_tree(dirfd(d), entry->d_name, e);
    }
    closedir(d);
    return rc;
}

int file_need_room(int fd, uint64_t need, struct err *e)
{
    struct statvfs st;
    if (fstatvfs(fd, &st) < 0)
        return err_sys(e, "asking for free space");
    uint64_t free_size = (uint64_t)st.f_bavail * st.f_frsize;
    if (free_size >= need)
        return 0;
    return err_sysno(e, ENOSPC, "%llu kB needed, %llu kB available",
                     (unsigned long long)(need / 1000 + 1), (unsigned long long)(free_size / 1000));
}

int file_remove_tree(int dir, const char *path, struct err *e)
{
    if (unlinkat(dir, path, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_sys(e, "removing %s", path);
    int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "removing %s", path);
    int rc = empty_dir(fd, e);
    if (rc < 0)
        return err_in(e, "%s", path);
    if (unlinkat(dir, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_sys(e, "removing the directory %s", path);
    return 0;
}

int file_tmp_open(struct file_tmp *t, int tmp_dir, struct err *e)
{
    static atomic_ulong counter; /* only makes names differ */
    t->fd = -1;
    t->tmp_dir = tmp_dir;
    snprintf(t->name, sizeof(t->name), ".tmp-%ld-%lu", (long)getpid(),
             atomic_fetch_add(&counter, 1));
    return file_open(&t->fd, tmp_dir, t->name, O_RDWR | O_CREAT | O_EXCL, 0666, e);
}

int file_tmp_commit(struct file_tmp *t, int dir, const char *path, bool durable, struct err *e)
{
    if (durable && fsync(t->fd) < 0)
        return err_sys(e, "syncing %s", path);
    if (renameat(t->tmp_dir, t->name, dir, path) < 0)
        return err_sys(e, "renaming to %s", path);
    file_close(&t->fd);
    return durable ? sync_parent(dir, path, e) : 0;
}

void file_tmp_abort(struct file_tmp *t)
{
    if (t->fd < 0)
        return;
    file_close(&t->fd);
    unlinkat(t->tmp_dir, t->name, 0);
}

/* Where a whole file goes. */
struct place {
    int tmp_dir;
    int dir;
    const char *path;
    bool durable;
};

static int put(const struct place *p, const void *data, size_t len, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    int rc = file_tmp_open(&t, p->tmp_dir, e);
    if (rc == 0)
        rc = file_write_full(t.fd, data, len, e);
    if (rc == 0)
        rc = file_tmp_commit(&t, p->dir, p->path, p->durable, e);
    return rc < 0 ? err_in(e, "%s", p->path) : 0;
}

int file_put(int tmp_dir, int dir, const char *path, const void *data, size_t len, struct err *e)
{
    return put(&(struct place){tmp_dir, dir, path, true}, data, len, e);
}

int file_put_unsynced(int tmp_dir, int dir, const char *path, const void *data, size_t len,
                      struct err *e)
{
    return put(&(struct place){tmp_dir, dir, path, false}, data, len, e);
}

int file_lock(int *fd, int dir, const char *path, bool exclusive, bool wait, struct err *e)
{
    AUTO_FD int lock = -1;
    int rc = file_open(&lock, dir, path, O_RDWR | O_CREAT, 0666, e);
    if (rc < 0)
        return rc;
    int operation = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
    while (flock(lock, operation) < 0) {
        if (errno == EINTR)
            continue;
        if (errno == EWOULDBLOCK)
            return err_set(e, ERR_BUSY, "%s is locked by another process", path);
        return err_sys(e, "locking %s", path);
    }
    *fd = lock;
    lock = -1;
    return 0;
}

int file_lock_wait(int *fd, int dir, const char *path, const struct cancel *c, struct err *e)
{
    enum { POLL_MS = 50 };
    for (;;) {
        int rc = file_lock(fd, dir, path, true, false, e);
        if (rc != -ERR_BUSY)
            return rc;
        err_clear(e);
        rc = cancel_sleep_ms(c, POLL_MS, e);
        if (rc < 0)
            return err_in(e, "waiting for another process to leave %s", path);
    }
}
