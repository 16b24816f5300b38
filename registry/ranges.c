/* SPDX-License-Identifier: MIT */
/*
 * One blob over several connections.
 *
 * The blob is cut into segments, which threads fetch by Range, lowest first, while the caller hashes
 * the file behind them. The first answer decides whether the others begin: a server that sends the
 * whole blob instead is read by one connection, as in blob.c.
 *
 * Until the last byte is there the file has a trailer behind the place of the blob: how many bytes of
 * each segment have arrived. It is written before the first segment, so a file with holes is never
 * taken for the prefix of a blob, whenever the program dies; a count is written after its bytes.
 *
 *     blob (size bytes) | magic 8 | size u64 | segment length u64 | count u32 | count * u32
 */
#include "registry/internal.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/file.h"
#include "base/mem.h"

enum {
    CONNECTIONS = 4, /* of one blob, at most */
    SEGMENTS_MAX = 1 << 20,
    HEAD_LEN = 28,
    NOTE_BYTES = 1 << 20, /* a count is brought up to date after so many bytes */
    SLICE_MS = 500
};

static const char magic[] = {'T', 'B', '2', 'P', 'A', 'R', 'T', '1'};

struct segments {
    uint64_t len; /* of each but the last */
    uint32_t count;
    uint32_t *done; /* bytes of each that the file holds, from its start */
    bool *taken;    /* some thread is at it */
};

/* One blob_at with its threads. */
struct crew {
    struct download *d;
    const struct stop *stop;
    struct segments *s;
    pthread_mutex_t lock; /* guards s->done, s->taken and what follows */
    pthread_cond_t changed;
    pthread_t threads[CONNECTIONS];
    size_t started;
    size_t running;
    bool proved;          /* an answer was the range asked for */
    bool refused;         /* an answer was no range */
    bool encoded;         /* an answer had a Content-Encoding */
    atomic_bool stopping; /* whatever is under way is in vain */
    struct err err;       /* the first one */
    uint64_t arrived;     /* not yet told to the caller */
};

/* One request. */
struct piece {
    struct crew *crew;
    uint32_t index;
    uint64_t first; /* of this request */
    uint64_t at;    /* next byte */
    uint64_t end;   /* of the segment */
    uint64_t noted;
    bool started;
};

static uint64_t segment_len(const struct download *d, const struct segments *s, uint32_t index)
{
    uint64_t first = s->len * index;
    uint64_t left = d->blob->size - first;

    return left < s->len ? left : s->len;
}

/* ---- The trailer ------------------------------------------------------------------------ */

void segments_free(struct segments *s)
{
    if (!s)
        return;
    free(s->done);
    free(s->taken);
    free(s);
}

static int segments_new(struct segments **out, uint64_t size, uint64_t len, struct err *e)
{
    struct segments *s = mem_zalloc(sizeof(*s));

    if (!s)
        return err_nomem(e, "download");
    s->len = len;
    s->count = (uint32_t)((size + len - 1) / len);
    s->done = mem_array(s->count, sizeof(*s->done));
    s->taken = mem_array(s->count, sizeof(*s->taken));
    if (!s->done || !s->taken) {
        segments_free(s);
        return err_nomem(e, "download");
    }
    *out = s;
    return 0;
}

static bool length_is_legal(uint64_t size, uint64_t len)
{
    return len > 0 && len <= UINT32_MAX && size / len < SEGMENTS_MAX;
}

static int read_counts(struct segments *s, const struct download *d, struct cursor *c,
                       struct err *e)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (cursor_u32(c, &s->done[i], e) < 0)
            return -(int)e->class;
        if (s->done[i] > segment_len(d, s, i))
            return err_set(e, ERR_CORRUPT, "more than a segment");
    }
    return 0;
}

/* ERR_CORRUPT when it is no trailer of this blob. */
static int read_trailer(struct segments **out, const struct download *d, const void *text,
                        size_t text_len, struct err *e)
{
    struct cursor c = {text, text_len};
    const uint8_t *mark = NULL;
    uint64_t size = 0;
    uint64_t len = 0;
    uint32_t count = 0;

    if (cursor_bytes(&c, &mark, sizeof(magic), e) < 0 || cursor_u64(&c, &size, e) < 0 ||
        cursor_u64(&c, &len, e) < 0 || cursor_u32(&c, &count, e) < 0)
        return -(int)e->class;
    if (memcmp(mark, magic, sizeof(magic)) != 0 || size != d->blob->size ||
        !length_is_legal(size, len) || count != (size + len - 1) / len ||
        c.left != (size_t)count * 4)
        return err_set(e, ERR_CORRUPT, "no trailer of this blob");
    struct segments *s = NULL;
    if (segments_new(&s, size, len, e) < 0)
        return -(int)e->class;
    if (read_counts(s, d, &c, e) < 0) {
        segments_free(s);
        return -(int)e->class;
    }
    *out = s;
    return 0;
}

int segments_load(struct segments **out, const struct download *d, uint64_t file_size,
                  struct err *e)
{
    uint64_t size = d->blob->size;

    *out = NULL;
    if (file_size <= size || file_size - size < HEAD_LEN ||
        file_size - size > HEAD_LEN + (uint64_t)SEGMENTS_MAX * 4)
        return 0;
    size_t len = (size_t)(file_size - size);
    AUTO_FREE uint8_t *text = mem_zalloc(len);
    if (!text)
        return err_nomem(e, "download");
    if (file_pread_full(d->fd, text, len, size, e) < 0)
        return -(int)e->class;
    if (read_trailer(out, d, text, len, e) < 0 && e->class == ERR_NOMEM)
        return -ERR_NOMEM;
    err_clear(e);
    return 0;
}

static int write_trailer(const struct download *d, const struct segments *s, struct err *e)
{
    AUTO_BUF struct buf b;

    buf_init(&b, HEAD_LEN + (size_t)s->count * 4);
    if (buf_add(&b, magic, sizeof(magic), e) < 0 || buf_add_u64(&b, d->blob->size, e) < 0 ||
        buf_add_u64(&b, s->len, e) < 0 || buf_add_u32(&b, s->count, e) < 0)
        return -(int)e->class;
    for (uint32_t i = 0; i < s->count; i++) {
        if (buf_add_u32(&b, s->done[i], e) < 0)
            return -(int)e->class;
    }
    return file_pwrite_full(d->fd, b.data, b.len, d->blob->size, e);
}

/* Brings one count of the trailer up to date. */
static int write_count(const struct download *d, uint32_t index, uint32_t done, struct err *e)
{
    const uint8_t bytes[4] = {(uint8_t)done, (uint8_t)(done >> 8), (uint8_t)(done >> 16),
                              (uint8_t)(done >> 24)};

    return file_pwrite_full(d->fd, bytes, sizeof(bytes), d->blob->size + HEAD_LEN + index * 4ULL,
                            e);
}

bool segments_wanted(const struct download *d)
{
    const struct registry_tuning *t = &d->registry->tuning;

    if (d->segments)
        return true;
    return !d->no_ranges && t->ranges_min > 0 && d->blob->size - d->have >= t->ranges_min &&
           length_is_legal(d->blob->size, t->segment_len);
}

/* Turns a file that is a prefix into one with a trailer. */
static int begin(struct download *d, struct err *e)
{
    struct segments *s = NULL;

    if (segments_new(&s, d->blob->size, d->registry->tuning.segment_len, e) < 0)
        return -(int)e->class;
    for (uint32_t i = 0; i < s->count; i++) {
        uint64_t first = s->len * i;
        uint64_t len = segment_len(d, s, i);
        uint64_t have = d->have > first ? d->have - first : 0;
        s->done[i] = (uint32_t)(have < len ? have : len);
    }
    if (write_trailer(d, s, e) < 0) {
        segments_free(s);
        return -(int)e->class;
    }
    d->segments = s;
    return 0;
}

/* ---- A thread --------------------------------------------------------------------------- */

static void lock(struct crew *c)
{
    (void)pthread_mutex_lock(&c->lock);
}

static void unlock(struct crew *c)
{
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

static int judge_piece(struct piece *p, const struct http_response *r, struct err *e)
{
    struct crew *c = p->crew;
    uint64_t size = c->d->blob->size;
    bool range = r->status == 206 && r->has_range && r->range_first == p->first &&
                 r->range_last < p->end && (!r->has_range_total || r->range_total == size);

    lock(c);
    c->encoded = c->encoded || r->encoding;
    c->proved = c->proved || range;
    c->refused = c->refused || !range;
    unlock(c);
    return range ? 0 : err_set(e, ERR_NET, "the answer is not the range that was asked for");
}

/* Says how far the segment has come, in memory and in the file. */
static int note_done(struct piece *p, struct err *e)
{
    struct crew *c = p->crew;
    uint32_t done = (uint32_t)(p->at - c->s->len * p->index);

    if (write_count(c->d, p->index, done, e) < 0)
        return -(int)e->class;
    lock(c);
    c->s->done[p->index] = done;
    c->arrived += p->at - p->noted;
    unlock(c);
    p->noted = p->at;
    return 0;
}

static int take_piece(void *ctx, const struct http_response *r, const void *data, size_t len,
                      struct err *e)
{
    struct piece *p = ctx;
    struct crew *c = p->crew;

    if (!p->started && judge_piece(p, r, e) < 0)
        return -(int)e->class;
    p->started = true;
    if (len > p->end - p->at)
        return err_set(e, ERR_NET, "the answer is longer than the range that was asked for");
    if (file_pwrite_full(c->d->fd, data, len, p->at, e) < 0)
        return -(int)e->class;
    p->at += len;
    c->d->registry->counters.blob_bytes += len;
    return p->at - p->noted >= NOTE_BYTES || p->at == p->end ? note_done(p, e) : 0;
}

/* One request for what is missing of a segment. */
static int piece_once(struct crew *c, uint32_t index, struct err *e)
{
    AUTO_BUF struct buf reply;
    AUTO_HTTP_RESPONSE struct http_response response;
    struct download *d = c->d;
    uint64_t start = c->s->len * index;
    struct piece p = {.crew = c,
                      .index = index,
                      .first = start + c->s->done[index],
                      .end = start + segment_len(d, c->s, index)};
    struct http_request request = {.method = "GET",
                                   .headers = blob_headers,
                                   .reply = &reply,
                                   .sink = take_piece,
                                   .sink_ctx = &p,
                                   .ranged = true,
                                   .range_first = p.first,
                                   .range_last = p.end - 1,
                                   .answer_timeout_ms = c->stop->endpoint->timeout_ms,
                                   .given_up = &c->stopping};

    p.at = p.noted = p.first;
    buf_init(&reply, LIMIT_TOKEN);
    http_response_init(&response);
    d->registry->counters.blob_gets++;
    int rc = stop_exchange(d->registry, c->stop, d->path, &request, &response, e);
    struct err other = ERR_INIT;
    if (p.at > p.noted && note_done(&p, &other) < 0) {
        *e = other;
        return -(int)e->class;
    }
    if (p.at == p.end) { /* whatever came behind it */
        err_clear(e);
        return 0;
    }
    if (rc < 0)
        return rc;
    if (response.status == 416) {
        lock(c);
        c->refused = true;
        unlock(c);
    }
    return err_set(e, ERR_NET, "registry %s: the answer ended after %llu of %llu bytes",
                   c->stop->ref->host, (unsigned long long)(p.at - p.first),
                   (unsigned long long)(p.end - p.first));
}

static bool was_refused(struct crew *c)
{
    lock(c);
    bool refused = c->refused;
    unlock(c);
    return refused;
}

static int fetch_segment(struct crew *c, uint32_t index, struct err *e)
{
    struct retry retry = stop_retry(c->d->registry, c->stop);

    for (;;) {
        uint32_t before = c->s->done[index]; /* ours alone while it is taken */
        if (piece_once(c, index, e) == 0)
            return 0;
        if (was_refused(c))
            return -(int)e->class;
        if (c->s->done[index] - before >= NOTE_BYTES)
            retry.used = 0;
        if (!retry_again(&retry, e))
            return -(int)e->class;
        c->d->registry->counters.retries++;
    }
}

/* The lowest segment that nobody is at; false when there is none, or there is no point. */
static bool take_segment(struct crew *c, uint32_t *out)
{
    bool found = false;

    lock(c);
    for (uint32_t i = 0; !found && !atomic_load(&c->stopping) && i < c->s->count; i++) {
        if (c->s->taken[i] || c->s->done[i] == segment_len(c->d, c->s, i))
            continue;
        c->s->taken[i] = true;
        *out = i;
        found = true;
    }
    unlock(c);
    return found;
}

static void *work(void *argument)
{
    struct crew *c = argument;
    uint32_t index = 0;

    while (take_segment(c, &index)) {
        struct err e = ERR_INIT;
        int rc = fetch_segment(c, index, &e);

        lock(c);
        c->s->taken[index] = false;
        if (rc < 0 && !atomic_exchange(&c->stopping, true))
            c->err = e;
        unlock(c);
    }
    lock(c);
    c->running--;
    unlock(c);
    return NULL;
}

/* ---- The caller ------------------------------------------------------------------------- */

/* End of the part from `have` on that the file holds without a gap; called with the lock held. */
static uint64_t end_of_prefix(const struct crew *c)
{
    uint64_t end = c->d->have;

    for (uint32_t i = (uint32_t)(end / c->s->len); i < c->s->count; i++) {
        uint64_t here = c->s->len * i + c->s->done[i];
        if (here > end)
            end = here;
        if (c->s->done[i] < segment_len(c->d, c->s, i))
            break;
    }
    return end;
}

/* Called with the lock held. */
static void start_one(struct crew *c)
{
    c->running++;
    if (pthread_create(&c->threads[c->started], NULL, work, c) == 0)
        c->started++;
    else
        c->running--;
}

/* Called with the lock held: more connections, once the first has shown that it is worth it. */
static void start_others(struct crew *c)
{
    atomic_int *spare = &c->d->registry->spare_connections;

    while (c->started < CONNECTIONS && c->started < c->s->count) {
        size_t before = c->started;
        if (atomic_fetch_sub(spare, 1) > 0)
            start_one(c);
        if (c->started == before) {
            atomic_fetch_add(spare, 1);
            return;
        }
    }
}

/* Hashes and reports while the threads work. */
static int oversee(struct crew *c, struct err *e)
{
    struct download *d = c->d;
    bool grown = false;

    lock(c);
    start_one(c);
    int rc = c->started > 0 ? 0 : err_nomem(e, "download thread");
    while (rc == 0) {
        uint64_t end = end_of_prefix(c);
        uint64_t arrived = c->arrived;
        bool over = c->running == 0;

        c->arrived = 0;
        if (c->proved && !grown) {
            grown = true;
            start_others(c);
        }
        if (!over && arrived == 0 && end == d->have) {
            (void)cond_wait_until(&c->changed, &c->lock, clock_ms() + SLICE_MS);
            rc = cancel_check(d->registry->options.cancel, e);
            continue;
        }
        (void)pthread_mutex_unlock(&c->lock);
        if (arrived > 0 && d->progress)
            d->progress->arrived(d->progress->ctx, arrived);
        rc = download_hash(d, end, e);
        lock(c);
        if (over)
            break;
    }
    atomic_store(&c->stopping, true);
    unlock(c);
    for (size_t i = 0; i < c->started; i++)
        (void)pthread_join(c->threads[i], NULL);
    if (c->started > 1)
        atomic_fetch_add(&d->registry->spare_connections, (int)c->started - 1);
    return rc;
}

/* The file without its trailer: the prefix that it has. */
static int drop_trailer(struct download *d, struct err *e)
{
    if (ftruncate(d->fd, (off_t)d->have) < 0)
        return err_sys(e, "truncating a partial download");
    segments_free(d->segments);
    d->segments = NULL;
    return 0;
}

int segments_fill(struct download *d, const struct stop *stop, struct err *e)
{
    struct crew c = {.d = d, .stop = stop, .err = ERR_INIT};

    if (!d->segments && begin(d, e) < 0)
        return -(int)e->class;
    c.s = d->segments;
    atomic_init(&c.stopping, false);
    (void)pthread_mutex_init(&c.lock, NULL);
    (void)cond_init(&c.changed);
    int rc = oversee(&c, e);
    (void)pthread_cond_destroy(&c.changed);
    (void)pthread_mutex_destroy(&c.lock);
    d->encoded = d->encoded || c.encoded;
    if (rc < 0)
        return rc;
    if (d->have == d->blob->size)
        return drop_trailer(d, e);
    if (c.refused) {
        d->no_ranges = true;
        return drop_trailer(d, e);
    }
    *e = c.err;
    return e->class != ERR_NONE ? -(int)e->class : err_set(e, ERR_NET, "the download ended early");
}
