/* SPDX-License-Identifier: MIT */
/* put_disk STORE FILE: chunks FILE into STORE as a disk and prints its digest. */
#include <fcntl.h>
#include <stdio.h>

#include "base/file.h"
#include "blockdev/blockdev.h"

int main(int argc, char **argv)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    AUTO_FD int fd = -1;
    struct digest digest;
    if (argc != 3)
        return 2;
    int rc = store_open(&s, argv[1], &e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, argv[2], O_RDONLY, 0, &e);
    if (rc == 0)
        rc = store_put_file(s, fd, 2, &m, &e);
    if (rc == 0)
        rc = store_put_map(s, m, &digest, &e);
    if (rc < 0) {
        fprintf(stderr, "put_disk: %s\n", e.text);
        return 1;
    }
    char text[DIGEST_TEXT_MAX];
    puts(digest_print(&digest, text));
    return 0;
}
