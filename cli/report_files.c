/* SPDX-License-Identifier: MIT */
/* Reports as files: each is there as a whole, or as it was before. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/report.h"

enum { FORM_COUNT = 4, REPORT_SIZE_MAX = 1 << 30 };

struct wanted_file {
    const char *option;
    const char *path;
    report_form *form;
};

static void list_files(struct wanted_file list[FORM_COUNT], const struct report_files *f)
{
    list[0] = (struct wanted_file){"report", f->html, report_html};
    list[1] = (struct wanted_file){"junit", f->junit, report_junit};
    list[2] = (struct wanted_file){"markdown", f->markdown, report_markdown};
    list[3] = (struct wanted_file){"metrics", f->metrics, report_metrics};
}

bool report_files_any(const struct report_files *f)
{
    return f->html || f->junit || f->markdown || f->metrics;
}

/* The directory that a file is in, and its name there (borrowed from `path`). */
static int open_place(int *dir, const char **name, const char *path, struct err *e)
{
    const char *slash = strrchr(path, '/');
    *name = slash ? slash + 1 : path;
    AUTO_FREE char *place = !slash          ? mem_strdup(".")
                            : slash == path ? mem_strdup("/")
                                            : mem_strndup(path, (size_t)(slash - path));
    if (!place)
        return err_nomem(e, "report");
    if (!**name)
        return err_set(e, ERR_INPUT, "'%s' names no file", path);
    return file_open(dir, AT_FDCWD, place, O_RDONLY | O_DIRECTORY, 0, e);
}

int report_files_check(const struct report_files *f, struct err *e)
{
    struct wanted_file list[FORM_COUNT];
    list_files(list, f);
    for (size_t i = 0; i < FORM_COUNT; i++) {
        AUTO_FD int dir = -1;
        const char *name = NULL;
        int rc = list[i].path ? open_place(&dir, &name, list[i].path, e) : 0;
        if (rc == 0 && list[i].path && faccessat(dir, ".", W_OK | X_OK, AT_EACCESS) < 0)
            rc = err_sys(e, "no file can be made in the directory of %s", list[i].path);
        if (rc < 0) {
            e->class = ERR_INPUT;
            return err_in(e, "--%s", list[i].option);
        }
    }
    return 0;
}

static int write_one(const struct wanted_file *wanted, const struct report *r, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, REPORT_SIZE_MAX);
    AUTO_FD int dir = -1;
    const char *name = NULL;
    int rc = open_place(&dir, &name, wanted->path, e);
    if (rc == 0)
        rc = wanted->form(&text, r, e);
    if (rc == 0)
        rc = file_put(dir, dir, name, buf_text(&text), text.len, e);
    return rc < 0 ? err_in(e, "writing the report %s", wanted->path) : 0;
}

int report_files_write(const struct report_files *f, const struct report *r, struct err *e)
{
    struct wanted_file list[FORM_COUNT];
    list_files(list, f);
    int rc = 0;
    for (size_t i = 0; i < FORM_COUNT; i++) {
        struct err other = ERR_INIT;
        if (list[i].path && write_one(&list[i], r, rc == 0 ? e : &other) < 0 && rc == 0)
            rc = -(int)e->class;
    }
    return rc;
}
