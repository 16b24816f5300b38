/* SPDX-License-Identifier: MIT */
/* Task directories: loading one, listing a set of them. */
#include "manifests/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

enum { TASKS_MAX = 100000 };

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

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

struct name_list {
    char **names;
    size_t count, capacity;
};

static void name_list_fini(struct name_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->names[i]);
    free(list->names);
}

static int add_if_task(struct name_list *list, int dir, const char *name, struct err *e)
{
    AUTO_FREE char *file = mem_printf("%s/task.toml", name);
    if (!file)
        return err_nomem(e, "task name");
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || faccessat(dir, file, F_OK, 0) < 0)
        return 0;
    if (list->count == TASKS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d tasks", TASKS_MAX);
    int rc = mem_grow(&list->names, &list->capacity, list->count + 1, sizeof(char *), e);
    if (rc < 0)
        return rc;
    list->names[list->count] = mem_strdup(name);
    if (!list->names[list->count])
        return err_nomem(e, "task name");
    list->count++;
    return 0;
}

static int list_directory(struct name_list *list, DIR *listing, struct err *e)
{
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(listing);
        if (!entry)
            return errno == 0 ? 0 : err_sys(e, "list");
        int rc = add_if_task(list, dirfd(listing), entry->d_name, e);
        if (rc < 0)
            return rc;
    }
}

int task_list(char ***names, size_t *count, const char *directory, struct err *e)
{
    CLEANUP(name_list_fini) struct name_list list = {.names = NULL};
    AUTO_FD int fd = -1;
    int rc = file_open(&fd, AT_FDCWD, directory, O_RDONLY | O_DIRECTORY, 0, e);
    if (rc < 0)
        return err_in(e, "task set %s", directory);
    DIR *listing = fdopendir(fd);
    if (!listing)
        return err_sys(e, "task set %s", directory);
    fd = -1; /* closed by closedir */
    rc = list_directory(&list, listing, e);
    closedir(listing);
    if (rc < 0)
        return err_in(e, "task set %s", directory);
    if (list.count > 1)
        qsort(list.names, list.count, sizeof(*list.names), compare_names);
    *names = list.names;
    *count = list.count;
    list = (struct name_list){.names = NULL};
    return 0;
}
