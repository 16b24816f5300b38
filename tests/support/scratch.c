/* SPDX-License-Identifier: MIT */
#include "scratch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

void scratch_init(struct scratch *s)
{
    struct err e = ERR_INIT;
    memcpy(s->path, "/tmp/tb2-test-XXXXXX", sizeof("/tmp/tb2-test-XXXXXX"));
    if (!mkdtemp(s->path) || file_open_dir(&s->fd, AT_FDCWD, s->path, &e) < 0) {
        fprintf(stderr, "no temporary directory: %s\n", e.text);
        abort();
    }
}

void scratch_fini(struct scratch *s)
{
    struct err e = ERR_INIT;
    file_close(&s->fd);
    if (file_remove_tree(AT_FDCWD, s->path, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
}
