/* SPDX-License-Identifier: MIT */
/*
 * Bringing chunks from the store's source before anybody reads them, in a given order: a boot's trace
 * first, the rest of the disk after it. Threads of its own take one chunk after the other; before each
 * they let readers that wait for a chunk go first, so the line is theirs. A chunk that fails is passed
 * over: whoever reads it asks again, and gets the error.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    WORKERS_MAX = 16,
    QUIET_WAIT_MS = 500, /* then one chunk goes all the same: readers may never be quiet */
};

struct prefetch {
    struct store *store;
    struct digest *chunks;
    size_t count;
    atomic_size_t next;
    atomic_size_t fetched, failed;
    atomic_bool stopping;
    pthread_t threads[WORKERS_MAX];
    size_t thread_count;
};

static void bring(struct prefetch *p, const struct digest *d, uint8_t *data)
{
    struct err e = ERR_INIT;
    struct chunk_codec *c;
    size_t len;
    if (store_has_chunk(p->store, d))
        return;
    int rc = store_take_codec(p->store, &c, &e);
    if (rc == 0) {
        err_set(&e, ERR_NOTFOUND, "not in the store");
        rc = store_fetch_chunk(p->store, c, d, data, &len, &e);
        store_give_codec(p->store, c);
    }
    if (rc == 0) {
        atomic_fetch_add(&p->fetched, 1);
        return;
    }
    char text[DIGEST_TEXT_MAX];
    if (atomic_fetch_add(&p->failed, 1) == 0)
        log_event(LOG_WARN, "blockdev", "prefetching chunk %s: %s (more are only counted)",
                  digest_print(d, text), e.text);
}

static void *prefetch_main(void *arg)
{
    struct prefetch *p = arg;
    AUTO_FREE uint8_t *data = mem_zalloc(CHUNK_SIZE_MAX);
    while (data && !atomic_load(&p->stopping)) {
        size_t index = atomic_fetch_add(&p->next, 1);
        if (index >= p->count)
            break;
        store_wait_quiet(p->store, QUIET_WAIT_MS);
        bring(p, &p->chunks[index], data);
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
                   size_t count, size_t workers, struct err *e)
{
    struct prefetch *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "prefetch");
    p->store = s;
    p->count = count;
    p->chunks = mem_dup(chunks, count * sizeof(*chunks));
    if (!p->chunks) {
        prefetch_stop(p);
        return err_nomem(e, "prefetch");
    }
    if (workers > WORKERS_MAX)
        workers = WORKERS_MAX;
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
