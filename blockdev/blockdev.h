/* SPDX-License-Identifier: MIT */
/*
 * Disks as data: chunks and their store, block maps, layer regions, the ext4 writer, and the block
 * device stack that serves them. Knows nothing of OCI or HTTP.
 *
 * Units: all offsets and sizes are bytes unless a name says otherwise.
 */
#ifndef TB2_BLOCKDEV_BLOCKDEV_H
#define TB2_BLOCKDEV_BLOCKDEV_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/buf.h"
#include "base/cancel.h"
#include "base/digest.h"
#include "base/err.h"
#include "base/io.h"
#include "base/pool.h"

enum {
    BLOCK_SIZE = 4096,          /* unit of everything on a disk */
    CHUNK_SIZE_MAX = 512 << 10, /* plain bytes of a chunk */
    CUT_FILE_SIZE = 64 << 10,   /* files from this size on start a chunk of their own */
};

/* ---- Store ------------------------------------------------------------------------------- */

/*
 * The content-addressed directory (docs/formats/store.md): chunks/ blobs/ layers/ disks/
 * templates/ catalog/ runs/ tmp/. Safe for any number of threads and processes. Objects appear
 * whole or not at all.
 */
struct store;

struct store_stats {
    uint64_t chunks_put;      /* chunks offered */
    uint64_t chunks_new;      /* of these, not there yet */
    uint64_t chunk_bytes_new; /* stored (compressed) bytes of the new ones */
};

/* Opens (making it if missing) the store at `path`, and removes temporaries of dead processes.
 * ERR_UNSUPPORTED if its format version is not ours. */
int store_open(struct store **out, const char *path, struct err *e) MUST_USE;
void store_close(struct store *s);
DEFINE_AUTO(store, store_close)
#define AUTO_STORE CLEANUP(store_close_auto_)

/* Borrowed descriptors: the store's directory; this process's own directory under tmp/, on the
 * same file system, removed by store_close (or by the next store_open after a crash). */
int store_dir(const struct store *s);
int store_tmp_dir(const struct store *s);
/* Absolute path of the latter, for programs that need one (QEMU); borrowed. */
const char *store_tmp_path(const struct store *s);
const char *store_path(const struct store *s); /* absolute */

/* zstd's level for the chunks that are written from now on; to be set before the store is used. Changes
 * how many bytes a new chunk takes, and nothing else: chunks are named by their plain bytes. The
 * default level looks for matches of CHUNK_MATCH_MIN bytes, whatever zstd's would be. */
enum { CHUNK_LEVEL_MIN = 1, CHUNK_LEVEL_DEFAULT = 3, CHUNK_LEVEL_MAX = 19, CHUNK_MATCH_MIN = 4 };
void store_set_compression_level(struct store *s, int level);

/* Compresses and stores `len` bytes (a multiple of BLOCK_SIZE, at most CHUNK_SIZE_MAX), unless
 * there already; *out is the sha256 of the plain bytes. */
int store_put_chunk(struct store *s, const void *data, size_t len, struct digest *out,
                    struct err *e) MUST_USE;
/* Plain bytes of a chunk into `data` (room for CHUNK_SIZE_MAX), verified against its name;
 * ERR_NOTFOUND, or ERR_DIGEST/ERR_CORRUPT naming the chunk. */
int store_get_chunk(struct store *s, const struct digest *d, void *data, size_t *len,
                    struct err *e) MUST_USE;
/* If so, it stays as long as this process has the store open (store_use). */
bool store_has_chunk(struct store *s, const struct digest *d);
/* From now on a chunk that is there is read and verified before it counts as there: what is put again
 * replaces what is damaged. */
void store_distrust(struct store *s);
/* Fails if the chunk is not there or, in a distrusted store, does not verify. */
int store_check_chunk(struct store *s, const struct digest *d, struct err *e) MUST_USE;
/* Stored bytes of a chunk; ERR_NOTFOUND. */
int store_chunk_stored_size(struct store *s, const struct digest *d, uint64_t *out,
                            struct err *e) MUST_USE;

/* Appends the stored form of a chunk that is here (one zstd frame; at most CHUNK_STORED_MAX bytes) to
 * `out`, verified, for a remote store. ERR_NOTFOUND, ERR_DIGEST, ERR_CORRUPT: no source is asked. */
enum { CHUNK_STORED_MAX = CHUNK_SIZE_MAX + CHUNK_SIZE_MAX / 256 };
int store_get_stored_chunk(struct store *s, const struct digest *d, struct buf *out,
                           struct err *e) MUST_USE;

struct store_stats store_stats(const struct store *s);

/* ---- What is in use ---------------------------------------------------------------------- */

/*
 * Garbage collection leaves alone what was used since the oldest living process opened the store
 * (docs/decisions/0013-garbage-collection.md); the modification time of a file says when it was.
 * Whoever relies on an object that is there already has to say so, before looking into it. Chunks
 * that are put or looked for, maps, layers and records that are put or read are used thereby.
 */

/* Marks the file `path` (relative to the store) as used now. False: it is not there (or empty, or
 * cannot be marked), so that it must be made. True: it stays as long as the store is open. */
bool store_use(struct store *s, const char *path);
/* Keeps what is being swept waiting until *lock is closed (file_close): for a file that is to appear
 * together with the one that names it. Not to be held while the same thread sweeps. */
int store_use_begin(int *lock, struct store *s, struct err *e) MUST_USE;

/* For the sweeper: while *lock is open nobody marks anything as used. Short. */
int store_sweep_begin(int *lock, struct store *s, struct err *e) MUST_USE;
/* What was used at or after *ns (modification time, ns of the epoch) may be in use now; *ns is not
 * later than the moment at which this process opened the store. */
int store_used_since(struct store *s, int64_t *ns, struct err *e) MUST_USE;
/* Reads a chunk's file and checks all of it: contents against the name, and every other stored byte.
 * Changes nothing, asks no source. ERR_NOTFOUND, ERR_CORRUPT, ERR_DIGEST. */
int store_audit_chunk(struct store *s, const struct digest *d, struct err *e) MUST_USE;

/*
 * Where chunks come from that the store has not: a remote store. `fetch` appends the chunk's stored
 * form (one zstd frame) to `stored`, whose ceiling is set; ERR_NOTFOUND when the source lacks it. It
 * is called from several threads, and gives up (ERR_TIMEOUT or its own error) at `deadline_ms` of
 * clock_ms().
 */
struct chunk_source {
    int (*fetch)(void *ctx, const struct digest *chunk, int64_t deadline_ms, struct buf *stored,
                 struct err *e);
    void *ctx;
};

/* From now on store_get_chunk fetches, verifies and keeps, once however many want them, chunks that are not there, or are there
 * damaged. What may help when tried again (err_retryable) is tried until the deadline of half a
 * minute; bytes that are not the chunk's are ERR_DIGEST or ERR_CORRUPT. A chunk that cannot be kept
 * (disk full) is served all the same. The source is borrowed for the store's life; set it before
 * other threads use the store. */
void store_set_source(struct store *s, const struct chunk_source *source);
bool store_has_source(struct store *s);

/* ---- Block maps -------------------------------------------------------------------------- */

/* `size` bytes of the disk at `off` are bytes [chunk_off, chunk_off + size) of the chunk. All three
 * are multiples of BLOCK_SIZE. */
struct map_extent {
    uint64_t off;
    uint32_t size;
    uint32_t chunk_off;
    struct digest chunk;
};

/* A sorted list of extents without overlap; gaps read as zeros. */
struct block_map;

int block_map_new(struct block_map **out, uint64_t virtual_size, struct err *e) MUST_USE;
void block_map_free(struct block_map *m);
DEFINE_AUTO(block_map, block_map_free)
#define AUTO_BLOCK_MAP CLEANUP(block_map_free_auto_)

uint64_t block_map_virtual_size(const struct block_map *m);
size_t block_map_count(const struct block_map *m);
const struct map_extent *block_map_extent(const struct block_map *m, size_t index);

/* Adds an extent, in any order; block_map_finish sorts, refuses overlap (ERR_CORRUPT), joins
 * neighbours that continue one another in the same chunk. */
int block_map_add(struct block_map *m, const struct map_extent *extent, struct err *e) MUST_USE;
int block_map_finish(struct block_map *m, struct err *e) MUST_USE;

/* Index of the first extent that ends after `off`; block_map_count when none does. */
size_t block_map_find(const struct block_map *m, uint64_t off);

/* A new map: `upper` where it has extents or where `zeros` (may be NULL: none) says so, else
 * `lower`. `zeros` is a map whose extents' chunk fields are ignored. All are of one virtual
 * size. */
int block_map_overlay(struct block_map **out, const struct block_map *lower,
                      const struct block_map *upper, const struct block_map *zeros,
                      struct err *e) MUST_USE;

/*
 * What stands between two disks: *data has what `target` holds and `lower` does not hold at the same
 * place (by chunk, not by bytes), *zeros covers what lower holds and target does not. On disks of one
 * size, block_map_overlay(lower, data, zeros) gives `target`. `lower` may be the smaller one: the
 * results have the size of `target`.
 */
int block_map_delta(struct block_map **data, struct block_map **zeros,
                    const struct block_map *lower, const struct block_map *target,
                    struct err *e) MUST_USE;

/* Adds to `out` what `in` holds of [off, off + size), moved so that `off` comes to stand at
 * `new_off`. */
int block_map_copy_range(struct block_map *out, const struct block_map *in, uint64_t off,
                         uint64_t size, uint64_t new_off, struct err *e) MUST_USE;

/* Canonical bytes (docs/formats/block-map.md): the digest of these is the digest of the disk. */
int block_map_encode(const struct block_map *m, struct buf *out, struct err *e) MUST_USE;
int block_map_decode(struct block_map **out, const void *bytes, size_t len, struct err *e) MUST_USE;

/* Stores a map durably under disks/<hex>, after all chunks offered so far (this syncs the file
 * system: docs/decisions/0001-chunk-durability.md); *out is its digest. Load verifies. */
int store_put_map(struct store *s, const struct block_map *m, struct digest *out,
                  struct err *e) MUST_USE;
/* The same without waiting for the disk: for maps that are verified before use and made again where
 * they or their chunks are missing. The next store_put_map makes it durable too. */
int store_put_map_unsynced(struct store *s, const struct block_map *m, struct digest *out,
                           struct err *e) MUST_USE;
int store_get_map(struct store *s, const struct digest *d, struct block_map **out,
                  struct err *e) MUST_USE;

/* store_get_map without marking the map as used. */
int store_peek_map(struct store *s, const struct digest *d, struct block_map **out,
                   struct err *e) MUST_USE;

/* ---- Layer regions ----------------------------------------------------------------------- */

/*
 * Lays the file data of one layer out in a region and cuts it into chunks: a file of
 * CUT_FILE_SIZE or more starts at a chunk of its own, smaller ones are packed together in order
 * of arrival, in packs that end behind certain files; a piece of CHUNK_SIZE_MAX that is all zeros
 * becomes a hole. Region offsets depend on the sequence of files alone, never on the workers. Hashing and compression run on `workers`
 * threads.
 */
struct region_writer;

struct region_extent {
    uint64_t file_off;
    uint64_t len;        /* bytes of the file; the region's last block is padded with zeros */
    uint64_t region_off; /* multiple of BLOCK_SIZE */
};

int region_writer_new(struct region_writer **out, struct store *s, size_t workers,
                      struct err *e) MUST_USE;
/* The same on threads that other writers use too (borrowed for the writer's life). In flight are as
 * many chunks as there are threads and two more. */
int region_writer_new_on(struct region_writer **out, struct store *s, struct crew *crew,
                         struct err *e) MUST_USE;
void region_writer_free(struct region_writer *w);
DEFINE_AUTO(region_writer, region_writer_free)
#define AUTO_REGION_WRITER CLEANUP(region_writer_free_auto_)
int region_file_begin(struct region_writer *w, uint64_t size, struct err *e) MUST_USE;
/* Offsets rise; what is skipped is hole. */
int region_file_data(struct region_writer *w, uint64_t off, const void *data, size_t len,
                     struct err *e) MUST_USE;
/* Extents of the file, allocated for the caller (free with free()). */
int region_file_end(struct region_writer *w, struct region_extent **extents, size_t *count,
                    struct err *e) MUST_USE;
/* Flushes; *out maps region offsets to chunks, its virtual size (a multiple of CHUNK_SIZE_MAX) is
 * the region's size. */
int region_writer_finish(struct region_writer *w, struct block_map **out, struct err *e) MUST_USE;

/* ---- ext4 writer ------------------------------------------------------------------------- */

enum ext4_type {
    EXT4_FILE,
    EXT4_DIRECTORY,
    EXT4_SYMLINK,
    EXT4_CHARACTER_DEVICE,
    EXT4_BLOCK_DEVICE,
    EXT4_FIFO
};

struct ext4_xattr {
    const char *name; /* full name: "security.capability" */
    const uint8_t *value;
    size_t value_len;
};

struct ext4_extent {
    uint64_t file_off; /* multiple of BLOCK_SIZE */
    uint64_t len;
    uint64_t disk_off; /* multiple of BLOCK_SIZE */
};

/* A name for the writer; same numbering rules as the iterator's contract below. */
struct ext4_node {
    const char *name;
    size_t parent;
    size_t link_of; /* SIZE_MAX or the number of the node whose inode this name shares */
    enum ext4_type type;
    uint32_t mode; /* permission bits and setuid, setgid, sticky */
    uint32_t uid, gid;
    int64_t mtime_seconds;
    uint32_t mtime_nanoseconds;
    uint64_t size;
    const char *target;
    uint32_t device_major, device_minor;
    const struct ext4_xattr *xattrs;
    size_t xattr_count;
    const struct ext4_extent *extents;
    size_t extent_count;
};

/* Number 0 is the root; parents come before children, siblings sorted by name bytes; a link comes
 * after its first name. `node` fills *out with pointers that stay good until the next call. */
struct ext4_nodes {
    size_t count;
    int (*node)(void *ctx, size_t index, struct ext4_node *out, struct err *e);
    void *ctx;
};

struct ext4_options {
    uint64_t data_start; /* where the first region may start: EXT4_DATA_START */
    uint64_t data_end;   /* end of the last region */
    uint64_t free_size;  /* bytes that must be free for the guest's root user */
    struct digest seed;  /* UUID, hash seed: derived from this */
};

/* Regions start here on every disk whose metadata fits below, so that images that share their
 * lower layers share addresses. */
#define EXT4_DATA_START ((uint64_t)1 << 30)

/*
 * Where the first region of a disk goes: EXT4_DATA_START if the metadata fits before it, else the
 * next power of two before which it does. `data_size` is the size of all regions together,
 * `name_count` the number of nodes.
 */
uint64_t ext4_data_start(uint64_t data_size, uint64_t name_count, uint64_t free_size);

/*
 * Writes the metadata of an ext4 file system whose files' data lies where the extents say, stores
 * its non-zero blocks as chunks, and returns a map of these alone (the caller adds the data). The
 * virtual size of *out is the size of the disk. Depends on nodes and options alone.
 *
 * What ext4 cannot hold is ERR_UNSUPPORTED and names the path: more than 65000 names of one file,
 * attributes that do not fit the inode and one block, unknown attribute name spaces, link targets
 * of a block or more, files of 16 TiB. Nodes that contradict one another (parents that are no
 * directories, names that are none, data that two files claim) are ERR_CORRUPT.
 */
int ext4_write(struct block_map **out, struct store *s, const struct ext4_nodes *nodes,
               const struct ext4_options *options, struct err *e) MUST_USE;

/* ---- Devices ----------------------------------------------------------------------------- */

/*
 * One contract for everything that behaves as a disk. Callbacks return 0 or -errno (no text: the
 * request path reports by number, counts, and logs the first of each kind). All must be callable
 * from several threads at once. Offsets and lengths need no alignment; ranges are checked by the
 * front door (bdev_*), so a callback never sees one that is empty or passes the end.
 */
struct bdev;

/* What a range is known to hold. BDEV_DATA promises nothing. */
enum bdev_content { BDEV_DATA, BDEV_ZEROS };

/* Bytes of a range where the device has them in memory: they stay as they are until bdev_loan_end. */
struct cached_chunk;
struct chunk_cache;
enum { BDEV_LOAN_PARTS = 16 };
struct bdev_loan {
    struct iovec parts[BDEV_LOAN_PARTS]; /* in order; read only */
    size_t part_count;
    /* For the devices. */
    struct chunk_cache *cache;
    struct cached_chunk *held[BDEV_LOAN_PARTS];
    size_t held_count;
};

struct bdev_ops {
    int (*read)(struct bdev *d, void *data, size_t len, uint64_t off); /* required */
    /* Optional: as read, but -EAGAIN where that would have to wait for a disk or a network. Without
     * it every read may have to. */
    int (*read_now)(struct bdev *d, void *data, size_t len, uint64_t off);
    /* Optional: as read_now, without a copy; also -EAGAIN when the range is not all in memory, or in too
     * many parts. `loan` is empty, and stays so on failure. */
    int (*lend)(struct bdev *d, struct bdev_loan *loan, size_t len, uint64_t off);
    int (*write)(struct bdev *d, const void *data, size_t len, uint64_t off); /* NULL: read-only */
    int (*flush)(struct bdev *d);                                             /* optional */
    /* Optional; afterwards the range reads as zeros. Without it zeros are written. */
    int (*discard)(struct bdev *d, uint64_t len, uint64_t off);
    /* Optional: content of the first *run bytes of the range (1 to `len`), without reading them.
     * Without it everything is BDEV_DATA. */
    enum bdev_content (*content)(struct bdev *d, uint64_t len, uint64_t off, uint64_t *run);
    void (*close)(struct bdev *d); /* required */
};

struct bdev_stats {
    uint64_t reads, writes, flushes, discards; /* requests, failed ones included */
    uint64_t bytes_read, bytes_written;        /* of requests that succeeded */
    uint64_t errors;                           /* requests that failed */
};

struct bdev {
    const struct bdev_ops *ops;
    uint64_t size;
    bool nested; /* owned by another device, which reports its errors: counted here, not logged */
    /* Kept by the front door; start as zeros. */
    atomic_uint_fast64_t reads, writes, flushes, discards, bytes_read, bytes_written, errors;
    atomic_uint_fast32_t errors_logged; /* a bit per kind */
};

/* Front door: range checks (-EINVAL past the end), -EROFS without write. An empty range is
 * success. */
int bdev_read(struct bdev *d, void *data, size_t len, uint64_t off) MUST_USE;
/* -EAGAIN when it would have to wait: not counted as a request, and `data` holds nothing. */
int bdev_read_now(struct bdev *d, void *data, size_t len, uint64_t off) MUST_USE;
/* -EAGAIN: read it. Any other result is that of a read. */
int bdev_lend(struct bdev *d, struct bdev_loan *loan, size_t len, uint64_t off) MUST_USE;
void bdev_loan_end(struct bdev_loan *loan); /* an empty or zeroed one is fine */
int bdev_write(struct bdev *d, const void *data, size_t len, uint64_t off) MUST_USE;
int bdev_flush(struct bdev *d) MUST_USE;
/* The range reads as zeros afterwards; its space is given back where the device can. */
int bdev_discard(struct bdev *d, uint64_t len, uint64_t off) MUST_USE;
/* The range must not be empty nor pass the end. */
enum bdev_content bdev_content(struct bdev *d, uint64_t len, uint64_t off, uint64_t *run);
struct bdev_stats bdev_stats(const struct bdev *d);
void bdev_close(struct bdev *d); /* NULL is fine */
DEFINE_AUTO(bdev, bdev_close)
#define AUTO_BDEV CLEANUP(bdev_close_auto_)

/*
 * Cache of plain chunks shared by devices: one load per chunk however many readers want it; at most
 * `capacity` bytes in memory, beside the chunks being copied out at this moment (one per reader).
 * Thread-safe. The store is borrowed for the cache's life; free it after the devices.
 */
struct chunk_cache;

struct chunk_cache_stats {
    uint64_t hits;     /* a chunk was there, or already on its way */
    uint64_t loads;    /* a chunk was asked of the store */
    uint64_t failures; /* of these, refused or unreadable */
    uint64_t evictions;
    uint64_t bytes; /* held now */
};

int chunk_cache_new(struct chunk_cache **out, struct store *s, uint64_t capacity,
                    struct err *e) MUST_USE;
void chunk_cache_free(struct chunk_cache *c);
DEFINE_AUTO(chunk_cache, chunk_cache_free)
#define AUTO_CHUNK_CACHE CLEANUP(chunk_cache_free_auto_)
struct chunk_cache_stats chunk_cache_stats(struct chunk_cache *c);

/* Read-only device over a block map (borrowed, with the cache, for the device's life). A chunk that
 * cannot be verified is -EIO, logged by name. */
int bdev_open_map(struct bdev **out, const struct block_map *m, struct chunk_cache *c,
                  struct err *e) MUST_USE;
/* False: every chunk so far could be read, or `d` is not from bdev_open_map. Else `e` says what the first
 * failure was. The device may be in use. */
bool bdev_map_failure(const struct bdev *d, struct err *e) MUST_USE;

/*
 * Copy-on-write device over `lower` (taken over, also on failure; its size must be a multiple of
 * BLOCK_SIZE): writes and discards go to a nameless sparse file in `tmp_dir` and a bitmap of
 * blocks, at most `size_limit` bytes (0: no limit; beyond it -ENOSPC). The upper is gone with the
 * device; only bdev_cow_seal keeps what it holds.
 */
int bdev_open_cow(struct bdev **out, struct bdev *lower, int tmp_dir, uint64_t size_limit,
                  struct err *e) MUST_USE;
/* The same with an upper of the files DIR/NAME and DIR/NAME.states, made if missing and kept when the
 * device is closed: it survives the death of this process, though not of the machine. ERR_BUSY
 * while another process has it open; ERR_CORRUPT if it is of another disk. */
int bdev_open_cow_kept(struct bdev **out, struct bdev *lower, int dir, const char *name,
                       uint64_t size_limit, struct err *e) MUST_USE;
/* Removes the files of a kept upper; absence is success. */
int bdev_cow_forget(int dir, const char *name, struct err *e) MUST_USE;
/* Whether the upper holds what stands at `off` (below the size, a multiple of BLOCK_SIZE), and for how many
 * bytes from there that is the same. */
bool bdev_cow_written(struct bdev *cow, uint64_t off, uint64_t *run);
/*
 * Stores what was changed since the last seal (or since the device was opened) as chunks, cut at
 * multiples of CHUNK_SIZE_MAX on the disk; *upper has the written blocks, *zeros the discarded or
 * all-zero ones: block_map_overlay over the map of that time gives the map of the disk as it is now.
 * `last` reads as the disk did at the last seal (NULL: there was none, it read as lower). A block that
 * holds what it held then is no change. The result depends on the contents alone; the time it takes,
 * on what was touched. The device must be quiet; it can be used on. A seal that fails changes nothing
 * for the next. `cow` must come from bdev_open_cow or bdev_open_cow_kept.
 */
int bdev_cow_seal(struct bdev *cow, struct bdev *last, struct store *s, struct block_map **upper,
                  struct block_map **zeros, struct err *e) MUST_USE;

/* Chunks a file of fixed size (a guest's memory) into the store: zero blocks vanish; *out is its
 * map, of the size rounded up to whole blocks. */
int store_put_file(struct store *s, int fd, size_t workers, struct block_map **out,
                   struct err *e) MUST_USE;
/* The same with what a device holds; its size may be any. ERR_CORRUPT when the device cannot be read
 * (it has logged why). */
int store_put_device(struct store *s, struct bdev *d, size_t workers, const struct cancel *c,
                     struct block_map **out, struct err *e) MUST_USE;
/* Writes a map's content into a fresh sparse file of its virtual size, verifying every chunk. */
int store_export_map(struct store *s, const struct block_map *m, int fd, size_t workers,
                     const struct cancel *c, struct err *e) MUST_USE;

/* ---- Ahead of the reads -------------------------------------------------------------------- */

/* Numbers of the map's extents in the order in which they were first read: what a boot needs. Free with
 * free(). `d` must come from bdev_open_map; it may be in use. */
int bdev_map_trace(const struct bdev *d, uint32_t **out, size_t *count, struct err *e) MUST_USE;

/*
 * Fetches chunks from the store's source in the background, in the order of the list (copied); those
 * that are there are passed over. A chunk that cannot be had is counted, nothing more.
 */
struct prefetch;

struct prefetch_options {
    size_t workers; /* at most 16 */
    /* So many at the front of the list are about to be read: they are tried once, and do not wait for
     * anybody. Before each of the others, reads that wait for a chunk go first; while the source is
     * away they are tried again. */
    size_t urgent;
    /* Chunks that are there are loaded into this cache (borrowed until prefetch_stop; NULL: none), up to so
     * many bytes of them. */
    struct chunk_cache *cache;
    uint64_t cache_bytes;
};

struct prefetch_stats {
    size_t fetched;
    size_t failed;
};

int prefetch_start(struct prefetch **out, struct store *s, const struct digest *chunks,
                   size_t count, const struct prefetch_options *o, struct err *e) MUST_USE;
/* Waits until all is done. By the thread that calls prefetch_stop, before that. */
struct prefetch_stats prefetch_wait(struct prefetch *p);
/* Ends it after the chunks that are under way. */
void prefetch_stop(struct prefetch *p); /* NULL is fine */

/* ---- NBD front end ------------------------------------------------------------------------ */

/*
 * Serves one device on a unix socket (NBD protocol, doc/proto.md of the NBD project, fixed
 * newstyle) from threads of its own, until stopped. The export's name is empty. Several
 * connections at once, several requests at once on each. Only this user may connect. ERR_LIMIT if
 * the path is too long for a socket address.
 */
struct nbd_server;
int nbd_server_start(struct nbd_server **out, struct bdev *d, const char *socket_path,
                     struct err *e) MUST_USE;
/* The same on "HOST:PORT" or "[ADDRESS]:PORT" over TCP. Whoever can connect is served: there is neither
 * authentication nor encryption. ERR_INPUT for an address that is none. */
int nbd_server_start_tcp(struct nbd_server **out, struct bdev *d, const char *address,
                         struct err *e) MUST_USE;
/* The socket's path; HOST:PORT with the port that the kernel chose where 0 was asked for. Borrowed. */
const char *nbd_server_address(const struct nbd_server *n);
/* Closes all connections, joins the threads, removes the socket; the device stays. */
void nbd_server_stop(struct nbd_server *n);
DEFINE_AUTO(nbd_server, nbd_server_stop)
#define AUTO_NBD_SERVER CLEANUP(nbd_server_stop_auto_)

/* ---- Files front end ---------------------------------------------------------------------- */

/*
 * Serves read-only devices as files, for programs that want a file to map: a page is read when it is
 * first touched, and kept by the kernel for all who map the file. A FUSE file system of this process
 * that is mounted nowhere: only its descriptors lead to it, and it is gone with the process. Needs
 * Linux 5.4 or later, /dev/fuse, and either root or user namespaces: ERR_DENIED or ERR_UNSUPPORTED
 * with what is missing. Thread-safe.
 */
struct bdev_files;
struct bdev_file;
int bdev_files_start(struct bdev_files **out, struct err *e) MUST_USE;
void bdev_files_stop(struct bdev_files *f); /* with its files; NULL is fine */
DEFINE_AUTO(bdev_files, bdev_files_stop)
#define AUTO_BDEV_FILES CLEANUP(bdev_files_stop_auto_)

/* A file of the device's bytes; what cannot be read is EIO, or SIGBUS to who has mapped it. The device,
 * whose bytes must not change, is borrowed until the file is removed. */
int bdev_file_add(struct bdev_file **out, struct bdev_files *f, struct bdev *d,
                  struct err *e) MUST_USE;
/* A path by which any other process of this user can open it, for writing too (nothing can be written);
 * this process must not: killed then, it would never end. Borrowed. */
const char *bdev_file_path(const struct bdev_file *x);
/* Waits for reads under way. Whoever still has it open gets EIO from now on. NULL is fine. */
void bdev_file_remove(struct bdev_file *x);

/* ---- ublk front end ----------------------------------------------------------------------- */

/*
 * Serves one device as a disk of this machine, /dev/ublkbN, from threads of its own (Linux,
 * Documentation/block/ublk.rst). Blocks of 4096 bytes. Needs root, or nodes that udev gives to the
 * user, and Linux 6.5 or later.
 *
 * Every device carries a cookie of the caller's choice, kept by the kernel: numbers are used again,
 * cookies should not be. When the process dies, the kernel keeps the device and the requests that
 * wait; ublk_start with `recover` takes it over, over a bdev of the same content.
 */
struct ublk_server;

struct ublk_options {
    uint64_t cookie;
    int recover; /* number of a device to take over; -1: a new one */
};

/* 0 if this kernel can; else ERR_UNSUPPORTED or ERR_DENIED with what is missing and what to do. */
int ublk_probe(struct err *e) MUST_USE;

/* The device is borrowed until ublk_stop. On failure what was made is removed again; a device to
 * take over stays (ERR_NOTFOUND: it is gone, or another's). ERR_TIMEOUT when the kernel hangs. */
int ublk_start(struct ublk_server **out, struct bdev *d, const struct ublk_options *o,
               struct err *e) MUST_USE;
uint32_t ublk_number(const struct ublk_server *u);
const char *ublk_path(const struct ublk_server *u, char path[32]); /* returns `path` */
/* Answers what is under way, removes the disk, joins the threads; `u` is gone in any case. Who has
 * the disk open gets errors from then on. */
int ublk_stop(struct ublk_server *u, struct err *e) MUST_USE;
/* Joins the threads and leaves the disk to be recovered. */
void ublk_leave(struct ublk_server *u);

/* Devices of dead servers. *live: some process serves it. ERR_NOTFOUND: gone, or another's. */
int ublk_look(uint32_t number, uint64_t cookie, bool *live, struct err *e) MUST_USE;
/* The device with that cookie; ERR_NOTFOUND. */
int ublk_find(uint64_t cookie, uint32_t *number, struct err *e) MUST_USE;
/* Removes it, if it still carries the cookie. */
int ublk_remove(uint32_t number, uint64_t cookie, struct err *e) MUST_USE;

#endif
