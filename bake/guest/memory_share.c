/* SPDX-License-Identifier: MIT */
/*
 * A guest's memory as a block map that shares what it can.
 *
 * 1. The file is read in windows. Blocks of zeros are holes. A block that is what the boot image has
 *    at the same place refers to that: nearly all of the kernel's memory.
 * 2. Of the others, blocks that a peer has anywhere refer to the peer: the page cache holds blocks of
 *    the disk, and what the kernel moved is in the boot image. They are found by a hash of 64 bits and
 *    compared byte by byte, so the hash decides what is found, never what is right. A run of fewer
 *    than RUN_MIN such blocks is not worth an extent each and a chunk that is read for one block.
 * 3. Blocks that stand twice in what is left are stored once. The rest is packed into chunks in the
 *    order of addresses. Where a chunk ends is decided by the blocks' hashes, not by addresses or
 *    counts: so two guests with the same blocks in the same order have the same chunks, also where one
 *    has some more in between.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/guest/memory_share.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/pool.h"

enum {
    WINDOW = CHUNK_SIZE_MAX,
    WINDOW_BLOCKS = WINDOW / BLOCK_SIZE,
    RUN_MIN = 2,
    LOOKS_MAX = 8,      /* blocks of one hash that are compared: hostile guests make many */
    STEPS_MAX = 64,     /* along one place of the table: they can fill that, too */
    CUT_MASK = 31,      /* a chunk ends behind one of 32 blocks, on average */
    CUT_MIN = 64 << 10, /* bytes of a chunk */
    PACK_BLOCKS = CHUNK_SIZE_MAX / BLOCK_SIZE,
};

#define NOWHERE UINT32_MAX

/* A block of the memory that the boot image does not have at its place. */
struct own_block {
    uint64_t hash;
    uint64_t number; /* offset in blocks */
    uint32_t next;   /* of the same place in the table; NOWHERE: none */
    uint32_t chunk;  /* that has it, an index; NOWHERE: not known yet */
    uint32_t chunk_off;
    uint32_t twin; /* earlier block with the same bytes; NOWHERE: none */
};

struct memory_put {
    struct store *store;
    const struct memory_parts *parts;
    struct block_map *map;
    struct bdev *boot; /* NULL: none */
    struct memory_shares shares;

    struct own_block *blocks; /* in the order of numbers */
    size_t count, capacity;
    uint32_t *table; /* first block by hash, of those that wait for peers; then of those before */
    size_t table_size;

    struct digest *chunks; /* that blocks refer to */
    size_t chunk_count, chunk_capacity;
};

static void memory_put_fini(struct memory_put *p)
{
    block_map_free(p->map);
    bdev_close(p->boot);
    free(p->blocks);
    free(p->table);
    free(p->chunks);
}
#define AUTO_MEMORY_PUT CLEANUP(memory_put_fini)

/* Whoever makes up collisions makes his own image less shared. */
static uint64_t hash_block(const uint8_t *data)
{
    uint64_t hash = BLOCK_SIZE;
    for (size_t i = 0; i < BLOCK_SIZE; i += sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, data + i, sizeof(word));
        hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool block_is_zero(const uint8_t *data)
{
    return data[0] == 0 && memcmp(data, data + 1, BLOCK_SIZE - 1) == 0;
}

static int read_device(struct bdev *d, void *data, size_t len, uint64_t off, struct err *e)
{
    int rc = bdev_read(d, data, len, off);
    if (rc == -ENOMEM)
        return err_nomem(e, "memory image");
    return rc < 0 ? err_set(e, ERR_CORRUPT, "what the memory shares cannot be read at offset %llu",
                            (unsigned long long)off)
                  : 0;
}

static int add_chunk(struct memory_put *p, const struct digest *chunk, struct err *e)
{
    if (p->chunk_count > 0 && digest_equal(&p->chunks[p->chunk_count - 1], chunk))
        return 0;
    int rc = mem_grow(&p->chunks, &p->chunk_capacity, p->chunk_count + 1, sizeof(*p->chunks), e);
    if (rc == 0)
        p->chunks[p->chunk_count++] = *chunk;
    return rc;
}

/* ---- The file ---- */

enum block_kind { BLOCK_ZERO, BLOCK_SAME, BLOCK_OWN };

struct window {
    uint64_t off;
    size_t len;
    uint8_t kinds[WINDOW_BLOCKS];
    uint64_t hashes[WINDOW_BLOCKS];
};

static int read_window(const struct memory_put *p, const struct window *w, uint8_t *data,
                       uint8_t *boot, bool *has_boot, struct err *e)
{
    uint64_t run = 0;
    int rc = cancel_check(p->parts->cancel, e);
    if (rc == 0)
        rc = file_pread_full(p->parts->fd, data, w->len, w->off, e);
    *has_boot =
        p->boot && !(bdev_content(p->boot, w->len, w->off, &run) == BDEV_ZEROS && run == w->len);
    if (rc == 0 && *has_boot)
        rc = read_device(p->boot, boot, w->len, w->off, e);
    return rc;
}

static int window_work(void *ctx, void *item, struct err *e)
{
    const struct memory_put *p = ctx;
    struct window *w = item;
    bool has_boot = false;
    AUTO_FREE uint8_t *data = mem_zalloc(WINDOW);
    AUTO_FREE uint8_t *boot = mem_zalloc(WINDOW);
    if (!data || !boot)
        return err_nomem(e, "memory image");
    int rc = read_window(p, w, data, boot, &has_boot, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < w->len / BLOCK_SIZE; i++) {
        const uint8_t *block = data + i * BLOCK_SIZE;
        if (block_is_zero(block))
            w->kinds[i] = BLOCK_ZERO;
        else if (has_boot && memcmp(block, boot + i * BLOCK_SIZE, BLOCK_SIZE) == 0)
            w->kinds[i] = BLOCK_SAME;
        else
            w->kinds[i] = BLOCK_OWN;
        if (w->kinds[i] == BLOCK_OWN)
            w->hashes[i] = hash_block(block);
    }
    return 0;
}

static int add_own(struct memory_put *p, uint64_t number, uint64_t hash, struct err *e)
{
    if (p->count >= NOWHERE)
        return err_set(e, ERR_LIMIT, "the memory has more than %u blocks", NOWHERE);
    int rc = mem_grow(&p->blocks, &p->capacity, p->count + 1, sizeof(*p->blocks), e);
    if (rc == 0)
        p->blocks[p->count++] = (struct own_block){
            .hash = hash, .number = number, .next = NOWHERE, .chunk = NOWHERE, .twin = NOWHERE};
    return rc;
}

static int window_done(void *ctx, void *item, struct err *e)
{
    struct memory_put *p = ctx;
    AUTO_FREE struct window *w = item;
    size_t count = w->len / BLOCK_SIZE;
    int rc = 0;
    for (size_t i = 0, end; rc == 0 && i < count; i = end) {
        for (end = i + 1; end < count && w->kinds[end] == w->kinds[i];)
            end++;
        uint64_t off = w->off + i * BLOCK_SIZE;
        if (w->kinds[i] == BLOCK_SAME) {
            rc = block_map_copy_range(p->map, p->parts->boot, off, (end - i) * BLOCK_SIZE, off, e);
            p->shares.same += end - i;
        }
        for (size_t n = i; rc == 0 && n < end && w->kinds[n] == BLOCK_OWN; n++)
            rc = add_own(p, w->off / BLOCK_SIZE + n, w->hashes[n], e);
    }
    return rc;
}

static void drop_item(void *ctx UNUSED, void *item)
{
    free(item);
}

/* Offset of the first window at or after `off` that is no hole; `size` when there is none. */
static int next_window(int fd, uint64_t off, uint64_t size, uint64_t *out, struct err *e)
{
    off_t data = lseek(fd, (off_t)off, SEEK_DATA);
    if (data < 0 && errno != ENXIO && errno != EINVAL)
        return err_sys(e, "looking for data at offset %llu", (unsigned long long)off);
    if (data < 0)
        *out = errno == ENXIO ? size : off; /* EINVAL: the file system cannot tell */
    else
        *out = (uint64_t)data - (uint64_t)data % WINDOW;
    return 0;
}

static int read_file(struct memory_put *p, struct err *e)
{
    static const struct pool_ops ops = {window_work, window_done, drop_item};
    AUTO_POOL struct pool *pool = NULL;
    uint64_t size = block_map_virtual_size(p->map), off = 0;
    int rc = pool_new(&pool, &ops, p, p->parts->workers, e);
    if (rc == 0)
        rc = next_window(p->parts->fd, 0, size, &off, e);
    while (rc == 0 && off < size) {
        struct window *w = mem_zalloc(sizeof(*w));
        if (!w)
            return err_nomem(e, "memory image");
        w->off = off;
        w->len = size - off < WINDOW ? (size_t)(size - off) : WINDOW;
        rc = pool_submit(pool, w, e);
        off += WINDOW;
        if (rc == 0 && off < size)
            rc = next_window(p->parts->fd, off, size, &off, e);
    }
    return rc < 0 ? rc : pool_finish(pool, e);
}

/* ---- Peers ---- */

static uint32_t *table_place(const struct memory_put *p, uint64_t hash)
{
    return &p->table[(size_t)(hash >> 7) & (p->table_size - 1)];
}

static int build_table(struct memory_put *p, struct err *e)
{
    p->table_size = 1024;
    while (p->table_size < 2 * p->count)
        p->table_size *= 2;
    p->table = mem_array(p->table_size, sizeof(*p->table));
    if (!p->table)
        return err_nomem(e, "memory image");
    memset(p->table, 0xff, p->table_size * sizeof(*p->table));
    for (size_t i = p->count; i > 0; i--) { /* so that the first block comes first */
        struct own_block *b = &p->blocks[i - 1];
        uint32_t *place = table_place(p, b->hash);
        b->next = *place;
        *place = (uint32_t)(i - 1);
    }
    return 0;
}

static int read_block(const struct memory_put *p, size_t index, uint8_t *data, struct err *e)
{
    return file_pread_full(p->parts->fd, data, BLOCK_SIZE, p->blocks[index].number * BLOCK_SIZE, e);
}

/* An extent of a peer on its way through the pool. */
struct peer_part {
    struct bdev *device;
    const struct map_extent *extent;
    uint8_t *data;
    uint64_t hashes[WINDOW_BLOCKS];
};

static void peer_part_free(struct peer_part *x)
{
    if (x)
        free(x->data);
    free(x);
}
DEFINE_AUTO(peer_part, peer_part_free)
#define AUTO_PEER_PART CLEANUP(peer_part_free_auto_)

static int peer_work(void *ctx, void *item, struct err *e)
{
    const struct memory_put *p = ctx;
    struct peer_part *x = item;
    int rc = cancel_check(p->parts->cancel, e);
    if (rc == 0)
        rc = read_device(x->device, x->data, x->extent->size, x->extent->off, e);
    for (size_t at = 0; rc == 0 && at < x->extent->size; at += BLOCK_SIZE)
        x->hashes[at / BLOCK_SIZE] = hash_block(x->data + at);
    return rc;
}

/* Gives the peer's block to own blocks that are like it, which leave the table with that: however often
 * a block stands in both, nobody walks past those that are done. */
static int offer(struct memory_put *p, const struct map_extent *x, const uint8_t *data, size_t at,
                 uint64_t hash, struct err *e)
{
    uint8_t mine[BLOCK_SIZE];
    int looks = 0, steps = 0;
    uint32_t *place = table_place(p, hash);
    while (*place != NOWHERE && looks < LOOKS_MAX && steps++ < STEPS_MAX) {
        struct own_block *b = &p->blocks[*place];
        bool same = b->hash == hash;
        int rc = same ? read_block(p, *place, mine, e) : 0;
        looks += same;
        same = same && rc == 0 && memcmp(mine, data + at, BLOCK_SIZE) == 0;
        if (same)
            rc = add_chunk(p, &x->chunk, e);
        if (rc < 0)
            return rc;
        if (!same) {
            place = &b->next;
            continue;
        }
        b->chunk = (uint32_t)p->chunk_count - 1;
        b->chunk_off = x->chunk_off + (uint32_t)at;
        *place = b->next;
    }
    return 0;
}

static int peer_done(void *ctx, void *item, struct err *e)
{
    struct memory_put *p = ctx;
    AUTO_PEER_PART struct peer_part *x = item;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < x->extent->size; at += BLOCK_SIZE)
        rc = offer(p, x->extent, x->data, at, x->hashes[at / BLOCK_SIZE], e);
    return rc;
}

static void peer_drop(void *ctx UNUSED, void *item)
{
    peer_part_free(item);
}

static int submit_part(struct pool *pool, struct bdev *d, const struct map_extent *extent,
                       struct err *e)
{
    AUTO_PEER_PART struct peer_part *x = mem_zalloc(sizeof(*x));
    if (x)
        x->data = mem_zalloc(extent->size);
    if (!x || !x->data)
        return err_nomem(e, "memory image");
    x->device = d;
    x->extent = extent;
    return pool_submit(pool, MOVE(x), e);
}

static int read_peer(struct memory_put *p, const struct memory_peer *peer, struct err *e)
{
    static const struct pool_ops ops = {peer_work, peer_done, peer_drop};
    AUTO_BDEV struct bdev *d = NULL;
    AUTO_POOL struct pool *pool = NULL;
    size_t count = peer->extents ? peer->extent_count : block_map_count(peer->map);
    int rc = bdev_open_map(&d, peer->map, p->parts->cache, e);
    if (rc == 0)
        rc = pool_new(&pool, &ops, p, p->parts->workers, e);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        size_t index = peer->extents ? peer->extents[i] : i;
        if (index < block_map_count(peer->map))
            rc = submit_part(pool, d, block_map_extent(peer->map, index), e);
    }
    return rc < 0 ? rc : pool_finish(pool, e);
}

/* True if block `i` goes on where the one before it ends, in memory and in the chunk. */
static bool goes_on(const struct memory_put *p, size_t i)
{
    const struct own_block *a = &p->blocks[i - 1], *b = &p->blocks[i];
    return a->chunk != NOWHERE && a->chunk == b->chunk && a->number + 1 == b->number &&
           a->chunk_off + BLOCK_SIZE == b->chunk_off;
}

static void drop_short_runs(struct memory_put *p)
{
    for (size_t i = 0, end; i < p->count; i = end) {
        for (end = i + 1; end < p->count && goes_on(p, end);)
            end++;
        bool is_short = p->blocks[i].chunk != NOWHERE && end - i < RUN_MIN;
        for (size_t n = i; is_short && n < end; n++)
            p->blocks[n].chunk = NOWHERE;
        if (p->blocks[i].chunk != NOWHERE)
            p->shares.peers += end - i;
    }
}

/* ---- The rest ---- */

/* Finds an earlier block with the same bytes; one that has none joins the table. So however often a block
 * stands in the memory, it is met once. */
static int find_twin(struct memory_put *p, size_t index, struct err *e)
{
    struct own_block *b = &p->blocks[index];
    uint8_t mine[BLOCK_SIZE], other[BLOCK_SIZE];
    uint32_t *place = table_place(p, b->hash);
    int looks = 0, steps = 0;
    for (uint32_t i = *place; i != NOWHERE && looks < LOOKS_MAX && steps++ < STEPS_MAX;
         i = p->blocks[i].next) {
        if (p->blocks[i].hash != b->hash)
            continue;
        int rc = looks++ == 0 ? read_block(p, index, mine, e) : 0;
        if (rc == 0)
            rc = read_block(p, i, other, e);
        if (rc < 0)
            return rc;
        if (memcmp(mine, other, BLOCK_SIZE) == 0) {
            b->twin = i;
            p->shares.twice++;
            return 0;
        }
    }
    b->next = *place;
    *place = (uint32_t)index;
    return 0;
}

/* Blocks that become a chunk. */
struct pack {
    uint32_t blocks[PACK_BLOCKS];
    size_t count;
    struct digest chunk;
};

static int pack_work(void *ctx, void *item, struct err *e)
{
    const struct memory_put *p = ctx;
    struct pack *k = item;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    int rc = data ? cancel_check(p->parts->cancel, e) : err_nomem(e, "memory image");
    for (size_t i = 0; rc == 0 && i < k->count; i++)
        rc = read_block(p, k->blocks[i], data + i * BLOCK_SIZE, e);
    return rc < 0 ? rc : store_put_chunk(p->store, data, k->count * BLOCK_SIZE, &k->chunk, e);
}

static int pack_done(void *ctx, void *item, struct err *e)
{
    struct memory_put *p = ctx;
    AUTO_FREE struct pack *k = item;
    int rc = add_chunk(p, &k->chunk, e);
    for (size_t i = 0; rc == 0 && i < k->count; i++) {
        struct own_block *b = &p->blocks[k->blocks[i]];
        b->chunk = (uint32_t)p->chunk_count - 1;
        b->chunk_off = (uint32_t)(i * BLOCK_SIZE);
    }
    p->shares.own += k->count;
    return rc;
}

static bool ends_here(const struct memory_put *p, const struct pack *k)
{
    const struct own_block *last = &p->blocks[k->blocks[k->count - 1]];
    return k->count == PACK_BLOCKS ||
           (k->count >= CUT_MIN / BLOCK_SIZE && (last->hash & CUT_MASK) == 0);
}

static int put_rest(struct memory_put *p, struct err *e)
{
    static const struct pool_ops ops = {pack_work, pack_done, drop_item};
    AUTO_POOL struct pool *pool = NULL;
    AUTO_FREE struct pack *k = NULL;
    int rc = pool_new(&pool, &ops, p, p->parts->workers, e);
    for (size_t i = 0; rc == 0 && i < p->count; i++) {
        const struct own_block *b = &p->blocks[i];
        if (b->chunk != NOWHERE || b->twin != NOWHERE)
            continue;
        if (!k && !(k = mem_zalloc(sizeof(*k))))
            return err_nomem(e, "memory image");
        k->blocks[k->count++] = (uint32_t)i;
        if (ends_here(p, k))
            rc = pool_submit(pool, MOVE(k), e);
    }
    if (rc == 0 && k)
        rc = pool_submit(pool, MOVE(k), e);
    return rc < 0 ? rc : pool_finish(pool, e);
}

static int find_twins(struct memory_put *p, struct err *e)
{
    int rc = 0;
    memset(p->table, 0xff, p->table_size * sizeof(*p->table));
    for (size_t i = 0; rc == 0 && i < p->count; i++) {
        if (i % WINDOW_BLOCKS == 0)
            rc = cancel_check(p->parts->cancel, e);
        if (rc == 0 && p->blocks[i].chunk == NOWHERE)
            rc = find_twin(p, i, e);
    }
    return rc;
}

static int map_blocks(struct memory_put *p, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->count; i++) {
        const struct own_block *b = &p->blocks[i];
        const struct own_block *holder = b->twin != NOWHERE ? &p->blocks[b->twin] : b;
        rc = block_map_add(p->map,
                           &(struct map_extent){.off = b->number * BLOCK_SIZE,
                                                .size = BLOCK_SIZE,
                                                .chunk_off = holder->chunk_off,
                                                .chunk = p->chunks[holder->chunk]},
                           e);
    }
    return rc < 0 ? rc : block_map_finish(p->map, e);
}

static int open_parts(struct memory_put *p, struct err *e)
{
    struct stat st;
    const struct block_map *boot = p->parts->boot;
    if (fstat(p->parts->fd, &st) < 0)
        return err_sys(e, "reading the size of the memory");
    uint64_t size = (uint64_t)st.st_size;
    if (size % BLOCK_SIZE != 0)
        return err_set(e, ERR_CORRUPT, "%llu bytes are no size for a memory",
                       (unsigned long long)size);
    if (boot && block_map_virtual_size(boot) != size)
        return err_set(e, ERR_CORRUPT, "the boot image has %llu bytes of memory, not %llu",
                       (unsigned long long)block_map_virtual_size(boot), (unsigned long long)size);
    int rc = block_map_new(&p->map, size, e);
    return rc < 0 || !boot ? rc : bdev_open_map(&p->boot, boot, p->parts->cache, e);
}

int memory_put(struct block_map **out, struct store *s, const struct memory_parts *parts,
               struct memory_shares *shares, struct err *e)
{
    AUTO_MEMORY_PUT struct memory_put p = {.store = s, .parts = parts};
    int rc = open_parts(&p, e);
    if (rc == 0)
        rc = read_file(&p, e);
    if (rc == 0)
        rc = build_table(&p, e);
    for (size_t i = 0; rc == 0 && i < parts->peer_count; i++)
        rc = read_peer(&p, &parts->peers[i], e);
    drop_short_runs(&p);
    if (rc == 0)
        rc = find_twins(&p, e);
    if (rc == 0)
        rc = put_rest(&p, e);
    if (rc == 0)
        rc = map_blocks(&p, e);
    if (rc < 0)
        return rc;
    p.shares.extents = block_map_count(p.map);
    if (shares)
        *shares = p.shares;
    *out = MOVE(p.map);
    return 0;
}
