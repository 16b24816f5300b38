/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target over files: each argument is a file, or a directory of files (which may
 * lack). */
#include <dirent.h>
#include <fcntl.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "fuzz.h"

enum { INPUT_MAX = 16 << 20 };

static size_t replayed;

static int replay_file(int dir, const char *path, struct err *e)
{
    AUTO_BUF struct buf input;
    buf_init(&input, INPUT_MAX);
    int rc = file_read(dir, path, &input, e);
    if (rc < 0)
        return rc;
    fprintf(stderr, "%s\n", path); /* the last line before a crash names the file */
    /* A block of its own size, so that AddressSanitizer sees a read past the end. */
    AUTO_FREE uint8_t *exact = mem_dup(input.data, input.len);
    if (!exact)
        return err_nomem(e, path);
    (void)LLVMFuzzerTestOneInput(exact, input.len);
    replayed++;
    return 0;
}

static int replay_directory(int fd, struct err *e)
{
    DIR *list = fdopendir(fd);
    if (!list)
        return err_sys(e, "listing");
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(list));) {
        if (entry->d_name[0] != '.')
            rc = replay_file(dirfd(list), entry->d_name, e);
    }
    closedir(list);
    return rc;
}

static int replay(const char *path, struct err *e)
{
    int fd = -1;
    if (file_open(&fd, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, e) == 0)
        return replay_directory(fd, e);
    if (e->class == ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    err_clear(e);
    return replay_file(AT_FDCWD, path, e);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct err e = ERR_INIT;
        if (replay(argv[i], &e) < 0) {
            fprintf(stderr, "%s: %s\n", argv[i], e.text);
            return 1;
        }
    }
    fprintf(stderr, "%zu inputs\n", replayed);
    return replayed > 0 ? 0 : 1;
}
