/* SPDX-License-Identifier: MIT */
/*
 * The cache directory: kernels stay (fetching one takes a package server); what a newer program or
 * another boot of the host has made useless goes.
 */

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bake/upkeep.h"
#include "bake/upkeep/gc_cache.h"
#include "base/file.h"
#include "base/mem.h"

struct sweep {
    struct gc_report *report;
    const struct gc_options *options;
    int64_t cutoff_ns;
    char boot[64]; /* of the host, "" when unknown */
};

static int64_t changed_ns(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return INT64_MAX;
    return (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
}

static int sweep_one(struct sweep *w, int dir, const char *below, const char *name, struct err *e)
{
    uint64_t size = 0;
    if (changed_ns(dir, name) >= w->cutoff_ns || file_size(dir, name, &size, e) < 0) {
        err_clear(e);
        return 0;
    }
    int rc = w->options->dry_run ? 0 : file_remove_tree(dir, name, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *path = mem_printf("%s%s%s", w->options->cache_dir, below, name);
    w->report->removed[UPKEEP_CACHE].count++;
    w->report->removed[UPKEEP_CACHE].size += size;
    if (path && w->options->removed)
        w->options->removed(w->options->ctx, UPKEEP_CACHE, path, size);
    return 0;
}

/* Opens a directory for readdir; NULL, without an error, when it is not there. */
static DIR *open_list(int dir, const char *path, struct err *e)
{
    int fd = -1;
    if (file_open(&fd, dir, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0, e) < 0) {
        err_clear(e);
        return NULL;
    }
    DIR *list = fdopendir(fd);
    if (!list)
        file_close(&fd);
    return list;
}

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

/* One kernel's directory: the newest initramfs is the present program's. */
static int sweep_release(struct sweep *w, int kernels, const char *release, struct err *e)
{
    char below[NAME_MAX + 16];
    char newest[NAME_MAX + 1] = "";
    int64_t newest_ns = INT64_MIN;
    DIR *list = open_list(kernels, release, e);
    if (!list)
        return 0;
    snprintf(below, sizeof(below), "/kernel/%s/", release);
    const struct dirent *entry;
    while ((entry = readdir(list))) {
        int64_t ns = changed_ns(dirfd(list), entry->d_name);
        if (starts(entry->d_name, "initramfs-") && ns != INT64_MAX && ns > newest_ns) {
            newest_ns = ns;
            snprintf(newest, sizeof(newest), "%s", entry->d_name);
        }
    }
    rewinddir(list);
    int rc = 0;
    while (rc == 0 && (entry = readdir(list))) {
        if ((starts(entry->d_name, "initramfs-") && strcmp(entry->d_name, newest) != 0) ||
            starts(entry->d_name, ".tmp-"))
            rc = sweep_one(w, dirfd(list), below, entry->d_name, e);
    }
    closedir(list);
    return rc;
}

static int sweep_kernels(struct sweep *w, int cache, struct err *e)
{
    DIR *list = open_list(cache, "kernel", e);
    if (!list)
        return 0;
    const struct dirent *entry;
    int rc = 0;
    while (rc == 0 && (entry = readdir(list))) {
        if (entry->d_name[0] != '.')
            rc = sweep_release(w, dirfd(list), entry->d_name, e);
    }
    closedir(list);
    return rc;
}

/* Answers are named accel-BOOT-KERNEL. */
static bool is_old_answer(const struct sweep *w, const char *name)
{
    return starts(name, "accel-") && strlen(name) > 6 + strlen(w->boot) && w->boot[0] &&
           strncmp(name + 6, w->boot, strlen(w->boot)) != 0 && strcmp(name, "accel-probe") != 0;
}

int gc_cache(struct gc_report *out, const struct gc_options *o, int64_t cutoff_ns, struct err *e)
{
    struct sweep w = {.report = out, .options = o, .cutoff_ns = cutoff_ns};
    AUTO_BUF struct buf boot;
    buf_init(&boot, sizeof(w.boot));
    struct err ignored = ERR_INIT;
    if (file_read(AT_FDCWD, "/proc/sys/kernel/random/boot_id", &boot, &ignored) == 0)
        snprintf(w.boot, sizeof(w.boot), "%.36s", buf_text(&boot));
    DIR *list = open_list(AT_FDCWD, o->cache_dir, e);
    if (!list)
        return 0;
    int rc = sweep_kernels(&w, dirfd(list), e);
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(list))) {
        if (is_old_answer(&w, entry->d_name) || starts(entry->d_name, ".tmp-"))
            rc = sweep_one(&w, dirfd(list), "/", entry->d_name, e);
    }
    closedir(list);
    return rc < 0 ? err_in(e, "cache %s", o->cache_dir) : 0;
}
