/* SPDX-License-Identifier: MIT */
/*
 * Files for the host: one transfer at a time. A put writes a temporary beside its goal and renames
 * it when all bytes are there; what a lost connection leaves is removed. Only regular files are
 * read: opening a pipe or a device could wait for ever.
 */
#include "bake/agent/agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void transfer_init(struct transfer *t)
{
    *t = (struct transfer){.fd = -1, .dir = -1};
}

static void transfer_close(struct transfer *t)
{
    if (t->fd >= 0)
        close(t->fd);
    if (t->dir >= 0)
        close(t->dir);
    transfer_init(t);
}

void transfer_abort(struct transfer *t)
{
    if (t->put && t->dir >= 0)
        unlinkat(t->dir, t->temporary, 0);
    transfer_close(t);
}

/* Splits an absolute path into its directory (opened) and last name. */
static int open_parent(int *dir, char *name, size_t name_len, const char *path)
{
    char parent[4096];
    const char *slash = strrchr(path, '/');
    size_t parent_len = slash ? (size_t)(slash - path) + 1 : 0;
    if (path[0] != '/' || !slash[1] || strcmp(slash, "/.") == 0 || strcmp(slash, "/..") == 0)
        return -EINVAL;
    if (parent_len >= sizeof(parent) || strlen(slash + 1) >= name_len)
        return -ENAMETOOLONG;
    memcpy(parent, path, parent_len);
    parent[parent_len] = 0;
    memcpy(name, slash + 1, strlen(slash + 1) + 1);
    *dir = openat(AT_FDCWD, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *dir < 0 ? -errno : 0;
}

int transfer_put_open(struct transfer *t, const char *path, uint32_t mode)
{
    transfer_abort(t);
    int result = open_parent(&t->dir, t->name, sizeof(t->name), path);
    if (result < 0)
        return result;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(t->temporary, sizeof(t->temporary), ".tb2-put-%d", attempt);
        t->fd = openat(t->dir, t->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (t->fd >= 0 || errno != EEXIST)
            break;
    }
    result = t->fd < 0 ? -errno : 0;
    t->put = result == 0;
    if (result == 0 && fchmod(t->fd, mode & 07777) < 0)
        result = -errno;
    if (result < 0)
        transfer_abort(t);
    return result;
}

int transfer_put_data(struct transfer *t, const uint8_t *data, size_t len)
{
    if (!t->put)
        return -EBADF;
    while (len) {
        ssize_t written = write(t->fd, data, len);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            int failed = written < 0 ? -errno : -EIO;
            transfer_abort(t);
            return failed;
        }
        data += written;
        len -= (size_t)written;
    }
    return 0;
}

int transfer_put_commit(struct transfer *t)
{
    if (!t->put)
        return -EBADF;
    if (renameat(t->dir, t->temporary, t->dir, t->name) < 0) {
        int failed = -errno;
        transfer_abort(t);
        return failed;
    }
    transfer_close(t);
    return 0;
}

int transfer_get_open(struct transfer *t, const char *path, uint64_t *size)
{
    transfer_abort(t);
    int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return -errno;
    struct stat info;
    int failed = fstat(fd, &info) < 0 ? -errno : 0;
    if (failed == 0 && S_ISDIR(info.st_mode))
        failed = -EISDIR;
    if (failed == 0 && !S_ISREG(info.st_mode))
        failed = -EINVAL;
    if (failed < 0) {
        close(fd);
        return failed;
    }
    t->fd = fd;
    *size = (uint64_t)info.st_size;
    return 0;
}

long transfer_get_read(struct transfer *t, uint8_t *data, size_t len)
{
    if (t->fd < 0 || t->put)
        return -EBADF;
    ssize_t got = read(t->fd, data, len);
    if (got < 0) {
        int failed = -errno;
        transfer_abort(t);
        return failed;
    }
    if (got == 0)
        transfer_abort(t);
    return got;
}

static int clear_file(int dir, const char *name)
{
    static const uint8_t zeros[4096];
    struct stat info;
    int fd = openat(dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int result = fd < 0 || fstat(fd, &info) < 0 ? -errno : 0;
    for (off_t at = 0; result == 0 && S_ISREG(info.st_mode) && at < info.st_size;) {
        size_t want =
            info.st_size - at < (off_t)sizeof(zeros) ? (size_t)(info.st_size - at) : sizeof(zeros);
        ssize_t written = pwrite(fd, zeros, want, at);
        if (written <= 0)
            result = written < 0 ? -errno : -EIO;
        at += written > 0 ? written : 0;
    }
    if (fd >= 0)
        close(fd);
    if (result < 0 && result != -ELOOP) /* a link has nothing in it */
        return result;
    return unlinkat(dir, name, 0) < 0 ? -errno : 0;
}

int files_forget(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT ? 0 : -errno;
    int result = 0;
    struct dirent *entry;
    while (result == 0 && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = clear_file(dirfd(dir), entry->d_name);
    }
    closedir(dir);
    if (result == 0 && unlinkat(AT_FDCWD, path, AT_REMOVEDIR) < 0)
        result = -errno;
    return result;
}

int files_make_path(const char *path, const struct owner *owner, mode_t mode, bool *made)
{
    char part[4096];
    size_t len = strlen(path);
    *made = false;
    if (path[0] != '/')
        return -EINVAL;
    if (len >= sizeof(part))
        return -ENAMETOOLONG;
    for (size_t i = 1; i <= len; i++) {
        part[i - 1] = path[i - 1];
        if ((path[i] != '/' && path[i] != 0) || path[i - 1] == '/')
            continue; /* within a name, or there is none between two slashes */
        part[i] = 0;
        *made = mkdirat(AT_FDCWD, part, 0755) == 0;
        if (!*made && errno != EEXIST)
            return -errno;
        if (*made && (fchmodat(AT_FDCWD, part, mode & 07777, 0) < 0 ||
                      (owner && fchownat(AT_FDCWD, part, owner->uid, owner->gid, 0) < 0)))
            return -errno;
    }
    return 0;
}

int files_make_dirs(const char *path, mode_t mode)
{
    bool made;
    struct stat info;
    int result = files_make_path(path, NULL, mode, &made);
    if (result < 0)
        return result;
    if (fstatat(AT_FDCWD, path, &info, 0) < 0)
        return -errno;
    return S_ISDIR(info.st_mode) ? 0 : -ENOTDIR;
}

long files_read(const char *path, char *text, size_t capacity)
{
    int fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    size_t len = 0;
    ssize_t got = 1;
    while (got > 0 && len + 1 < capacity) {
        got = read(fd, text + len, capacity - 1 - len);
        len += got > 0 ? (size_t)got : 0;
    }
    int failed = got < 0 ? -errno : 0;
    close(fd);
    text[len] = 0;
    return failed < 0 ? failed : (long)len;
}

int files_write(const char *path, const char *text)
{
    int fd = openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -errno;
    size_t len = strlen(text);
    ssize_t written = write(fd, text, len);
    int result = written < 0 ? -errno : written == (ssize_t)len ? 0 : -EIO;
    close(fd);
    return result;
}
