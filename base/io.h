/* SPDX-License-Identifier: MIT */
/*
 * `source`: a random-access reader; `sink`: an ordered writer. What modules that do not know each
 * other pass data through: registry implements them over HTTP, file.h over files, oci and blockdev
 * consume them.
 */
#ifndef TB2_BASE_IO_H
#define TB2_BASE_IO_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct source {
    /*
     * Required. Reads up to `len` bytes at `off`; *got is how many (0 only at or past the end, or
     * when len is 0; fewer than asked is allowed elsewhere). Must be callable from several threads.
     */
    int (*read)(void *self, uint64_t off, void *data, size_t len, size_t *got, struct err *e);
    /* Optional: releases `self`. */
    void (*close)(void *self);
    void *self;
    uint64_t size; /* bytes */
};

struct sink {
    /* Required. Takes the next `len` bytes; called by one thread at a time, in order. */
    int (*write)(void *self, const void *data, size_t len, struct err *e);
    void *self;
};

/* Reads exactly `len` bytes; ERR_CORRUPT when the source ends before. */
int source_read_full(const struct source *s, uint64_t off, void *data, size_t len,
                     struct err *e) MUST_USE;

/* Calls close, if there is one. `s` may be zeroed. */
void source_close(struct source *s);

/* A source over bytes that the caller keeps alive. */
int source_from_memory(struct source *out, const void *data, size_t len, struct err *e) MUST_USE;

/* A source over a file descriptor, which it takes over, also on failure, and closes. Its size is
 * the file's size now. */
int source_from_fd(struct source *out, int fd, struct err *e) MUST_USE;

#endif
