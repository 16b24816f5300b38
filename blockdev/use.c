/* SPDX-License-Identifier: MIT */
/*
 * What is in use (docs/decisions/0013-garbage-collection.md). An object's modification time says
 * when it was last written, found again or read. A process that has the store open keeps everything
 * from being swept that was used since it opened the store, so each object has to be touched once
 * per process; the lock on gc.lock, shared here and exclusive while something is swept, makes the
 * look and the touch one step for whoever sweeps.
 */
#include "blockdev/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

static int64_t changed_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

bool store_use(struct store *s, const char *path)
{
    struct stat st;
    int dir = store_dir(s);
    if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return false;
    if (changed_ns(&st) >= store_opened_ns(s))
        return true;
    AUTO_FD int lock = -1;
    struct err ignored = ERR_INIT; /* what cannot be kept counts as absent: it is made again */
    return store_use_begin(&lock, s, &ignored) == 0 &&
           utimensat(dir, path, NULL, AT_SYMLINK_NOFOLLOW) == 0;
}

int store_use_begin(int *lock, struct store *s, struct err *e)
{
    return file_lock(lock, store_dir(s), "gc.lock", false, true, e);
}

int store_sweep_begin(int *lock, struct store *s, struct err *e)
{
    return file_lock(lock, store_dir(s), "gc.lock", true, true, e);
}

/* When the process that owns this directory opened the store; INT64_MAX when it is dead. */
static int opened_by(int tmp, const char *name, int64_t *ns, struct err *e)
{
    AUTO_FD int dir = -1;
    AUTO_FD int lock = -1;
    struct stat st;
    *ns = INT64_MAX;
    int rc = file_open(&dir, tmp, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e);
    if (rc < 0)
        return rc == -ERR_NOTFOUND ? 0 : rc; /* it has just closed the store */
    if (fstatat(dir, "lock", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    rc = file_lock(&lock, dir, "lock", true, false, e);
    if (rc == -ERR_BUSY)
        *ns = changed_ns(&st);
    return rc == -ERR_BUSY || (rc < 0 && e->sys == ENOENT) ? 0 : rc;
}

int store_used_since(struct store *s, int64_t *ns, struct err *e)
{
    /* Nobody opens the store meanwhile: who does so later finds a later time than ours. */
    AUTO_FD int lock = -1;
    int rc = file_lock(&lock, store_dir(s), "lock", true, true, e);
    int tmp = -1;
    if (rc == 0)
        rc = file_open(&tmp, store_dir(s), "tmp", O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return rc;
    DIR *list = fdopendir(tmp);
    if (!list) {
        file_close(&tmp);
        return err_sys(e, "listing tmp");
    }
    const struct dirent *entry;
    int64_t first = store_opened_ns(s);
    while (rc == 0 && (entry = readdir(list))) {
        int64_t opened;
        if (entry->d_name[0] == '.')
            continue;
        rc = opened_by(tmp, entry->d_name, &opened, e);
        if (rc == 0 && opened < first)
            first = opened;
    }
    closedir(list);
    err_clear(e);
    if (rc == 0)
        *ns = first;
    return rc;
}
