/* SPDX-License-Identifier: MIT */
/* Sources over memory and files: see io.h. */
#include "base/io.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

int source_read_full(const struct source *s, uint64_t off, void *data, size_t len, struct err *e)
{
    size_t done = 0;
    while (done < len) {
        size_t got = 0;
        int rc = s->read(s->self, off + done, (char *)data + done, len - done, &got, e);
        if (rc < 0)
            return rc;
        if (got == 0)
            return err_set(e, ERR_CORRUPT, "expected %zu bytes at offset %llu, read %zu", len,
                           (unsigned long long)off, done);
        done += got;
    }
    return 0;
}

void source_close(struct source *s)
{
    if (s->close)
        s->close(s->self);
    *s = (struct source){0};
}

struct memory_source {
    const char *data;
    size_t len;
};

static int memory_read(void *self, uint64_t off, void *data, size_t len, size_t *got,
                       struct err *e UNUSED)
{
    const struct memory_source *m = self;
    size_t left = off < m->len ? m->len - (size_t)off : 0;
    *got = len < left ? len : left;
    if (*got > 0)
        memcpy(data, m->data + off, *got);
    return 0;
}

int source_from_memory(struct source *out, const void *data, size_t len, struct err *e)
{
    struct memory_source *m = mem_zalloc(sizeof(*m));
    if (!m)
        return err_nomem(e, "source");
    *m = (struct memory_source){.data = data, .len = len};
    *out = (struct source){.read = memory_read, .close = free, .self = m, .size = len};
    return 0;
}

struct file_source {
    int fd;
};

static int file_source_read(void *self, uint64_t off, void *data, size_t len, size_t *got,
                            struct err *e)
{
    const struct file_source *f = self;
    ssize_t n;
    do {
        n = pread(f->fd, data, len, (off_t)off);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_sys(e, "reading at offset %llu", (unsigned long long)off);
    *got = (size_t)n;
    return 0;
}

static void file_source_close(void *self)
{
    struct file_source *f = self;
    file_close(&f->fd);
    free(f);
}

int source_from_fd(struct source *out, int fd, struct err *e)
{
    AUTO_FD int held = fd;
    struct stat st;
    if (fstat(fd, &st) < 0)
        return err_sys(e, "reading the size of a file");
    struct file_source *f = mem_zalloc(sizeof(*f));
    if (!f)
        return err_nomem(e, "source");
    f->fd = held;
    held = -1;
    *out = (struct source){.read = file_source_read,
                           .close = file_source_close,
                           .self = f,
                           .size = (uint64_t)st.st_size};
    return 0;
}
