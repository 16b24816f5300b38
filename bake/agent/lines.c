/* SPDX-License-Identifier: MIT */
/*
 * Text files of the image, a line at a time: nothing is allocated, whatever their size. A line that is
 * too long reads as an empty one, which means nothing to any reader.
 */
#include "bake/agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

char *lines_next(struct lines *f)
{
    size_t len = 0;
    bool too_long = false;
    for (;;) {
        if (f->at == f->len) {
            ssize_t got = f->fd < 0 ? 0 : read(f->fd, f->bytes, sizeof(f->bytes));
            f->at = 0;
            f->len = got > 0 ? (size_t)got : 0;
        }
        bool end = f->len == 0;
        if (end && len == 0)
            return NULL;
        if (!end && f->bytes[f->at] != '\n') {
            too_long = too_long || len + 1 >= sizeof(f->line);
            if (!too_long)
                f->line[len++] = f->bytes[f->at];
            f->at++;
            continue;
        }
        if (!end)
            f->at++;
        f->line[too_long ? 0 : len] = 0;
        return f->line;
    }
}

int lines_open(struct lines *f, const char *path)
{
    f->at = f->len = 0;
    f->fd = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return f->fd < 0 && errno != ENOENT && errno != ENOTDIR ? -errno : 0;
}

void lines_close(struct lines *f)
{
    if (f->fd >= 0)
        close(f->fd);
}
