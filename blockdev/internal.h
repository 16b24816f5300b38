/* SPDX-License-Identifier: MIT */
/* What the files of blockdev share with one another and with their unit tests. */
#ifndef TB2_BLOCKDEV_INTERNAL_H
#define TB2_BLOCKDEV_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "blockdev/blockdev.h"

/* ---- Chunk files (chunk.c) ---------------------------------------------------------------- */

/* Compressor and decompressor state of one thread at a time. */
struct chunk_codec;

/* `level` is zstd's. */
int chunk_codec_new(struct chunk_codec **out, int level, struct err *e) MUST_USE;
void chunk_codec_free(struct chunk_codec *c);

/* Compresses; the result is borrowed from the codec until its next use. */
int chunk_encode(struct chunk_codec *c, const void *data, size_t len, const void **out,
                 size_t *out_len, struct err *e) MUST_USE;

/* The plain bytes of a chunk's stored form into `data` (room for CHUNK_SIZE_MAX). ERR_CORRUPT,
 * without a name, for anything but one whole frame of a valid chunk size. */
int chunk_decode(struct chunk_codec *c, const void *stored, size_t stored_len, void *data,
                 size_t *len, struct err *e) MUST_USE;

/* Reads an open chunk file into `data` (room for CHUNK_SIZE_MAX). ERR_CORRUPT, without a name,
 * for anything but one whole frame of a valid chunk size. */
int chunk_decode_file(struct chunk_codec *c, int fd, void *data, size_t *len,
                      struct err *e) MUST_USE;

enum {
    CHUNK_PATH_MAX = 10 + DIGEST_TEXT_MAX, /* "chunks/ab/" + hex + NUL */
};

/* Where a chunk lies in the store; returns `path`. */
const char *store_chunk_path(const struct digest *d, char path[CHUNK_PATH_MAX]);

/* Gives a finished chunk file its name. */
int store_commit_chunk(struct store *s, const struct digest *d, struct file_tmp *t,
                       struct err *e) MUST_USE;

/* ---- Chunks from elsewhere (chunk_source.c) ----------------------------------------------- */

/* A chunk on its way. */
struct chunk_flight {
    struct digest digest;
    struct chunk_flight *next;
};

/* What a store knows of its source. */
struct chunk_fetches {
    _Atomic(const struct chunk_source *) source; /* borrowed; NULL: none */
    int64_t limit_ms;                            /* how long a chunk is waited for */
    pthread_mutex_t mutex;                       /* the rest */
    pthread_cond_t landed;                       /* a flight ended, or the last reader left */
    struct chunk_flight *flights;
    unsigned readers; /* that wait for a chunk; a prefetch lets them go first */
};

void chunk_fetches_init(struct chunk_fetches *f);
void chunk_fetches_fini(struct chunk_fetches *f);
struct chunk_fetches *store_fetches(struct store *s);

/* Shortens or lengthens the wait for a chunk. */
void store_set_source_limit(struct store *s, int64_t limit_ms);

/* Reads a chunk that is there; ERR_NOTFOUND, ERR_CORRUPT or ERR_DIGEST, which also removes it. */
int store_read_chunk(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                     size_t *len, struct err *e) MUST_USE;

/* Brings a chunk that the store lacks, or holds damaged, from the store's source, verifies and keeps
 * it; one that is on its way already is waited for. `e` holds why it could not be read here and
 * stays that way when there is no source. */
int store_fetch_chunk(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                      size_t *len, struct err *e) MUST_USE;

/* Brings a chunk that nobody waits for; with one try, since who wants it then asks for himself. */
int store_fetch_ahead(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                      struct err *e) MUST_USE;

/* Counts a reader that waits for a fetch: 1 in, -1 out. */
void store_count_reader(struct store *s, int by);

/* Waits, at most `limit_ms`, until no reader waits for a chunk. */
void store_wait_quiet(struct store *s, int64_t limit_ms);

/* ---- Store ------------------------------------------------------------------------------- */

/* A codec of the store's idle ones (or a new one), and back. */
int store_take_codec(struct store *s, struct chunk_codec **out, struct err *e) MUST_USE;
void store_give_codec(struct store *s, struct chunk_codec *c);

/* To be called before the first chunk is written: leaves, durably, what tells the next store_open
 * which boot of the machine this process ran in. */
int store_begin_chunks(struct store *s, struct err *e) MUST_USE;

/* Counts a map that was written without a sync, so that the next store_sync_chunks is none for nothing. */
void store_count_unsynced_map(struct store *s);
/* When this process opened the store: ns of the epoch, by the file system's clock. */
int64_t store_opened_ns(const struct store *s);

/* Makes every chunk that this process offered since the last call durable. */
int store_sync_chunks(struct store *s, struct err *e) MUST_USE;

bool store_is_distrusted(const struct store *s);
/* Counts a chunk for store_stats; `stored_size` 0: was there already. */
void store_count_chunk(struct store *s, uint64_t stored_size);

/* Reads and checks every chunk changed at or after `since` (seconds of the epoch) and removes the
 * damaged ones: for what a power cut may have torn. */
int store_recheck_chunks(struct store *s, int64_t since, struct err *e) MUST_USE;

/* ---- Regions (region.c) ------------------------------------------------------------------- */

/* Bytes of one layer's region: a quarter of what ext4 can address without the 64bit feature. */
#define REGION_SIZE_MAX ((uint64_t)4 << 40)

/* ---- ext4 (ext4_plan.c, ext4_dir.c, ext4.c) ------------------------------------------------ */

enum {
    EXT4_INODE_SIZE = 256,
    EXT4_BLOCKS_PER_GROUP = 8 * BLOCK_SIZE, /* one bitmap block's bits */
    EXT4_ROOT_INODE = 2,
    EXT4_FIRST_INODE = 11, /* the ones before are reserved */
    EXT4_LINKS_MAX = 65000,
    EXT4_NAME_MAX = 255,
    EXT4_EXTENTS_IN_BLOCK = (BLOCK_SIZE - 12 - 4) / 12, /* header before, checksum after them */
    EXT4_EXTENTS_IN_INODE = 4,
    EXT4_EXTENT_BLOCKS_MAX = 32768, /* blocks that one extent can hold */
};

/* Where the metadata at the front of the disk lies; all in blocks. */
struct ext4_layout {
    uint64_t block_count; /* of the disk; whole groups */
    uint32_t group_count;
    uint32_t inodes_per_group;
    uint64_t block_bitmaps; /* first of group_count */
    uint64_t inode_bitmaps; /* first of group_count */
    uint64_t inode_tables;  /* first of group_count * inode_table_blocks */
    uint64_t inode_table_blocks;
    uint64_t front_end; /* first block after all of these */
};

/* What the writer remembers of a node. */
struct ext4_plan_node {
    uint32_t inode; /* links: that of the first name */
    uint32_t parent;
    uint32_t first_child; /* 0: none (the root is nobody's child) */
    uint32_t next_sibling;
    uint32_t links;
    enum ext4_type type;
    bool is_link;
};

struct ext4_plan {
    const struct ext4_nodes *nodes; /* borrowed */
    struct ext4_plan_node *node;
    uint32_t inode_count;  /* used, with the reserved ones */
    uint64_t data_blocks;  /* of the files */
    uint64_t loose_blocks; /* directories, extent trees, attributes, symlinks: at most */
    struct ext4_layout layout;
};

/* Reads all nodes once, checks how they hang together, numbers inodes, lays the disk out. */
int ext4_plan_init(struct ext4_plan *p, const struct ext4_nodes *nodes,
                   const struct ext4_options *options, struct err *e) MUST_USE;
void ext4_plan_fini(struct ext4_plan *p);
#define AUTO_EXT4_PLAN CLEANUP(ext4_plan_fini)

/* Sets an error about one node, naming its path. */
int ext4_node_error(const struct ext4_plan *p, size_t index, enum err_class class,
                    const char *reason, struct err *e);

/* A directory's entries, on the way to blocks. `hash` is ext4_name_hash of the name. */
struct ext4_dir;

int ext4_dir_new(struct ext4_dir **out, uint32_t inode, uint32_t parent_inode,
                 struct err *e) MUST_USE;
void ext4_dir_free(struct ext4_dir *d);
DEFINE_AUTO(ext4_dir, ext4_dir_free)
#define AUTO_EXT4_DIR CLEANUP(ext4_dir_free_auto_)
int ext4_dir_add(struct ext4_dir *d, const char *name, uint32_t inode, enum ext4_type type,
                 uint32_t hash, struct err *e) MUST_USE;
/* The blocks, borrowed from the directory, their checksums still to be set; *indexed when the
 * first is the root of a hash tree. */
int ext4_dir_finish(struct ext4_dir *d, uint8_t **blocks, size_t *count, bool *indexed,
                    struct err *e) MUST_USE;

/* The low 16 or 32 bits of a value, little endian. */
static inline void ext4_put_u16(uint8_t *at, uint64_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}
static inline void ext4_put_u32(uint8_t *at, uint64_t value)
{
    ext4_put_u16(at, value);
    ext4_put_u16(at + 2, value >> 16);
}

/* Hash of a name under the file system's seed (ext4.c). */
uint32_t ext4_name_hash(const char *name, size_t len, const uint32_t seed[4]);

/* ---- Pieces (image.c) --------------------------------------------------------------------- */

/* True if all `len` bytes are zero. */
bool piece_is_zero(const uint8_t *data, size_t len);

/* ---- Chunk cache ------------------------------------------------------------------------- */

/* A chunk held in memory: bytes and length stay as they are until it is put back. */
struct cached_chunk;

/* Borrows a chunk, loading it if it is not there; each get needs one put. Errors are those of
 * store_get_chunk; they are not remembered, the next get tries again. */
int chunk_cache_get(struct chunk_cache *c, const struct digest *d, struct cached_chunk **out,
                    struct err *e) MUST_USE;
void chunk_cache_put(struct chunk_cache *c, struct cached_chunk *chunk);
const uint8_t *cached_chunk_bytes(const struct cached_chunk *chunk, size_t *len);

/* As chunk_cache_get, but only of what is in memory: false otherwise. */
bool chunk_cache_peek(struct chunk_cache *c, const struct digest *d, struct cached_chunk **out);

/* ---- Threads of the front ends (nbd.c) ---------------------------------------------------- */

/* pthread_create, with all signals blocked: they stay with the threads of the caller. */
int device_thread_start(pthread_t *thread, void *(*run)(void *), void *arg) MUST_USE;

/* ---- NBD --------------------------------------------------------------------------------- */

/* Sizes that bound what a client can make the server hold. */
enum {
    NBD_PAYLOAD_MAX = 32 << 20, /* bytes of one request; proto.md, "Size constraints" */
    NBD_OPTION_MAX = 64 << 10,  /* bytes of one option of the handshake */
    NBD_OPTIONS_MAX = 256,      /* options of one handshake */
    NBD_CONNECTIONS_MAX = 16,
    NBD_WORKERS = 4, /* requests of one connection that are handled at once */
    NBD_INPUT_BUFFER = 4096,
};

enum { NBD_CONTEXT_ALLOCATION = 1 }; /* our id of the metadata context base:allocation */

struct nbd_connection {
    struct bdev *device; /* borrowed */
    int fd;

    /* Agreed in the handshake, fixed afterwards. */
    bool structured; /* structured replies */
    bool allocation; /* metadata context base:allocation */

    /* Lock order: a thread holds one of these two at a time. */
    pthread_mutex_t input_lock;  /* whoever reads the next request: `input*` */
    pthread_mutex_t output_lock; /* whoever sends a reply */
    uint8_t input[NBD_INPUT_BUFFER];
    size_t input_at, input_end;

    atomic_bool closing; /* no further request is read */
};

/* Fixed newstyle handshake; 0 when the connection is in the transmission phase, -1 when it is to be
 * closed (a client may simply go: that is no error). */
int nbd_handshake(struct nbd_connection *c) MUST_USE;

/* Serves requests until the client is done or misbehaves, on NBD_WORKERS threads, all joined. */
void nbd_serve(struct nbd_connection *c);

/* Transmission flags of the export (proto.md, "Transmission flags"). */
uint16_t nbd_transmission_flags(const struct nbd_connection *c);

/* Exactly `len` bytes from the client, by way of the input buffer; -1 when it is gone. */
int nbd_receive(struct nbd_connection *c, void *data, size_t len) MUST_USE;
/* All of `head`, then all of `data`; -1 when the client is gone. */
int nbd_send(struct nbd_connection *c, const void *head, size_t head_len, const void *data,
             size_t len) MUST_USE;

/* Integers of the protocol: network byte order (proto.md, "Conventions"). */
static inline uint8_t *nbd_put16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
    return at + 2;
}

static inline uint8_t *nbd_put32(uint8_t *at, uint32_t value)
{
    return nbd_put16(nbd_put16(at, (uint16_t)(value >> 16)), (uint16_t)value);
}

static inline uint8_t *nbd_put64(uint8_t *at, uint64_t value)
{
    return nbd_put32(nbd_put32(at, (uint32_t)(value >> 32)), (uint32_t)value);
}

static inline uint16_t nbd_get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t nbd_get32(const uint8_t *at)
{
    return (uint32_t)nbd_get16(at) << 16 | nbd_get16(at + 2);
}

static inline uint64_t nbd_get64(const uint8_t *at)
{
    return (uint64_t)nbd_get32(at) << 32 | nbd_get32(at + 4);
}

#endif
