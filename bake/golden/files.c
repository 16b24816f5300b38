/* SPDX-License-Identifier: MIT */
/* A directory of this machine, put into a guest. */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/golden/internal.h"
#include "base/file.h"
#include "base/mem.h"

struct walk {
    const struct golden_target *target;
    const char *script; /* in the top directory */
    bool has_script;
    size_t entries;
    uint64_t size;
};

struct place {
    int dir;          /* of this machine */
    const char *path; /* on the other side */
    unsigned depth;
};

static int put_directory(struct walk *w, const struct place *p, struct err *e);

static int put_link(struct walk *w, const struct place *p, const char *name, const char *path,
                    struct err *e)
{
    char target[LIMIT_PATH];
    ssize_t len = readlinkat(p->dir, name, target, sizeof(target));
    if (len < 0)
        return err_sys(e, "reading the link %s", name);
    if ((size_t)len >= sizeof(target))
        return err_set(e, ERR_LIMIT, "the link %s is too long", name);
    target[len] = 0;
    return w->target->link(w->target->ctx, path, target, e);
}

static int put_file(struct walk *w, const struct place *p, const char *name, const char *path,
                    struct err *e)
{
    AUTO_FD int fd = -1;
    struct stat info;
    int rc = file_open(&fd, p->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, 0, e);
    if (rc < 0)
        return rc;
    if (fstat(fd, &info) < 0)
        return err_sys(e, "looking at %s", name);
    if (!S_ISREG(info.st_mode))
        return err_set(e, ERR_INPUT, "%s is no file any more", name);
    if ((uint64_t)info.st_size > GOLDEN_FILE_MAX)
        return err_set(e, ERR_LIMIT, "%s is larger than %zu bytes", name, GOLDEN_FILE_MAX);
    size_t len = (size_t)info.st_size;
    w->size += len;
    if (w->size > GOLDEN_TREE_MAX)
        return err_set(e, ERR_LIMIT, "the files are more than %llu bytes",
                       (unsigned long long)GOLDEN_TREE_MAX);
    AUTO_FREE uint8_t *data = mem_zalloc(len);
    rc = data ? file_pread_full(fd, data, len, 0, e) : err_nomem(e, "file");
    if (rc < 0)
        return err_in(e, "reading %s", name);
    uint32_t mode = info.st_mode & 0777;
    if (p->depth == 0 && strcmp(name, w->script) == 0) {
        w->has_script = true;
        mode |= 0111;
    }
    return w->target->put(w->target->ctx, path, mode, data, len, e);
}

static int put_below(struct walk *w, const struct place *p, const char *name, const char *path,
                     mode_t mode, struct err *e)
{
    AUTO_FD int dir = -1;
    int rc = file_open(&dir, p->dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e);
    if (rc == 0)
        rc = w->target->make_dir(w->target->ctx, path, mode & 0777, e);
    struct place below = {.dir = dir, .path = path, .depth = p->depth + 1};
    return rc < 0 ? rc : put_directory(w, &below, e);
}

static int put_entry(struct walk *w, const struct place *p, const char *name, struct err *e)
{
    struct stat info;
    AUTO_FREE char *path = mem_printf("%s/%s", p->path, name);
    if (!path)
        return err_nomem(e, "path");
    if (++w->entries > GOLDEN_ENTRIES_MAX || p->depth >= GOLDEN_DEPTH_MAX)
        return err_set(e, ERR_LIMIT, "more than %d files, or %d directories in each other",
                       GOLDEN_ENTRIES_MAX, GOLDEN_DEPTH_MAX);
    if (fstatat(p->dir, name, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, "looking at %s", name);
    if (S_ISDIR(info.st_mode))
        return put_below(w, p, name, path, info.st_mode, e);
    if (S_ISLNK(info.st_mode))
        return put_link(w, p, name, path, e);
    if (S_ISREG(info.st_mode))
        return put_file(w, p, name, path, e);
    return err_set(e, ERR_INPUT, "%s is neither a file nor a directory nor a link", name);
}

static int put_directory(struct walk *w, const struct place *p, struct err *e)
{
    int copy = fcntl(p->dir, F_DUPFD_CLOEXEC, 0);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) {
        int rc = err_sys(e, "reading a directory");
        file_close(&copy);
        return rc;
    }
    int rc = 0;
    while (rc == 0) {
        errno = 0;
        const struct dirent *entry = readdir(d);
        if (!entry) {
            rc = errno ? err_sys(e, "reading a directory") : 0;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = put_entry(w, p, entry->d_name, e);
    }
    closedir(d);
    return rc;
}

int golden_put_tree(const struct golden_target *target, const char *from, const char *to,
                    const char *script, struct err *e)
{
    struct walk w = {.target = target, .script = script};
    AUTO_FD int dir = -1;
    int rc = file_open(&dir, AT_FDCWD, from, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc == 0)
        rc = target->make_dir(target->ctx, to, 0755, e);
    struct place top = {.dir = dir, .path = to};
    if (rc == 0)
        rc = put_directory(&w, &top, e);
    if (rc == 0 && !w.has_script)
        return err_set(e, ERR_NOTFOUND, "there is no file %s/%s", from, script);
    return rc < 0 ? err_in(e, "putting %s into the guest", from) : 0;
}
