/* SPDX-License-Identifier: MIT */
/*
 * Copy-on-write over a read-only device.
 *
 * Each block is in one of three states: UNTOUCHED (lower answers), WRITTEN (the whole block is in
 * the upper file, at its own offset) or ZERO (discarded: reads as zeros, whatever the file or lower
 * hold). Two bits a block, 32 blocks a word, so a 10 GiB disk takes 640 KiB.
 *
 * Order makes readers safe without a lock: a writer puts a block's bytes into the file first and
 * its state after, a discard changes the state first and punches the file after. So WRITTEN is only
 * seen with the whole block in place, and lower never shines through a discard.
 *
 * Writers and discards own their range of blocks for the time they take: a queue in order of
 * arrival, in which a request waits for the earlier ones that it overlaps. That makes
 * read-modify-write of a part of a block safe; the queue's mutex is not held across I/O. An owner
 * alone changes the states of its blocks; a word may be shared with other owners, hence the
 * atomics.
 *
 * What a seal has stored need not be looked at again: a third bit a block says whether it was touched
 * since the last one (at first all were), so a seal takes as long as what changed since, whatever
 * changed before. It is set before a request changes anything, so one that fails half-way counts.
 *
 * There is no flush. An upper without a name goes with the process; one that has a name
 * (bdev_open_cow_kept) outlives a killed process, since the kernel keeps what was written to its two
 * files, but not a power cut. After a kill each block is as before or after the write that was under
 * way, by the order above. What is to last goes through bdev_cow_seal into the store, which has its
 * own durability.
 */
#include "blockdev/blockdev.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum state { UNTOUCHED = 0, WRITTEN = 1, ZERO = 2 };

enum { STATE_BITS = 2, WORD_BLOCKS = 64 / STATE_BITS, TOUCHED_BLOCKS = 64 /* a word */ };

/* A block range owned, or waited for, by one request. */
struct claim {
    uint64_t first, end;
    struct claim *next; /* arrived later */
};

struct cow {
    struct bdev device;
    struct bdev *lower;
    int fd;
    uint64_t limit; /* blocks that may be WRITTEN; UINT64_MAX: no limit */
    atomic_uint_fast64_t written;
    atomic_uint_fast64_t *states;
    atomic_uint_fast64_t *touched; /* since the last seal; a bit a block */
    size_t mapped;         /* bytes of `states` when they are a file's; 0: they are memory */
    pthread_mutex_t mutex; /* claims */
    pthread_cond_t released;
    struct claim *claims;
};

static struct cow *cow_of(struct bdev *d)
{
    return (struct cow *)(void *)d; /* the device is the first member */
}

/* ---- States ---- */

/* The word in which every block has this state. */
static uint64_t word_of(enum state state)
{
    return (uint64_t)state * UINT64_C(0x5555555555555555);
}

static enum state state_get(const struct cow *w, uint64_t block)
{
    uint64_t word = atomic_load_explicit(&w->states[block / WORD_BLOCKS], memory_order_acquire);
    return (enum state)(word >> block % WORD_BLOCKS * STATE_BITS & 3);
}

/* State of `block` and how many blocks from there, up to `end`, share it. */
static uint64_t state_run(const struct cow *w, uint64_t block, uint64_t end, enum state *state)
{
    enum state first = state_get(w, block);
    uint64_t at = block + 1;
    while (at < end) {
        bool whole_word = at % WORD_BLOCKS == 0 && end - at >= WORD_BLOCKS;
        if (whole_word && atomic_load_explicit(&w->states[at / WORD_BLOCKS],
                                               memory_order_acquire) == word_of(first))
            at += WORD_BLOCKS;
        else if (state_get(w, at) == first)
            at++;
        else
            break;
    }
    *state = first;
    return at - block;
}

static uint64_t count_written(const struct cow *w, uint64_t first, uint64_t end)
{
    uint64_t count = 0;
    while (first < end) {
        enum state state;
        uint64_t run = state_run(w, first, end, &state);
        count += state == WRITTEN ? run : 0;
        first += run;
    }
    return count;
}

/* The caller owns the blocks. */
static void state_set(struct cow *w, uint64_t block, uint64_t end, enum state state)
{
    while (block < end) {
        atomic_uint_fast64_t *word = &w->states[block / WORD_BLOCKS];
        if (block % WORD_BLOCKS == 0 && end - block >= WORD_BLOCKS) {
            atomic_store_explicit(word, word_of(state), memory_order_release);
            block += WORD_BLOCKS;
            continue;
        }
        uint64_t change = (uint64_t)(state_get(w, block) ^ state);
        atomic_fetch_xor_explicit(word, change << block % WORD_BLOCKS * STATE_BITS,
                                  memory_order_release);
        block++;
    }
}

/* ---- Touched since the last seal ---- */

static void touch(struct cow *w, uint64_t block, uint64_t end)
{
    while (block < end) {
        uint64_t first = block % TOUCHED_BLOCKS;
        uint64_t count =
            TOUCHED_BLOCKS - first < end - block ? TOUCHED_BLOCKS - first : end - block;
        uint64_t bits = UINT64_MAX >> (TOUCHED_BLOCKS - count) << first;
        atomic_fetch_or_explicit(&w->touched[block / TOUCHED_BLOCKS], bits, memory_order_relaxed);
        block += count;
    }
}

/* Whether `block` was touched, and how many blocks from there, up to `end`, are as it is. */
static uint64_t touched_run(const struct cow *w, uint64_t block, uint64_t end, bool *touched)
{
    uint64_t word = atomic_load_explicit(&w->touched[block / TOUCHED_BLOCKS], memory_order_relaxed);
    *touched = word >> block % TOUCHED_BLOCKS & 1;
    uint64_t at = block;
    while (at < end) {
        word = atomic_load_explicit(&w->touched[at / TOUCHED_BLOCKS], memory_order_relaxed);
        uint64_t others = (*touched ? ~word : word) >> at % TOUCHED_BLOCKS;
        if (others) {
            at += (uint64_t)__builtin_ctzll(others);
            break;
        }
        at += TOUCHED_BLOCKS - at % TOUCHED_BLOCKS;
    }
    return (at < end ? at : end) - block;
}

static size_t touched_words(const struct cow *w)
{
    return (size_t)(w->device.size / BLOCK_SIZE / TOUCHED_BLOCKS + 1);
}

/* ---- Claims ---- */

static bool must_wait(const struct cow *w, const struct claim *claim)
{
    for (const struct claim *c = w->claims; c != claim; c = c->next)
        if (c->first < claim->end && claim->first < c->end)
            return true;
    return false;
}

static void claim_take(struct cow *w, struct claim *claim)
{
    pthread_mutex_lock(&w->mutex);
    struct claim **last = &w->claims;
    while (*last)
        last = &(*last)->next;
    claim->next = NULL;
    *last = claim;
    while (must_wait(w, claim))
        pthread_cond_wait(&w->released, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
}

static void claim_drop(struct cow *w, struct claim *claim)
{
    pthread_mutex_lock(&w->mutex);
    struct claim **at = &w->claims;
    while (*at != claim)
        at = &(*at)->next;
    *at = claim->next;
    if (w->claims)
        pthread_cond_broadcast(&w->released);
    pthread_mutex_unlock(&w->mutex);
}

static struct claim claim_of(uint64_t len, uint64_t off)
{
    return (struct claim){.first = off / BLOCK_SIZE,
                          .end = mem_round_up(off + len, BLOCK_SIZE) / BLOCK_SIZE};
}

/* ---- Upper file ---- */

static int upper_read(const struct cow *w, uint8_t *data, size_t len, uint64_t off)
{
    while (len > 0) {
        ssize_t n = pread(w->fd, data, len, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO; /* the file is as long as the disk */
        data += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

static int upper_write(const struct cow *w, const uint8_t *data, size_t len, uint64_t off)
{
    while (len > 0) {
        ssize_t n = pwrite(w->fd, data, len, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        off += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* ---- Requests ---- */

typedef int read_lower(struct bdev *lower, void *data, size_t len, uint64_t off);

static int read_range(struct cow *w, void *data, size_t len, uint64_t off, read_lower *lower)
{
    uint8_t *at = data;
    struct claim range = claim_of(len, off); /* only for its bounds: readers own nothing */
    while (len > 0) {
        enum state state;
        uint64_t run = state_run(w, off / BLOCK_SIZE, range.end, &state);
        uint64_t left = (off / BLOCK_SIZE + run) * BLOCK_SIZE - off;
        size_t n = left < len ? (size_t)left : len;
        int rc = 0;
        if (state == ZERO)
            memset(at, 0, n);
        else if (state == WRITTEN)
            rc = upper_read(w, at, n, off);
        else
            rc = lower(w->lower, at, n, off);
        if (rc < 0)
            return rc;
        at += n;
        off += n;
        len -= n;
    }
    return 0;
}

static int cow_read(struct bdev *d, void *data, size_t len, uint64_t off)
{
    return read_range(cow_of(d), data, len, off, bdev_read);
}

/* The upper is this machine's own file: nothing worth handing over to another thread. */
static int cow_read_now(struct bdev *d, void *data, size_t len, uint64_t off)
{
    return read_range(cow_of(d), data, len, off, bdev_read_now);
}

/* What was never written lies below. */
static int cow_lend(struct bdev *d, struct bdev_loan *loan, size_t len, uint64_t off)
{
    struct cow *w = cow_of(d);
    struct claim range = claim_of(len, off);
    enum state state;
    uint64_t run = state_run(w, range.first, range.end, &state);
    if (state != UNTOUCHED || run < range.end - range.first)
        return -EAGAIN;
    return bdev_lend(w->lower, loan, len, off);
}

/* Writes a part of one owned block; `data` NULL means zeros. The block is then whole in the
 * file. */
static int write_part(struct cow *w, const uint8_t *data, size_t len, uint64_t off)
{
    uint8_t block[BLOCK_SIZE] = {0};
    size_t skip = off % BLOCK_SIZE;
    enum state state = state_get(w, off / BLOCK_SIZE);
    if (state == UNTOUCHED) {
        int rc = bdev_read(w->lower, block, BLOCK_SIZE, off - skip);
        if (rc < 0)
            return rc;
    }
    if (data)
        memcpy(block + skip, data, len);
    else
        memset(block + skip, 0, len);
    if (state == WRITTEN)
        return upper_write(w, block + skip, len, off);
    return upper_write(w, block, BLOCK_SIZE, off - skip);
}

/* Bytes of [off, off + len) up to the first block boundary, when that is not at `off` itself or
 * the range ends before it. */
static size_t head_part(uint64_t len, uint64_t off)
{
    size_t to_boundary = (BLOCK_SIZE - off % BLOCK_SIZE) % BLOCK_SIZE;
    if (to_boundary == 0 && len < BLOCK_SIZE)
        return (size_t)len;
    return len < to_boundary ? (size_t)len : to_boundary;
}

static int write_owned(struct cow *w, const uint8_t *data, size_t len, uint64_t off)
{
    size_t head = head_part(len, off);
    size_t tail = (len - head) % BLOCK_SIZE;
    size_t middle = len - head - tail;
    int rc = head ? write_part(w, data, head, off) : 0;
    if (rc == 0 && middle)
        rc = upper_write(w, data + head, middle, off + head);
    if (rc == 0 && tail)
        rc = write_part(w, data + head + middle, tail, off + head + middle);
    return rc;
}

/* Takes room for the blocks of an owned range that are not yet WRITTEN: *taken of them. */
static int reserve(struct cow *w, const struct claim *claim, uint64_t *taken)
{
    *taken = claim->end - claim->first - count_written(w, claim->first, claim->end);
    if (atomic_fetch_add(&w->written, *taken) + *taken <= w->limit)
        return 0;
    atomic_fetch_sub(&w->written, *taken);
    return -ENOSPC;
}

static int cow_write(struct bdev *d, const void *data, size_t len, uint64_t off)
{
    struct cow *w = cow_of(d);
    struct claim claim = claim_of(len, off);
    claim_take(w, &claim);
    uint64_t taken;
    int rc = reserve(w, &claim, &taken);
    if (rc == 0) {
        touch(w, claim.first, claim.end);
        rc = write_owned(w, data, len, off);
        if (rc == 0)
            state_set(w, claim.first, claim.end, WRITTEN);
        else
            atomic_fetch_sub(&w->written, taken);
    }
    claim_drop(w, &claim);
    return rc;
}

static int zero_part(struct cow *w, size_t len, uint64_t off)
{
    uint64_t block = off / BLOCK_SIZE;
    if (state_get(w, block) == ZERO)
        return 0;
    struct claim claim = {.first = block, .end = block + 1}; /* already owned by the caller */
    uint64_t taken;
    int rc = reserve(w, &claim, &taken);
    if (rc < 0)
        return rc;
    rc = write_part(w, NULL, len, off);
    if (rc == 0)
        state_set(w, block, block + 1, WRITTEN);
    else
        atomic_fetch_sub(&w->written, taken);
    return rc;
}

static int zero_blocks(struct cow *w, uint64_t first, uint64_t end)
{
    uint64_t written = count_written(w, first, end);
    state_set(w, first, end, ZERO);
    if (written == 0)
        return 0;
    atomic_fetch_sub(&w->written, written);
    /* A file system without holes keeps the space; the blocks read as zeros all the same. */
    (void)fallocate(w->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(first * BLOCK_SIZE),
                    (off_t)((end - first) * BLOCK_SIZE));
    return 0;
}

static int cow_discard(struct bdev *d, uint64_t len, uint64_t off)
{
    struct cow *w = cow_of(d);
    struct claim claim = claim_of(len, off);
    size_t head = head_part(len, off);
    size_t tail = (size_t)((len - head) % BLOCK_SIZE);
    uint64_t middle = off + head;
    uint64_t middle_end = off + len - tail;
    claim_take(w, &claim);
    touch(w, claim.first, claim.end);
    int rc = head ? zero_part(w, head, off) : 0;
    if (rc == 0 && middle_end > middle)
        rc = zero_blocks(w, middle / BLOCK_SIZE, middle_end / BLOCK_SIZE);
    if (rc == 0 && tail)
        rc = zero_part(w, tail, middle_end);
    claim_drop(w, &claim);
    return rc;
}

static enum bdev_content cow_content(struct bdev *d, uint64_t len, uint64_t off, uint64_t *run)
{
    struct cow *w = cow_of(d);
    struct claim range = claim_of(len, off);
    enum state state;
    uint64_t blocks = state_run(w, off / BLOCK_SIZE, range.end, &state);
    uint64_t left = (off / BLOCK_SIZE + blocks) * BLOCK_SIZE - off;
    if (left > len)
        left = len;
    if (state == UNTOUCHED)
        return bdev_content(w->lower, left, off, run);
    *run = left;
    return state == ZERO ? BDEV_ZEROS : BDEV_DATA;
}

static void cow_close(struct bdev *d)
{
    struct cow *w = cow_of(d);
    assert(!w->claims);
    bdev_close(w->lower);
    file_close(&w->fd);
    if (w->mapped > 0)
        (void)munmap(w->states, w->mapped);
    else
        free(w->states);
    free(w->touched);
    pthread_cond_destroy(&w->released);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

static const struct bdev_ops cow_ops = {
    .read = cow_read,
    .read_now = cow_read_now,
    .lend = cow_lend,
    .write = cow_write,
    .discard = cow_discard,
    .content = cow_content,
    .close = cow_close,
};

/* A sparse file without a name, so that it goes when the process does. */
static int open_upper(int *out, int tmp_dir, uint64_t size, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp tmp = {.fd = -1};
    int rc = file_tmp_open(&tmp, tmp_dir, e);
    if (rc < 0)
        return rc;
    AUTO_FD int fd = fcntl(tmp.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
        return err_sys(e, "file of %llu bytes in the temporary directory",
                       (unsigned long long)size);
    *out = fd;
    fd = -1;
    return 0;
}

/* Without its upper. */
static int cow_new(struct bdev **out, struct bdev *lower, uint64_t size_limit, struct err *e)
{
    AUTO_BDEV struct bdev *below = lower;
    if (below->size % BLOCK_SIZE != 0)
        return err_set(e, ERR_UNSUPPORTED, "disk of %llu bytes: not a multiple of %d",
                       (unsigned long long)below->size, BLOCK_SIZE);
    struct cow *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "copy-on-write disk");
    w->device.ops = &cow_ops;
    w->device.size = below->size;
    w->fd = -1;
    w->limit = size_limit ? size_limit / BLOCK_SIZE : UINT64_MAX;
    below->nested = true;
    w->lower = MOVE(below);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->released, NULL);
    AUTO_BDEV struct bdev *device = &w->device;
    w->touched = mem_array(touched_words(w), sizeof(*w->touched));
    if (!w->touched)
        return err_nomem(e, "copy-on-write disk");
    touch(w, 0, w->device.size / BLOCK_SIZE);
    *out = MOVE(device);
    return 0;
}

static size_t word_count(const struct cow *w)
{
    return (size_t)(w->device.size / BLOCK_SIZE / WORD_BLOCKS + 1);
}

int bdev_open_cow(struct bdev **out, struct bdev *lower, int tmp_dir, uint64_t size_limit,
                  struct err *e)
{
    AUTO_BDEV struct bdev *device = NULL;
    int rc = cow_new(&device, lower, size_limit, e);
    if (rc < 0)
        return rc;
    struct cow *w = cow_of(device);
    w->states = mem_array(word_count(w), sizeof(*w->states));
    if (!w->states)
        return err_nomem(e, "block states of a copy-on-write disk");
    rc = open_upper(&w->fd, tmp_dir, device->size, e);
    if (rc < 0)
        return err_in(e, "copy-on-write disk");
    *out = MOVE(device);
    return 0;
}

/* ---- Kept uppers ---- */

/* The states come last: with them the upper is whole. */
static int create_kept(const struct cow *w, int dir, const char *name, const char *states_name,
                       struct err *e)
{
    AUTO_FD int fd = -1;
    AUTO_FILE_TMP struct file_tmp states = {.fd = -1};
    int rc = file_open(&fd, dir, name, O_RDWR | O_CREAT | O_TRUNC, 0600, e);
    if (rc == 0 && ftruncate(fd, (off_t)w->device.size) < 0)
        rc = err_sys(e, "%s", name);
    if (rc == 0)
        rc = file_tmp_open(&states, dir, e);
    if (rc < 0)
        return rc;
    /* All of its room now: a full disk must not show when a page of it is first touched. */
    int sys = posix_fallocate(states.fd, 0, (off_t)(word_count(w) * sizeof(*w->states)));
    if (sys != 0)
        return err_sysno(e, sys, "%s", states_name);
    return file_tmp_commit(&states, dir, states_name, false, e);
}

static int map_states(struct cow *w, int dir, const char *states_name, struct err *e)
{
    AUTO_FD int fd = -1;
    struct stat st;
    size_t len = word_count(w) * sizeof(*w->states);
    int rc = file_open(&fd, dir, states_name, O_RDWR | O_NOFOLLOW, 0, e);
    if (rc < 0)
        return rc;
    if (fstat(fd, &st) < 0 || st.st_size != (off_t)len)
        return err_set(e, ERR_CORRUPT, "%s is not of this disk", states_name);
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return err_sys(e, "%s", states_name);
    w->states = at;
    w->mapped = len;
    return 0;
}

/* What an earlier process left; a fresh one is not looked at, which would fill its pages. */
static int check_states(const struct cow *w, const char *states_name, struct err *e)
{
    for (size_t i = 0; i < word_count(w); i++) {
        uint64_t word = atomic_load(&w->states[i]);
        if (word & word >> 1 & word_of(WRITTEN)) /* both bits of a block */
            return err_set(e, ERR_CORRUPT, "%s holds a state that is none", states_name);
    }
    return 0;
}

static int open_kept(struct cow *w, int dir, const char *name, struct err *e)
{
    AUTO_FREE char *states_name = mem_printf("%s.states", name);
    if (!states_name)
        return err_nomem(e, name);
    bool found = file_exists(dir, states_name);
    int rc = found ? 0 : create_kept(w, dir, name, states_name, e);
    if (rc == 0)
        rc = file_lock(&w->fd, dir, name, true, false, e);
    struct stat st;
    if (rc == 0 && (fstat(w->fd, &st) < 0 || st.st_size != (off_t)w->device.size))
        rc = err_set(e, ERR_CORRUPT, "%s is not of this disk", name);
    if (rc == 0)
        rc = map_states(w, dir, states_name, e);
    if (rc == 0 && found)
        rc = check_states(w, states_name, e);
    if (rc < 0 || !found)
        return rc;
    atomic_store(&w->written, count_written(w, 0, w->device.size / BLOCK_SIZE));
    return 0;
}

int bdev_open_cow_kept(struct bdev **out, struct bdev *lower, int dir, const char *name,
                       uint64_t size_limit, struct err *e)
{
    AUTO_BDEV struct bdev *device = NULL;
    int rc = cow_new(&device, lower, size_limit, e);
    if (rc == 0)
        rc = open_kept(cow_of(device), dir, name, e);
    if (rc < 0)
        return err_in(e, "copy-on-write disk");
    *out = MOVE(device);
    return 0;
}

int bdev_cow_forget(int dir, const char *name, struct err *e)
{
    AUTO_FREE char *states_name = mem_printf("%s.states", name);
    if (!states_name)
        return err_nomem(e, name);
    int rc = file_remove_tree(dir, states_name, e);
    return rc < 0 ? rc : file_remove_tree(dir, name, e);
}

bool bdev_cow_written(struct bdev *cow, uint64_t off, uint64_t *run)
{
    assert(cow->ops == &cow_ops);
    enum state state;
    uint64_t block = off / BLOCK_SIZE;
    *run = state_run(cow_of(cow), block, cow->size / BLOCK_SIZE, &state) * BLOCK_SIZE;
    return state == WRITTEN;
}

/* ---- Seal ---- */

struct seal {
    struct cow *cow;
    struct bdev *last; /* reads as the disk did at the last seal */
    struct store *store;
    struct block_map *upper, *zeros;
    uint8_t *data;   /* CHUNK_SIZE_MAX bytes of the upper */
    uint8_t *before; /* the same range of `last` */
};

/* What became of a block. */
enum change { SAME, CLEARED, CHANGED };

static enum change compare(const uint8_t *block, const uint8_t *before)
{
    if (memcmp(block, before, BLOCK_SIZE) == 0)
        return SAME;
    return piece_is_zero(block, BLOCK_SIZE) ? CLEARED : CHANGED;
}

static int seal_cleared(struct seal *s, uint64_t off, size_t len, struct err *e)
{
    struct map_extent extent = {.off = off, .size = (uint32_t)len};
    extent.chunk.algorithm = DIGEST_SHA256;
    return block_map_add(s->zeros, &extent, e);
}

static int seal_changed(struct seal *s, uint64_t off, const uint8_t *data, size_t len,
                        struct err *e)
{
    struct map_extent extent = {.off = off, .size = (uint32_t)len};
    int rc = store_put_chunk(s->store, data, len, &extent.chunk, e);
    return rc < 0 ? rc : block_map_add(s->upper, &extent, e);
}

/* Written blocks within one window of CHUNK_SIZE_MAX: a chunk for each group of changed ones. */
static int seal_written(struct seal *s, uint64_t off, size_t len, struct err *e)
{
    int rc = upper_read(s->cow, s->data, len, off);
    if (rc == 0)
        rc = bdev_read(s->last, s->before, len, off);
    if (rc < 0)
        return err_sysno(e, -rc, "disk range %llu+%zu", (unsigned long long)off, len);
    for (size_t at = 0, group; at < len; at += group) {
        enum change change = compare(s->data + at, s->before + at);
        group = BLOCK_SIZE;
        while (at + group < len && compare(s->data + at + group, s->before + at + group) == change)
            group += BLOCK_SIZE;
        if (change == CLEARED)
            rc = seal_cleared(s, off + at, group, e);
        else if (change == CHANGED)
            rc = seal_changed(s, off + at, s->data + at, group, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Discarded blocks within one window: a change where there were data. */
static int seal_discarded(struct seal *s, uint64_t off, size_t len, struct err *e)
{
    while (len > 0) {
        uint64_t run;
        enum bdev_content content = bdev_content(s->last, len, off, &run);
        int rc = content == BDEV_DATA ? seal_cleared(s, off, (size_t)run, e) : 0;
        if (rc < 0)
            return rc;
        off += run;
        len -= (size_t)run;
    }
    return 0;
}

/* Blocks of one state within one window. */
static int seal_run(struct seal *s, enum state state, uint64_t block, uint64_t count, struct err *e)
{
    size_t len = (size_t)(count * BLOCK_SIZE);
    if (state == UNTOUCHED)
        return 0;
    return state == WRITTEN ? seal_written(s, block * BLOCK_SIZE, len, e)
                            : seal_discarded(s, block * BLOCK_SIZE, len, e);
}

static int seal_all(struct seal *s, struct err *e)
{
    uint64_t count = s->cow->device.size / BLOCK_SIZE;
    uint64_t window_blocks = CHUNK_SIZE_MAX / BLOCK_SIZE;
    int rc = 0;
    for (uint64_t block = 0, run; rc == 0 && block < count; block += run) {
        bool touched;
        enum state state;
        run = touched_run(s->cow, block, count, &touched);
        if (!touched)
            continue;
        run = state_run(s->cow, block, block + run, &state);
        uint64_t window_end = (block / window_blocks + 1) * window_blocks;
        if (state != UNTOUCHED && run > window_end - block)
            run = window_end - block;
        rc = seal_run(s, state, block, run, e);
    }
    return rc;
}

static void forget_touched(struct cow *w)
{
    for (size_t i = 0; i < touched_words(w); i++)
        atomic_store_explicit(&w->touched[i], 0, memory_order_relaxed);
}

int bdev_cow_seal(struct bdev *cow, struct bdev *last, struct store *store,
                  struct block_map **upper, struct block_map **zeros, struct err *e)
{
    assert(cow->ops == &cow_ops);
    assert(!last || last->size == cow->size);
    AUTO_BLOCK_MAP struct block_map *upper_map = NULL;
    AUTO_BLOCK_MAP struct block_map *zeros_map = NULL;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    AUTO_FREE uint8_t *before = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data || !before)
        return err_nomem(e, "sealing a disk");
    int rc = block_map_new(&upper_map, cow->size, e);
    if (rc == 0)
        rc = block_map_new(&zeros_map, cow->size, e);
    if (rc < 0)
        return rc;
    struct cow *w = cow_of(cow);
    struct seal s = {w, last ? last : w->lower, store, upper_map, zeros_map, data, before};
    rc = seal_all(&s, e);
    if (rc == 0)
        rc = block_map_finish(upper_map, e);
    if (rc == 0)
        rc = block_map_finish(zeros_map, e);
    if (rc < 0)
        return err_in(e, "changes of the disk");
    forget_touched(w);
    *upper = MOVE(upper_map);
    *zeros = MOVE(zeros_map);
    return 0;
}
