/* SPDX-License-Identifier: MIT */
/*
 * Searching a guest for secrets, before anything of it is stored. The disk is searched after each step that
 * had some, memory and device state when the machine has stopped.
 */
#include <fcntl.h>
#include <stdlib.h>

#include "bake/guest/guest.h"
#include "bake/recipe/secrets.h"
#include "base/file.h"
#include "base/mem.h"

enum { SEARCH_LEN = 1 << 20 };

/* All that was written so far; what is read meanwhile is as the guest would read it. */
static int search_upper(struct bdev *disk, struct secret_search *search, struct err *e)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(SEARCH_LEN);
    int rc = bytes ? 0 : err_nomem(e, "searching for secrets");
    uint64_t run = 0;
    for (uint64_t off = 0; rc == 0 && off < disk->size && !search->found; off += run) {
        if (!bdev_cow_written(disk, off, &run)) {
            secret_search_part(search);
            continue;
        }
        run = run < SEARCH_LEN ? run : SEARCH_LEN;
        int failed = bdev_read(disk, bytes, (size_t)run, off);
        rc = failed < 0 ? err_sysno(e, -failed, "searching the disk for secrets")
                        : secret_search_add(search, bytes, (size_t)run, e);
    }
    return rc;
}

int guest_search_disk(struct guest *g, const struct secret_set *set, struct err *e)
{
    struct secret_search search;
    secret_search_init(&search, set);
    int rc = search_upper(g->disk, &search, e);
    if (rc == 0 && search.found) {
        err_set(e, ERR_STEP, "a step wrote the secret %s to the disk", search.found);
        rc = err_hint(e,
                      "what it removed again is still on the disk: keep it below /dev/shm instead");
    }
    secret_search_fini(&search);
    return rc;
}

static int search_file(const char *path, const char *what, const struct secret_set *set,
                       struct err *e)
{
    AUTO_FD int fd = -1;
    struct secret_search search;
    secret_search_init(&search, set);
    int rc = file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = secret_search_file(&search, fd, e);
    if (rc == 0 && search.found) {
        err_set(e, ERR_STEP, "the guest's %s has the secret %s in it", what, search.found);
        rc = err_hint(e, "no process may keep it when the step with it has ended");
    }
    secret_search_fini(&search);
    return rc;
}

int guest_search_all(struct guest *g, const char *state_path, const struct secret_set *set,
                     struct err *e)
{
    int rc = set ? guest_search_disk(g, set, e) : 0; /* of a step that failed, too */
    if (rc < 0 || !set)
        return rc;
    rc = search_file(g->memory_path, "memory", set, e);
    return rc < 0 ? rc : search_file(state_path, "device state", set, e);
}
