/* SPDX-License-Identifier: MIT */
/*
 * Chunks that the store brings from elsewhere.
 *
 * What arrives is decoded and hashed before anything else sees it, and kept as it came: the stored
 * form of a chunk is any frame that holds its bytes. A source that is down is asked again, ever less
 * often, until the deadline; one that sends wrong bytes is not asked again, since it would send
 * them again.
 *
 * A chunk that is on its way is in the list of flights; who wants it too waits until it has landed
 * and reads it from the store. When it could not be kept there, each fetches it for himself, one after
 * the other. Readers are counted while they wait, so that prefetching (prefetch.c) can step back.
 */
#include <pthread.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/internal.h"

enum {
    LIMIT_MS = 30 * 1000,
    PAUSE_FIRST_MS = 50,
    PAUSE_MAX_MS = 2000,
    AHEAD_LIMIT_MS = 10 * 1000,
};

/* Asks until there is an answer that asking again would not change. */
static int ask(const struct chunk_source *source, const struct digest *d, int64_t deadline_ms,
               struct buf *stored, struct err *e)
{
    int64_t pause = PAUSE_FIRST_MS;
    while (true) {
        stored->len = 0;
        err_clear(e);
        int rc = source->fetch(source->ctx, d, deadline_ms, stored, e);
        if (rc == 0 || !err_retryable(e))
            return rc;
        if (e->retry_after_ms > pause)
            pause = e->retry_after_ms;
        if (deadline_ms - clock_ms() <= pause)
            return rc;
        clock_sleep_ms(pause);
        pause = pause * 2 < PAUSE_MAX_MS ? pause * 2 : PAUSE_MAX_MS;
    }
}

static int keep(struct store *s, const struct digest *d, const struct buf *stored, struct err *e)
{
    AUTO_FILE_TMP struct file_tmp t = {.fd = -1};
    int rc = store_begin_chunks(s, e);
    if (rc == 0)
        rc = file_tmp_open(&t, store_tmp_dir(s), e);
    if (rc == 0)
        rc = file_write_full(t.fd, stored->data, stored->len, e);
    if (rc == 0)
        rc = store_commit_chunk(s, d, &t, e);
    return rc;
}

/* ---- Flights ---- */

void chunk_fetches_init(struct chunk_fetches *f)
{
    *f = (struct chunk_fetches){.limit_ms = LIMIT_MS};
    pthread_mutex_init(&f->mutex, NULL);
    (void)cond_init(&f->landed);
}

void chunk_fetches_fini(struct chunk_fetches *f)
{
    pthread_cond_destroy(&f->landed);
    pthread_mutex_destroy(&f->mutex);
}

void store_set_source_limit(struct store *s, int64_t limit_ms)
{
    store_fetches(s)->limit_ms = limit_ms;
}

static bool is_flying(const struct chunk_fetches *f, const struct digest *d)
{
    const struct chunk_flight *flight = f->flights;
    while (flight && !digest_equal(&flight->digest, d))
        flight = flight->next;
    return flight;
}

/* Begins a flight; true when another of this chunk was waited for first. */
static bool take_off(struct chunk_fetches *f, struct chunk_flight *mine)
{
    bool waited = false;
    pthread_mutex_lock(&f->mutex);
    while (is_flying(f, &mine->digest)) {
        waited = true;
        pthread_cond_wait(&f->landed, &f->mutex);
    }
    mine->next = f->flights;
    f->flights = mine;
    pthread_mutex_unlock(&f->mutex);
    return waited;
}

static void land(struct chunk_fetches *f, struct chunk_flight *mine)
{
    pthread_mutex_lock(&f->mutex);
    struct chunk_flight **at = &f->flights;
    while (*at != mine)
        at = &(*at)->next;
    *at = mine->next;
    pthread_cond_broadcast(&f->landed);
    pthread_mutex_unlock(&f->mutex);
}

void store_wait_quiet(struct store *s, int64_t limit_ms)
{
    struct chunk_fetches *f = store_fetches(s);
    const int64_t end_ms = clock_ms() + limit_ms;
    pthread_mutex_lock(&f->mutex);
    while (f->readers > 0 && cond_wait_until(&f->landed, &f->mutex, end_ms))
        ;
    pthread_mutex_unlock(&f->mutex);
}

void store_count_reader(struct store *s, int by)
{
    struct chunk_fetches *f = store_fetches(s);
    pthread_mutex_lock(&f->mutex);
    f->readers = (unsigned)((int)f->readers + by);
    if (f->readers == 0)
        pthread_cond_broadcast(&f->landed);
    pthread_mutex_unlock(&f->mutex);
}

/* ---- One chunk ---- */

/* Where a chunk goes, and how much is done for it. */
struct wanted {
    void *data;
    size_t len;
    bool ahead; /* nobody waits for it */
};

static int fetch(struct store *s, struct chunk_codec *c, const struct digest *d, struct wanted *w,
                 struct err *e)
{
    struct chunk_fetches *f = store_fetches(s);
    const struct chunk_source *source = f->source;
    AUTO_BUF struct buf stored;
    buf_init(&stored, CHUNK_STORED_MAX);
    int rc = w->ahead ? source->fetch(source->ctx, d, clock_ms() + AHEAD_LIMIT_MS, &stored, e)
                      : ask(source, d, clock_ms() + f->limit_ms, &stored, e);
    if (rc == 0)
        rc = chunk_decode(c, stored.data, stored.len, w->data, &w->len, e);
    if (rc == 0)
        rc = digest_check(d, w->data, w->len, e);
    if (rc < 0)
        return err_in(e, "from the remote store");
    struct err full = ERR_INIT;
    if (keep(s, d, &stored, &full) < 0) {
        char text[DIGEST_TEXT_MAX];
        log_event(LOG_WARN, "blockdev", "chunk %s is used but not kept: %s", digest_print(d, text),
                  full.text);
    }
    return 0;
}

static int fetch_or_wait(struct store *s, struct chunk_codec *c, const struct digest *d,
                         struct wanted *w, struct err *e)
{
    struct chunk_fetches *f = store_fetches(s);
    if (!f->source || d->algorithm != DIGEST_SHA256)
        return -(int)e->class;
    struct chunk_flight mine = {.digest = *d};
    int rc = -1;
    if (take_off(f, &mine)) {
        err_clear(e);
        rc = store_read_chunk(s, c, d, w->data, &w->len, e);
    }
    if (rc < 0) {
        err_clear(e);
        rc = fetch(s, c, d, w, e);
    }
    land(f, &mine);
    return rc;
}

int store_fetch_chunk(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                      size_t *len, struct err *e)
{
    struct wanted w = {.data = data};
    int rc = fetch_or_wait(s, c, d, &w, e);
    if (rc == 0)
        *len = w.len;
    return rc;
}

int store_fetch_ahead(struct store *s, struct chunk_codec *c, const struct digest *d, void *data,
                      struct err *e)
{
    struct wanted w = {.data = data, .ahead = true};
    err_set(e, ERR_NOTFOUND, "not in the store"); /* what it stays where there is no source */
    return fetch_or_wait(s, c, d, &w, e);
}

static int get_stored(struct store *s, struct chunk_codec *c, const struct digest *d,
                      struct buf *stored, struct err *e)
{
    char path[CHUNK_PATH_MAX];
    size_t len = 0;
    AUTO_FREE void *data = mem_zalloc(CHUNK_SIZE_MAX);
    if (!data)
        return err_nomem(e, "chunk");
    int rc = file_read(store_dir(s), store_chunk_path(d, path), stored, e);
    if (rc == 0)
        rc = chunk_decode(c, stored->data, stored->len, data, &len, e);
    return rc < 0 ? rc : digest_check(d, data, len, e);
}

int store_get_stored_chunk(struct store *s, const struct digest *d, struct buf *out, struct err *e)
{
    AUTO_BUF struct buf stored;
    struct chunk_codec *c;
    char text[DIGEST_TEXT_MAX];
    buf_init(&stored, CHUNK_STORED_MAX);
    int rc = store_take_codec(s, &c, e);
    if (rc < 0)
        return rc;
    rc = get_stored(s, c, d, &stored, e);
    store_give_codec(s, c);
    if (rc == 0)
        rc = buf_add(out, stored.data, stored.len, e);
    return rc < 0 ? err_in(e, "chunk %s", digest_print(d, text)) : 0;
}
