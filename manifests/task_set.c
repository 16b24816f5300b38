/* SPDX-License-Identifier: MIT */
/* Task directories: loading one, finding a set of them. */
#include "manifests/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum {
    TASKS_MAX = 100000,
    DIRECTORIES_MAX = 200000, /* looked into for tasks */
    SEARCH_DEPTH_MAX = 8
};

/*
 * The directory's own name; free with free(). As given where the path ends in one (a link to a
 * directory is a task of the link's name), else resolved: ".", "a/..", "/".
 */
static int directory_name(char **out, const char *directory, struct err *e)
{
    size_t len = strlen(directory);
    while (len > 1 && directory[len - 1] == '/')
        len--;
    size_t start = len;
    while (start > 0 && directory[start - 1] != '/')
        start--;
    AUTO_FREE char *name = mem_strndup(directory + start, len - start);
    if (!name)
        return err_nomem(e, "task name");
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        AUTO_FREE char *real = realpath(directory, NULL);
        if (!real && errno == ENOENT)
            return err_set(e, ERR_NOTFOUND, "%s: no such directory", directory);
        if (!real)
            return err_sys(e, "task directory %s", directory);
        free(MOVE(name));
        name = mem_strdup(strrchr(real, '/') + 1);
        if (!name)
            return err_nomem(e, "task name");
    }
    *out = MOVE(name);
    return 0;
}

int task_load(struct task **out, const char *directory, struct err *e)
{
    AUTO_FREE char *name = NULL;
    int rc = directory_name(&name, directory, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *path = mem_printf("%s/task.toml", directory);
    AUTO_FREE char *copy = mem_strdup(directory);
    if (!path || !copy)
        return err_nomem(e, "task");
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TASK_TOML);
    rc = file_read(AT_FDCWD, path, &text, e);
    if (rc < 0)
        return rc;
    AUTO_TASK struct task *t = NULL;
    rc = task_parse(&t, name, path, text.data, text.len, e);
    if (rc < 0)
        return rc;
    t->directory = MOVE(copy);
    *out = MOVE(t);
    return 0;
}

/* ---- Sets ---- */

void task_set_free(struct task_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->count; i++) {
        free(set->entries[i].name);
        free(set->entries[i].directory);
        task_free(set->entries[i].task);
    }
    free(set->entries);
    free(set->source);
    free(set);
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct task_entry *)a)->name, ((const struct task_entry *)b)->name);
}

void task_set_sort(struct task_set *set)
{
    if (set->count > 1)
        qsort(set->entries, set->count, sizeof(*set->entries), compare_entries);
}

int task_set_add(struct task_set *set, const char *name, struct task_entry **out, struct err *e)
{
    if (set->count == TASKS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d tasks", TASKS_MAX);
    int rc = mem_grow(&set->entries, &set->capacity, set->count + 1, sizeof(*set->entries), e);
    char *copy = rc == 0 ? mem_strdup(name) : NULL;
    if (!copy)
        return err_nomem(e, "task name");
    *out = &set->entries[set->count++];
    **out = (struct task_entry){.name = copy};
    return 0;
}

struct search {
    struct task_set *set;
    unsigned directories; /* looked into */
};

static int search_directory(struct search *s, int parent, const char *name, unsigned depth,
                            struct err *e);

static int add_task(struct search *s, const char *name, struct err *e)
{
    struct task_entry *entry = NULL;
    int rc = task_set_add(s->set, name, &entry, e);
    if (rc < 0)
        return rc;
    entry->directory = mem_printf("%s/%s", s->set->source, name);
    return entry->directory ? 0 : err_nomem(e, "task name");
}

/* `below` is the path below the set; the directory that holds it is open as `dir`. */
static int take_name(struct search *s, int dir, const char *name, const char *below, unsigned depth,
                     struct err *e)
{
    AUTO_FREE char *file = mem_printf("%s/task.toml", name);
    if (!file)
        return err_nomem(e, "task name");
    if (faccessat(dir, file, F_OK, 0) == 0)
        return add_task(s, below, e);
    struct stat st;
    bool descend = name[0] != '.' && depth < SEARCH_DEPTH_MAX &&
                   fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    return descend ? search_directory(s, dir, below, depth + 1, e) : 0;
}

static int list_directory(struct search *s, DIR *listing, const char *path, unsigned depth,
                          struct err *e)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(listing);
        if (!entry)
            return errno == 0 ? 0 : err_sys(e, "list");
        const char *name = entry->d_name;
        bool plain_file =
            entry->d_type != DT_DIR && entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN;
        if (plain_file || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        AUTO_FREE char *below = *path ? mem_printf("%s/%s", path, name) : mem_strdup(name);
        int rc =
            below ? take_name(s, dirfd(listing), name, below, depth, e) : err_nomem(e, "task name");
        if (rc < 0)
            return rc;
    }
}

/* `path` is below the set; its last part is in the directory `parent`. */
static int search_directory(struct search *s, int parent, const char *path, unsigned depth,
                            struct err *e)
{
    if (++s->directories > DIRECTORIES_MAX) {
        err_set(e, ERR_LIMIT, "more than %d directories", DIRECTORIES_MAX);
        return err_hint(e, "name the directory that holds the tasks' own");
    }
    const char *name = strrchr(path, '/');
    name = depth == 0 ? s->set->source : name ? name + 1 : path;
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, parent, name, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0 && depth > 0) { /* one that may not be read holds no tasks of ours */
        err_clear(e);
        return 0;
    }
    if (rc < 0)
        return rc;
    DIR *listing = fdopendir(fd);
    if (!listing)
        return err_sys(e, "list");
    fd = -1; /* closed by closedir */
    rc = list_directory(s, listing, path, depth, e);
    closedir(listing);
    return rc;
}

int task_set_open(struct task_set **out, const char *directory, struct err *e)
{
    AUTO_TASK_SET struct task_set *set = mem_zalloc(sizeof(*set));
    char *source = set ? mem_strdup(directory) : NULL;
    if (!source)
        return err_nomem(e, "task set");
    set->source = source;
    set->directory = true;
    struct search s = {.set = set};
    int rc = search_directory(&s, AT_FDCWD, "", 0, e);
    if (rc < 0)
        return err_in(e, "task set %s", directory);
    task_set_sort(set);
    *out = MOVE(set);
    return 0;
}
