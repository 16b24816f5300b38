/* SPDX-License-Identifier: MIT */
/*
 * What a task's machines said on their consoles, one after another in a file beside the run's journal. It
 * is for people who look for a reason: that it cannot be kept is no failure. A step may have written its
 * secrets there: they are masked as in its output.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "bake/channel/console.h"
#include "bake/guest/internal.h"
#include "bake/recipe/secrets.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

void guest_keep_console(const struct guest *g)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf text;
    AUTO_BUF struct buf masked;
    AUTO_FD int fd = -1;
    struct stat st;
    buf_init(&text, 2 * CONSOLE_FILE_MAX);
    buf_init(&masked, 2 * CONSOLE_FILE_MAX);
    AUTO_FREE char *path = mem_printf("%s/console.log", g->dir);
    int rc = path ? file_read(AT_FDCWD, path, &text, &e) : err_nomem(&e, "console");
    if (rc == 0)
        rc = secret_mask_whole(g->secrets, text.data, text.len, &masked, &e);
    if (rc == 0)
        rc = file_open(&fd, store_dir(g->room->store), g->console, O_WRONLY | O_CREAT | O_APPEND,
                       0644, &e);
    if (rc == 0 && fstat(fd, &st) == 0 && st.st_size + (off_t)masked.len <= CONSOLE_FILE_MAX)
        rc = file_write_full(fd, masked.data, masked.len, &e);
    if (rc < 0 && rc != -ERR_NOTFOUND)
        log_event(LOG_WARN, "bake", "console log: %s", e.text);
}
