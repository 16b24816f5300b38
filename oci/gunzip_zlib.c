/* SPDX-License-Identifier: MIT */
/* gzip members by zlib: where ISA-L is not to be had, and what it is compared with. */
#include <zlib.h>

#include "base/mem.h"
#include "oci/internal.h"

struct gunzip {
    z_stream zlib;
};

static void *gunzip_open(void)
{
    struct gunzip *g = mem_zalloc(sizeof(*g));
    if (g && inflateInit2(&g->zlib, MAX_WBITS + 16) != Z_OK) {
        free(g);
        return NULL;
    }
    return g;
}

static void gunzip_close(void *self)
{
    struct gunzip *g = self;
    inflateEnd(&g->zlib);
    free(g);
}

static void gunzip_restart(void *self)
{
    struct gunzip *g = self;
    inflateReset(&g->zlib);
}

static int gunzip_inflate(void *self, struct oci_gunzip_io *io, bool *ended, struct err *e)
{
    struct gunzip *g = self;
    g->zlib.next_in = io->in;
    g->zlib.avail_in = (uInt)io->in_len;
    g->zlib.next_out = io->out;
    g->zlib.avail_out = (uInt)io->out_len;
    int status = inflate(&g->zlib, Z_NO_FLUSH);
    io->in = g->zlib.next_in;
    io->in_len = g->zlib.avail_in;
    io->out = g->zlib.next_out;
    io->out_len = g->zlib.avail_out;
    *ended = status == Z_STREAM_END;
    if (status == Z_MEM_ERROR)
        return err_nomem(e, "gzip decoder");
    if (status != Z_OK && status != Z_BUF_ERROR && status != Z_STREAM_END)
        return err_set(e, ERR_CORRUPT, "%s", g->zlib.msg ? g->zlib.msg : "damaged");
    return 0;
}

const struct oci_gunzip oci_gunzip_zlib = {.name = "zlib",
                                           .open = gunzip_open,
                                           .inflate = gunzip_inflate,
                                           .restart = gunzip_restart,
                                           .close = gunzip_close};
