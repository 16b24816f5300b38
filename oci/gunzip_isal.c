/* SPDX-License-Identifier: MIT */
/*
 * gzip members by ISA-L, whose inflate is several times as fast as zlib's (docs/benchmarks.md).
 *
 * Its own reader of member headers (2.30) takes a header CRC for wrong when the header comes in two
 * pieces, and lets flags pass that RFC 1952 reserves; so headers are read here, byte by byte, and
 * ISA-L starts behind them. It checks the trailer.
 */
#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>

#include "base/mem.h"
#include "oci/internal.h"

/* RFC 1952, section 2.3.1. */
enum { FLAG_HCRC = 2, FLAG_EXTRA = 4, FLAG_NAME = 8, FLAG_COMMENT = 16, FLAGS_RESERVED = 0xe0 };

enum part { FIXED, EXTRA_LEN, EXTRA, NAME, COMMENT, HEADER_CRC, BODY };

struct gunzip {
    enum part part;
    uint8_t flags;
    uint32_t count; /* bytes of the part so far; of EXTRA: still to come */
    uint32_t value; /* of a number that is being read */
    uint32_t crc;   /* of the header so far */
    struct inflate_state state;
};

static void gunzip_restart(void *self)
{
    struct gunzip *g = self;
    g->part = FIXED;
    g->count = 0;
    g->crc = 0;
    isal_inflate_reset(&g->state);
    g->state.crc_flag = ISAL_GZIP_NO_HDR_VER;
}

static void *gunzip_open(void)
{
    struct gunzip *g = mem_zalloc(sizeof(*g));
    if (!g)
        return NULL;
    isal_inflate_init(&g->state);
    gunzip_restart(g);
    return g;
}

static void gunzip_close(void *self)
{
    free(self);
}

/* Goes to the next part that the flags say is there. */
static void next_part(struct gunzip *g)
{
    static const uint8_t wanted[] = {
        [EXTRA_LEN] = FLAG_EXTRA, [EXTRA] = FLAG_EXTRA,     [NAME] = FLAG_NAME,
        [COMMENT] = FLAG_COMMENT, [HEADER_CRC] = FLAG_HCRC, [BODY] = 0xff};
    do {
        g->part++;
    } while (g->part != BODY && !(g->flags & wanted[g->part]));
    g->count = 0;
}

static int fixed_byte(struct gunzip *g, uint8_t byte, struct err *e)
{
    static const uint8_t start[] = {0x1f, 0x8b, 8};
    if (g->count < 2 && byte != start[g->count])
        return err_set(e, ERR_CORRUPT, "incorrect header check");
    if (g->count == 2 && byte != start[2])
        return err_set(e, ERR_CORRUPT, "unknown compression method");
    if (g->count == 3 && (byte & FLAGS_RESERVED))
        return err_set(e, ERR_CORRUPT, "unknown header flags set");
    if (g->count == 3)
        g->flags = byte;
    if (++g->count == 10)
        next_part(g);
    return 0;
}

/* A number of two bytes; true when it is whole. */
static bool number_byte(struct gunzip *g, uint8_t byte)
{
    g->value = g->count == 0 ? byte : g->value | (uint32_t)byte << 8;
    return ++g->count == 2;
}

static int header_byte(struct gunzip *g, uint8_t byte, struct err *e)
{
    uint32_t crc = g->crc;
    g->crc = crc32_gzip_refl(crc, &byte, 1);
    switch (g->part) {
    case FIXED:
        return fixed_byte(g, byte, e);
    case EXTRA_LEN:
        if (!number_byte(g, byte))
            break;
        next_part(g);
        g->count = g->value;
        if (g->count == 0)
            next_part(g);
        break;
    case EXTRA:
        if (--g->count == 0)
            next_part(g);
        break;
    case NAME:
    case COMMENT:
        if (byte == 0)
            next_part(g);
        break;
    case HEADER_CRC:
        if (g->count == 0) /* which does not cover itself */
            g->value = crc & 0xffff;
        if (byte != (uint8_t)(g->value >> 8 * g->count))
            return err_set(e, ERR_CORRUPT, "header crc mismatch");
        if (++g->count == 2)
            next_part(g);
        break;
    case BODY:
        break;
    }
    return 0;
}

static const char *failure_text(int status)
{
    switch (status) {
    case ISAL_INVALID_BLOCK:
        return "invalid deflate block";
    case ISAL_INVALID_SYMBOL:
        return "invalid code";
    case ISAL_INVALID_LOOKBACK:
        return "invalid distance too far back";
    case ISAL_INCORRECT_CHECKSUM:
        return "incorrect data check";
    default:
        return "damaged";
    }
}

static int gunzip_inflate(void *self, struct oci_gunzip_io *io, bool *ended, struct err *e)
{
    struct gunzip *g = self;
    *ended = false;
    while (g->part != BODY) {
        if (io->in_len == 0)
            return 0;
        int rc = header_byte(g, *io->in, e);
        if (rc < 0)
            return rc;
        io->in++;
        io->in_len--;
    }
    g->state.next_in = io->in;
    g->state.avail_in = (uint32_t)io->in_len;
    g->state.next_out = io->out;
    g->state.avail_out = (uint32_t)io->out_len;
    int status = isal_inflate(&g->state);
    io->in = g->state.next_in;
    io->in_len = g->state.avail_in;
    io->out = g->state.next_out;
    io->out_len = g->state.avail_out;
    if (status != ISAL_DECOMP_OK)
        return err_set(e, ERR_CORRUPT, "%s", failure_text(status));
    *ended = g->state.block_state == ISAL_BLOCK_FINISH;
    return 0;
}

const struct oci_gunzip oci_gunzip_isal = {.name = "ISA-L",
                                           .open = gunzip_open,
                                           .inflate = gunzip_inflate,
                                           .restart = gunzip_restart,
                                           .close = gunzip_close};
