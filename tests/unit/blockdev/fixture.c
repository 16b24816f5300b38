/* SPDX-License-Identifier: MIT */
/* See fixture.h. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* In memory where there is room: syncs then cost nothing, however busy the disk is. */
static const char *place(void)
{
    static const uint64_t room = (uint64_t)2 << 30;
    struct statvfs v;
    return statvfs("/dev/shm", &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize >= room ? "/dev/shm"
                                                                                     : "/tmp";
}

int fixture_setup(void **state)
{
    struct err e = ERR_INIT;
    struct fixture *f = mem_zalloc(sizeof(*f));
    if (!f)
        return -1;
    snprintf(f->path, sizeof(f->path), "%s/tb2-test-XXXXXX", place());
    if (!mkdtemp(f->path) || store_open(&f->store, f->path, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return -1;
    }
    *state = f;
    return 0;
}

int fixture_teardown(void **state)
{
    struct err e = ERR_INIT;
    struct fixture *f = *state;
    store_close(f->store);
    int rc = file_remove_tree(AT_FDCWD, f->path, &e);
    free(f);
    return rc;
}

void fixture_fill(uint8_t *data, size_t len, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < len; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        data[i] = (uint8_t)(x >> 24);
    }
}

int fixture_file(struct fixture *f)
{
    struct err e = ERR_INIT;
    struct file_tmp t = {.fd = -1};
    if (file_tmp_open(&t, store_tmp_dir(f->store), &e) < 0)
        return -1;
    unlinkat(t.tmp_dir, t.name, 0);
    return t.fd;
}
