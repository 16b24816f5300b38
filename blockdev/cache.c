/* SPDX-License-Identifier: MIT */
/*
 * Chunks in memory, found by digest.
 *
 * An entry is LOADING, READY or FAILED, and counts the readers that hold it. The first reader that
 * misses puts a LOADING entry into the table and loads with no lock held; readers that come
 * meanwhile hold the same entry and wait for its condition. A failed load takes the entry out of
 * the table before anyone is woken, so that no failure is remembered: who comes later loads again.
 *
 * Entries that nobody holds hang in a list by last use, and only they can be evicted: an entry
 * leaves the table and the list first and is freed after, both under the lock, so a half-evicted
 * chunk cannot be found. Chunks in use may exceed the capacity; what is too much goes when it is
 * put back. A capacity below one chunk thus means that nothing stays.
 *
 * One mutex guards everything; it is never held during a load or a copy.
 */
#include "blockdev/blockdev.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "blockdev/internal.h"

enum chunk_state { LOADING, READY, FAILED };

struct cached_chunk {
    struct digest digest;
    enum chunk_state state;
    struct err *failure; /* when FAILED; NULL: memory was short */
    size_t holders;
    uint8_t *data;
    size_t len;
    pthread_cond_t loaded;
    struct cached_chunk *next_in_bucket;
    struct cached_chunk *older, *newer; /* while READY and held by nobody */
};

struct chunk_cache {
    struct store *store;
    uint64_t capacity;
    pthread_mutex_t mutex;
    struct cached_chunk **buckets;
    size_t bucket_count; /* a power of two */
    struct cached_chunk *oldest, *newest;
    struct chunk_cache_stats stats;
};

int chunk_cache_new(struct chunk_cache **out, struct store *s, uint64_t capacity, struct err *e)
{
    AUTO_FREE struct chunk_cache *c = mem_zalloc(sizeof(*c));
    if (!c)
        return err_nomem(e, "chunk cache");
    /* About one bucket a chunk of middling size; long chains only cost time. */
    c->bucket_count = 64;
    while (c->bucket_count < capacity / (64 << 10) && c->bucket_count < (size_t)1 << 20)
        c->bucket_count *= 2;
    c->buckets = mem_array(c->bucket_count, sizeof(struct cached_chunk *));
    if (!c->buckets)
        return err_nomem(e, "chunk cache");
    c->store = s;
    c->capacity = capacity;
    pthread_mutex_init(&c->mutex, NULL);
    *out = MOVE(c);
    return 0;
}

static void chunk_free(struct cached_chunk *chunk)
{
    pthread_cond_destroy(&chunk->loaded);
    free(chunk->failure);
    free(chunk->data);
    free(chunk);
}

void chunk_cache_free(struct chunk_cache *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->bucket_count; i++) {
        struct cached_chunk *next;
        for (struct cached_chunk *chunk = c->buckets[i]; chunk; chunk = next) {
            assert(chunk->holders == 0);
            next = chunk->next_in_bucket;
            chunk_free(chunk);
        }
    }
    pthread_mutex_destroy(&c->mutex);
    free(c->buckets);
    free(c);
}

static struct cached_chunk **bucket_of(struct chunk_cache *c, const struct digest *d)
{
    uint64_t hash;
    memcpy(&hash, d->bytes, sizeof(hash)); /* a digest's bytes are as good as random */
    return &c->buckets[hash & (c->bucket_count - 1)];
}

static void table_remove(struct chunk_cache *c, struct cached_chunk *chunk)
{
    struct cached_chunk **at = bucket_of(c, &chunk->digest);
    while (*at != chunk)
        at = &(*at)->next_in_bucket;
    *at = chunk->next_in_bucket;
}

static void idle_remove(struct chunk_cache *c, struct cached_chunk *chunk)
{
    *(chunk->older ? &chunk->older->newer : &c->oldest) = chunk->newer;
    *(chunk->newer ? &chunk->newer->older : &c->newest) = chunk->older;
    chunk->older = chunk->newer = NULL;
}

static void idle_add(struct chunk_cache *c, struct cached_chunk *chunk)
{
    chunk->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = chunk;
    c->newest = chunk;
}

/* Each turn shortens the list, so this ends whatever the sizes are. */
static void evict(struct chunk_cache *c)
{
    while (c->stats.bytes > c->capacity && c->oldest) {
        struct cached_chunk *chunk = c->oldest;
        idle_remove(c, chunk);
        table_remove(c, chunk);
        c->stats.bytes -= chunk->len;
        c->stats.evictions++;
        chunk_free(chunk);
    }
}

/* Plain bytes of a chunk in an allocation of just their size. */
static int load(struct chunk_cache *c, const struct digest *d, uint8_t **data, size_t *len,
                struct err *e)
{
    AUTO_FREE uint8_t *bytes = mem_zalloc(CHUNK_SIZE_MAX);
    if (!bytes)
        return err_nomem(e, "chunk");
    size_t got;
    int rc = store_get_chunk(c->store, d, bytes, &got, e);
    if (rc < 0)
        return rc;
    if (got < CHUNK_SIZE_MAX) {
        uint8_t *fitted = mem_dup(bytes, got);
        if (!fitted)
            return err_nomem(e, "chunk");
        free(bytes);
        bytes = fitted;
    }
    *data = MOVE(bytes);
    *len = got;
    return 0;
}

static struct cached_chunk *find(struct chunk_cache *c, const struct digest *d)
{
    struct cached_chunk *chunk = *bucket_of(c, d);
    while (chunk && !digest_equal(&chunk->digest, d))
        chunk = chunk->next_in_bucket;
    return chunk;
}

static void hold(struct chunk_cache *c, struct cached_chunk *chunk)
{
    if (chunk->state == READY && chunk->holders == 0)
        idle_remove(c, chunk);
    chunk->holders++;
}

/* Looks a chunk up, or leaves a LOADING entry for the caller to fill (*mine). The caller holds it
 * either way; NULL when memory is short. */
static struct cached_chunk *find_or_add(struct chunk_cache *c, const struct digest *d, bool *mine)
{
    struct cached_chunk *chunk = find(c, d);
    *mine = !chunk;
    if (chunk) {
        c->stats.hits++;
    } else {
        struct cached_chunk **bucket = bucket_of(c, d);
        chunk = mem_zalloc(sizeof(*chunk));
        if (!chunk)
            return NULL;
        chunk->digest = *d;
        chunk->state = LOADING;
        pthread_cond_init(&chunk->loaded, NULL);
        chunk->next_in_bucket = *bucket;
        *bucket = chunk;
        c->stats.loads++;
    }
    hold(c, chunk);
    return chunk;
}

/* Called with the lock held. */
static void release(struct chunk_cache *c, struct cached_chunk *chunk)
{
    assert(chunk->holders > 0);
    if (--chunk->holders > 0)
        return;
    if (chunk->state == FAILED) {
        chunk_free(chunk);
        return;
    }
    idle_add(c, chunk);
    evict(c);
}

/* Called with the lock held, which it gives up during the load. */
static int fill(struct chunk_cache *c, struct cached_chunk *chunk, struct err *e)
{
    uint8_t *data = NULL;
    size_t len = 0;
    pthread_mutex_unlock(&c->mutex);
    int rc = load(c, &chunk->digest, &data, &len, e);
    pthread_mutex_lock(&c->mutex);
    if (rc < 0) {
        chunk->state = FAILED;
        chunk->failure = mem_dup(e, sizeof(*e));
        c->stats.failures++;
        table_remove(c, chunk);
    } else {
        chunk->data = data;
        chunk->len = len;
        chunk->state = READY;
        c->stats.bytes += len;
        evict(c);
    }
    pthread_cond_broadcast(&chunk->loaded);
    return rc;
}

static int wait_for(struct chunk_cache *c, struct cached_chunk *chunk, struct err *e)
{
    while (chunk->state == LOADING)
        pthread_cond_wait(&chunk->loaded, &c->mutex);
    if (chunk->state == READY)
        return 0;
    if (!chunk->failure)
        return err_nomem(e, "chunk");
    *e = *chunk->failure;
    return -(int)e->class;
}

int chunk_cache_get(struct chunk_cache *c, const struct digest *d, struct cached_chunk **out,
                    struct err *e)
{
    pthread_mutex_lock(&c->mutex);
    bool mine;
    struct cached_chunk *chunk = find_or_add(c, d, &mine);
    int rc = !chunk ? err_nomem(e, "chunk") : mine ? fill(c, chunk, e) : wait_for(c, chunk, e);
    if (rc == 0)
        *out = chunk;
    else if (chunk)
        release(c, chunk);
    pthread_mutex_unlock(&c->mutex);
    return rc;
}

bool chunk_cache_peek(struct chunk_cache *c, const struct digest *d, struct cached_chunk **out)
{
    pthread_mutex_lock(&c->mutex);
    struct cached_chunk *chunk = find(c, d);
    bool ready = chunk && chunk->state == READY;
    if (ready) {
        c->stats.hits++;
        hold(c, chunk);
        *out = chunk;
    }
    pthread_mutex_unlock(&c->mutex);
    return ready;
}

void chunk_cache_put(struct chunk_cache *c, struct cached_chunk *chunk)
{
    pthread_mutex_lock(&c->mutex);
    release(c, chunk);
    pthread_mutex_unlock(&c->mutex);
}

const uint8_t *cached_chunk_bytes(const struct cached_chunk *chunk, size_t *len)
{
    *len = chunk->len;
    return chunk->data;
}

struct chunk_cache_stats chunk_cache_stats(struct chunk_cache *c)
{
    pthread_mutex_lock(&c->mutex);
    struct chunk_cache_stats stats = c->stats;
    pthread_mutex_unlock(&c->mutex);
    return stats;
}
