/* SPDX-License-Identifier: MIT */
/*
 * Files that the host lays in the guest, as COPY of a Dockerfile would, with nothing of the image: no
 * shell, no tar. The host sends what there is in order, directories first; a directory gets its mode,
 * owner and time when all that is in it is there.
 *
 * What is there already: directories stay; a link to a directory is followed and stays; a file or link
 * makes room for a file or link. A file where a directory comes, or the other way round, is an error.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void copy_init(struct copy *c)
{
    *c = (struct copy){.root = -1, .file = -1};
}

void copy_abort(struct copy *c)
{
    if (c->file >= 0)
        close(c->file);
    if (c->root >= 0)
        close(c->root);
    copy_init(c);
}

/* ---- Where to ------------------------------------------------------------------------------- */

/* Opens a directory, after making it and its missing parents, which belong to the copy's owner. */
static int open_directory(struct copy *c, const char *path, int *out)
{
    const struct owner owner = {c->uid, c->gid};
    int result = files_make_path(path, &owner, 0755, &c->root_made);
    if (result < 0)
        return result;
    *out = openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out < 0 ? -errno : 0;
}

/* The directory that a single file goes into, and its name there. */
static int open_place(struct copy *c, const char *to, const char *name)
{
    char parent[4096];
    struct stat info;
    const char *slash = strrchr(to, '/');
    size_t len = strlen(to);
    bool into = slash && !slash[1];
    if (!slash || len >= sizeof(parent))
        return slash ? -ENAMETOOLONG : -EINVAL;
    if (!into && fstatat(AT_FDCWD, to, &info, 0) == 0)
        into = S_ISDIR(info.st_mode);
    if (!into) {
        name = slash + 1;
        len = (size_t)(slash - to) + 1;
    }
    memcpy(parent, to, len);
    parent[len] = 0;
    if (!name[0] || strlen(name) >= sizeof(c->name) || strchr(name, '/'))
        return -EINVAL;
    memcpy(c->name, name, strlen(name) + 1);
    return open_directory(c, parent, &c->root);
}

int copy_open(struct copy *c, struct reader *r, enum agent_stage *stage, const char **what)
{
    copy_abort(c);
    uint32_t kind = read_u32(r);
    const char *to = read_string(r);
    const char *name = read_string(r);
    const char *owner = read_string(r);
    *stage = AGENT_AT_REQUEST;
    *what = "copy";
    if (r->bad || r->left || kind > AGENT_COPY_FILE)
        return -EINVAL;
    struct identity who;
    int result = user_resolve(&who, owner, "/etc/passwd", "/etc/group", stage);
    const char *colon = strchr(owner, ':');
    *what = *stage == AGENT_AT_GROUP && colon ? colon + 1 : owner;
    if (result < 0)
        return result;
    *stage = AGENT_AT_FILE;
    c->uid = who.uid;
    c->gid = who.gid;
    *what = to;
    return kind == AGENT_COPY_TREE ? open_directory(c, to, &c->root) : open_place(c, to, name);
}

/* ---- Records -------------------------------------------------------------------------------- */

struct record {
    uint32_t type;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    int64_t time; /* seconds */
    uint64_t size;
    const char *path;
    const char *target;
};

static void times_of(struct timespec times[2], int64_t seconds)
{
    times[0] = times[1] = (struct timespec){.tv_sec = seconds, .tv_nsec = 0};
}

/* Owner before mode: a change of owner takes setuid bits away. */
static int settle(int fd, uid_t uid, gid_t gid, mode_t mode, int64_t seconds)
{
    struct timespec times[2];
    times_of(times, seconds);
    return fchown(fd, uid, gid) < 0 || fchmod(fd, mode) < 0 || futimens(fd, times) < 0 ? -errno : 0;
}

static int make_directory(const struct copy *c, const struct record *r)
{
    struct stat info;
    if (mkdirat(c->root, r->path, 0700) == 0)
        return 0;
    if (errno != EEXIST)
        return -errno;
    if (fstatat(c->root, r->path, &info, 0) < 0)
        return errno == ENOENT ? -ENOTDIR : -errno; /* a link that leads nowhere */
    return S_ISDIR(info.st_mode) ? 0 : -ENOTDIR;
}

static int settle_directory(const struct copy *c, const struct record *r)
{
    if (!r->path[0])
        return c->root_made ? settle(c->root, r->uid, r->gid, r->mode, r->time) : 0;
    int fd = openat(c->root, r->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOTDIR || errno == ELOOP
                   ? 0
                   : -errno; /* what a link leads to stays as it is */
    int result = settle(fd, r->uid, r->gid, r->mode, r->time);
    close(fd);
    return result;
}

static int make_room(const struct copy *c, const char *path)
{
    return unlinkat(c->root, path, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static int end_file(struct copy *c)
{
    if (c->file < 0)
        return 0;
    int result = c->left ? -EIO : settle(c->file, c->file_uid, c->file_gid, c->mode, c->time);
    if (close(c->file) < 0 && result == 0)
        result = -errno;
    c->file = -1;
    return result;
}

static int begin_file(struct copy *c, const struct record *r)
{
    const char *path = r->path[0] ? r->path : c->name;
    int result = make_room(c, path);
    if (result < 0)
        return result;
    c->file = openat(c->root, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    c->left = r->size;
    c->mode = r->mode;
    c->file_uid = r->uid;
    c->file_gid = r->gid;
    c->time = r->time;
    return c->file < 0 ? -errno : 0;
}

static int add_data(struct copy *c, struct reader *r)
{
    uint32_t len = read_u32(r);
    if (r->bad || len > r->left || c->file < 0 || len > c->left)
        return -EINVAL;
    c->left -= len;
    while (len) {
        ssize_t written = write(c->file, r->at, len);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        r->at += written;
        r->left -= (size_t)written;
        len -= (uint32_t)written;
    }
    return 0;
}

static int make_symlink(const struct copy *c, const struct record *r)
{
    struct timespec times[2];
    times_of(times, r->time);
    int result = make_room(c, r->path);
    if (result < 0)
        return result;
    if (symlinkat(r->target, c->root, r->path) < 0 ||
        fchownat(c->root, r->path, r->uid, r->gid, AT_SYMLINK_NOFOLLOW) < 0 ||
        utimensat(c->root, r->path, times, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return 0;
}

static int make_link(const struct copy *c, const struct record *r)
{
    int result = make_room(c, r->path);
    if (result < 0)
        return result;
    return linkat(c->root, r->target, c->root, r->path, 0) < 0 ? -errno : 0;
}

static void read_record(const struct copy *c, struct reader *r, struct record *out)
{
    out->mode = read_u32(r) & 07777;
    uint32_t uid = read_u32(r);
    uint32_t gid = read_u32(r);
    out->uid = uid == AGENT_COPY_OWNER ? c->uid : uid;
    out->gid = gid == AGENT_COPY_OWNER ? c->gid : gid;
    out->time = (int64_t)read_u64(r);
    out->size = read_u64(r);
    out->path = read_string(r);
    out->target = read_string(r);
}

static int lay(struct copy *c, const struct record *r)
{
    if (r->path[0] == '/')
        return -EINVAL;
    switch (r->type) {
    case AGENT_COPY_DIRECTORY:
        return make_directory(c, r);
    case AGENT_COPY_REGULAR:
        return begin_file(c, r);
    case AGENT_COPY_SYMLINK:
        return make_symlink(c, r);
    case AGENT_COPY_HARD_LINK:
        return make_link(c, r);
    case AGENT_COPY_SETTLE:
        return settle_directory(c, r);
    default:
        return -EINVAL;
    }
}

int copy_records(struct copy *c, struct reader *r, const char **what)
{
    *what = "a file being copied";
    if (c->root < 0)
        return -EBADF;
    int result = 0;
    while (result == 0 && r->left) {
        struct record record = {.type = read_u32(r)};
        if (record.type == AGENT_COPY_DATA) {
            result = add_data(c, r);
            continue;
        }
        result = end_file(c);
        if (result < 0)
            break;
        read_record(c, r, &record);
        if (r->bad)
            return -EINVAL;
        *what = record.path[0] ? record.path : c->name;
        result = lay(c, &record);
    }
    return r->bad && result == 0 ? -EINVAL : result;
}

int copy_close(struct copy *c, const char **what)
{
    *what = "a file being copied";
    int result = c->root < 0 ? -EBADF : end_file(c);
    copy_abort(c);
    return result;
}
