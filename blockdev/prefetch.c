/* SPDX-License-Identifier: MIT */
/*
 * Bringing chunks from the store's source before anybody reads them, in a given order: a boot's trace
 * first, the rest of the disk after it. Threads of its own take one chunk after the other. What is urgent
 * comes as fast as it can: a reader that waits mostly waits for one of these. Before each other chunk
 * readers go first, so that the line is theirs. A chunk that fails is passed over: whoever reads it
 * asks again, and gets the error. Chunks that are in the store already can be unpacked into a cache
 * instead: that is most of what a read costs then.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    WORKERS_MAX = 16,
    QUIET_WAIT_MS = 500, /* then one chunk goes all the same: readers may never be quiet */
    SOURCE_PAUSE_MS = 1000,
    PAUSE_STEP_MS = 100,
};

struct prefetch {
    struct store *store;
    struct digest *chunks;
    size_t count;
    size_t urgent;
    struct chunk_cache *cache;
    uint64_t cache_bytes;
    atomic_uint_fast64_t cached; /* bytes that were unpacked into it */
    atomic_size_t next;
    atomic_size_t fetched, failed;
    atomic_bool stopping;
    atomic_bool told; /* of a failure */
    pthread_t threads[WORKERS_MAX];
    size_t thread_count;
};

/* Into memory, as long as there is room for it. */
static int unpack(struct prefetch *p, const struct digest *d, struct err *e)
{
    struct cached_chunk *chunk;
    size_t len;
    if (atomic_load(&p->cached) >= p->cache_bytes)
        return 0;
    int rc = chunk_cache_get(p->cache, d, &chunk, e);
    if (rc < 0)
        return rc;
    (void)cached_chunk_bytes(chunk, &len);
    atomic_fetch_add(&p->cached, len);
    chunk_cache_put(p->cache, chunk);
    return 0;
}

static int bring(struct prefetch *p, const struct digest *d, uint8_t *data, struct err *e)
{
    struct chunk_codec *c;
    if (store_has_chunk(p->store, d))
        return p->cache ? unpack(p, d, e) : 0;
    int rc = store_take_codec(p->store, &c, e);
    if (rc < 0)
        return rc;
    rc = store_fetch_ahead(p->store, c, d, data, e);
    store_give_codec(p->store, c);
    if (rc == 0)
        atomic_fetch_add(&p->fetched, 1);
    return rc;
}

static void pause_a_while(const struct prefetch *p)
{
    for (int ms = 0; ms < SOURCE_PAUSE_MS && !atomic_load(&p->stopping); ms += PAUSE_STEP_MS)
        clock_sleep_ms(PAUSE_STEP_MS);
}

/* A source that is away may come back: what is not urgent is tried until then. */
static void bring_in_the_end(struct prefetch *p, size_t index, uint8_t *data)
{
    char text[DIGEST_TEXT_MAX];
    struct err e = ERR_INIT;
    while (!atomic_load(&p->stopping)) {
        err_clear(&e);
        if (index >= p->urgent)
            store_wait_quiet(p->store, QUIET_WAIT_MS);
        if (bring(p, &p->chunks[index], data, &e) == 0)
            return;
        if (!atomic_exchange(&p->told, true))
            log_event(LOG_WARN, "blockdev", "prefetching chunk %s: %s (more are only counted)",
                      digest_print(&p->chunks[index], text), e.text);
        if (index < p->urgent || !err_retryable(&e))
            break;
        pause_a_while(p);
    }
    atomic_fetch_add(&p->failed, 1);
}

static void *prefetch_main(void *arg)
{
    struct prefetch *p = arg;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    while (data && !atomic_load(&p->stopping)) {
        size_t index = atomic_fetch_add(&p->next, 1);
        if (index >= p->count)
            break;
        bring_in_the_end(p, index, data);
    }
    return NULL;
}

static void join(struct prefetch *p)
{
    for (size_t i = 0; i < p->thread_count; i++)
        pthread_join(p->threads[i], NULL);
    p->thread_count = 0;
}

int prefetch_start(struct prefetch **out, struct store *s, const struct digest *chunks,
                   size_t count, const struct prefetch_options *o, struct err *e)
{
    struct prefetch *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "prefetch");
    p->store = s;
    p->count = count;
    p->urgent = o->urgent;
    p->cache = o->cache;
    p->cache_bytes = o->cache_bytes;
    p->chunks = mem_dup(chunks, count * sizeof(*chunks));
    if (!p->chunks) {
        prefetch_stop(p);
        return err_nomem(e, "prefetch");
    }
    size_t workers = o->workers < WORKERS_MAX ? o->workers : WORKERS_MAX;
    for (size_t i = 0; i < workers; i++) {
        int sys = device_thread_start(&p->threads[i], prefetch_main, p);
        if (sys != 0) {
            prefetch_stop(p);
            return err_sysno(e, sys, "prefetch: starting a thread");
        }
        p->thread_count++;
    }
    *out = p;
    return 0;
}

struct prefetch_stats prefetch_wait(struct prefetch *p)
{
    join(p);
    return (struct prefetch_stats){.fetched = atomic_load(&p->fetched),
                                   .failed = atomic_load(&p->failed)};
}

void prefetch_stop(struct prefetch *p)
{
    if (!p)
        return;
    atomic_store(&p->stopping, true);
    join(p);
    free(p->chunks);
    free(p);
}
