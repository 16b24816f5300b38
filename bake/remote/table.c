/* SPDX-License-Identifier: MIT */
/* Tables of chunks as bytes (docs/formats/remote-store.md). */
#include <stdlib.h>
#include <string.h>

#include "bake/remote/internal.h"
#include "base/mem.h"

/* docs/formats/remote-store.md, "Tables". */
static const char magic[8] = {'t', 'b', '2', 'c', 'h', 'u', 'n', 'k'};

enum { ROW_LEN = DIGEST_SHA256_LEN + 4 + 4 + 8 };

void remote_table_fini(struct remote_table *t)
{
    free(t->places);
    *t = (struct remote_table){0};
}

int remote_table_encode(const struct remote_table *t, struct buf *out, struct err *e)
{
    int rc = buf_add(out, magic, sizeof(magic), e);
    if (rc == 0)
        rc = buf_add_u64(out, t->count, e);
    for (size_t i = 0; rc == 0 && i < t->count; i++) {
        const struct remote_place *p = &t->places[i];
        rc = buf_add(out, p->chunk.bytes, DIGEST_SHA256_LEN, e);
        if (rc == 0)
            rc = buf_add_u32(out, p->pack, e);
        if (rc == 0)
            rc = buf_add_u32(out, p->len, e);
        if (rc == 0)
            rc = buf_add_u64(out, p->off, e);
    }
    return rc;
}

static int decode_row(struct remote_place *p, struct cursor *c, struct err *e)
{
    const uint8_t *digest;
    p->chunk.algorithm = DIGEST_SHA256;
    int rc = cursor_bytes(c, &digest, DIGEST_SHA256_LEN, e);
    if (rc < 0)
        return rc;
    memcpy(p->chunk.bytes, digest, DIGEST_SHA256_LEN);
    rc = cursor_u32(c, &p->pack, e);
    if (rc == 0)
        rc = cursor_u32(c, &p->len, e);
    if (rc == 0)
        rc = cursor_u64(c, &p->off, e);
    if (rc == 0 && (p->len == 0 || p->len > CHUNK_STORED_MAX))
        rc = err_set(e, ERR_CORRUPT, "a chunk of %u stored bytes", p->len);
    return rc;
}

int remote_table_decode(struct remote_table *out, const void *bytes, size_t len, struct err *e)
{
    struct cursor c = {.at = bytes, .left = len};
    const uint8_t *head;
    uint64_t count = 0;
    int rc = cursor_bytes(&c, &head, sizeof(magic), e);
    if (rc == 0)
        rc = cursor_u64(&c, &count, e);
    if (rc == 0 && (memcmp(head, magic, sizeof(magic)) != 0 || count != c.left / ROW_LEN ||
                    c.left % ROW_LEN != 0))
        rc = err_set(e, ERR_CORRUPT, "not a table of chunks");
    if (rc < 0)
        return rc;
    struct remote_table t = {.places = mem_array((size_t)count, sizeof(*t.places)),
                             .count = (size_t)count,
                             .capacity = (size_t)count};
    if (!t.places)
        return err_nomem(e, "table of chunks");
    for (size_t i = 0; rc == 0 && i < t.count; i++)
        rc = decode_row(&t.places[i], &c, e);
    if (rc < 0) {
        remote_table_fini(&t);
        return rc;
    }
    *out = t;
    return 0;
}
