/* SPDX-License-Identifier: MIT */
/*
 * A layer's plain bytes in order, hashed as they pass.
 *
 * With threads there are three stages over a ring of pieces: one thread reads, hashes and inflates
 * the blob, one hashes the plain bytes, and the caller reads the tar. A piece is used again when
 * both the hash and the caller have done with it. Without threads the same happens in turn. What a
 * caller sees is the same: an error of the decoder is met where its bytes would have been.
 */
#include <pthread.h>
#include <stdlib.h>

#include "base/mem.h"
#include "oci/internal.h"

enum { PIECE_LEN = 256 << 10, PIECES = 4 };

struct oci_stream {
    struct oci_decoder *decoder;
    struct hasher *hasher;
    uint8_t *data[PIECES];
    size_t len[PIECES];
    bool lent; /* the caller has a piece */

    /* Stages; the rest is guarded by `lock` while threads run. */
    pthread_t threads[2];
    size_t thread_count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t decoded; /* pieces, counted from the start */
    uint64_t hashed;
    uint64_t taken; /* and given back */
    bool ended;     /* nothing is decoded any more: end, or `rc` */
    bool stop;
    int rc;
    struct err err;
};

int oci_digest_check(struct hasher *h, const struct digest *promised, enum err_class class,
                     const char *what, struct err *e)
{
    struct digest got;
    hasher_finish(h, &got);
    if (digest_equal(&got, promised))
        return 0;
    char got_text[DIGEST_TEXT_MAX];
    char promised_text[DIGEST_TEXT_MAX];
    return err_set(e, class, "%s %s, but promised was %s", what, digest_print(&got, got_text),
                   digest_print(promised, promised_text));
}

/* ---- Stages ---- */

static uint64_t pieces_done(const struct oci_stream *s)
{
    return s->hashed < s->taken ? s->hashed : s->taken;
}

static void *decode_thread(void *self)
{
    struct oci_stream *s = self;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && s->decoded - pieces_done(s) == PIECES)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->stop)
            break;
        size_t at = s->decoded % PIECES;
        pthread_mutex_unlock(&s->lock);
        int rc = oci_decoder_read(s->decoder, s->data[at], PIECE_LEN, &s->len[at], &s->err);
        pthread_mutex_lock(&s->lock);
        if (rc == 0 && s->len[at] > 0) {
            s->decoded++;
            pthread_cond_broadcast(&s->changed);
            continue;
        }
        s->rc = rc;
        s->ended = true;
        break;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *hash_thread(void *self)
{
    struct oci_stream *s = self;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->stop && !s->ended && s->hashed == s->decoded)
            pthread_cond_wait(&s->changed, &s->lock);
        if (s->stop || s->hashed == s->decoded)
            break;
        size_t at = s->hashed % PIECES;
        pthread_mutex_unlock(&s->lock);
        hasher_add(s->hasher, s->data[at], s->len[at]);
        pthread_mutex_lock(&s->lock);
        s->hashed++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_threads(struct oci_stream *s, struct err *e)
{
    void *(*const stages[])(void *) = {decode_thread, hash_thread};
    for (; s->thread_count < ARRAY_LEN(stages); s->thread_count++) {
        int sys = pthread_create(&s->threads[s->thread_count], NULL, stages[s->thread_count], s);
        if (sys != 0)
            return err_sysno(e, sys, "starting a thread for a layer");
    }
    return 0;
}

/* Ends the threads; what is decoded is hashed to the end unless the stream is given up. */
static void join_threads(struct oci_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = !s->ended || s->rc < 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < s->thread_count; i++)
        pthread_join(s->threads[i], NULL);
    s->thread_count = 0;
}

/* ---- Stream ---- */

int oci_stream_new(struct oci_stream **out, const struct source *blob,
                   const struct oci_stream_options *o, struct err *e)
{
    AUTO_OCI_STREAM struct oci_stream *s = mem_zalloc(sizeof(*s));
    if (!s)
        return err_nomem(e, "layer stream");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    for (size_t i = 0; i < (o->threads ? PIECES : 1); i++) {
        s->data[i] = mem_zalloc(PIECE_LEN);
        if (!s->data[i])
            return err_nomem(e, "layer buffers");
    }
    int rc = hasher_new(&s->hasher, o->plain_algorithm, e);
    if (rc == 0)
        rc = oci_decoder_new(&s->decoder, blob, o, e);
    if (rc == 0 && o->threads)
        rc = start_threads(s, e);
    if (rc < 0)
        return rc;
    *out = MOVE(s);
    return 0;
}

void oci_stream_free(struct oci_stream *s)
{
    if (!s)
        return;
    join_threads(s);
    oci_decoder_free(s->decoder);
    hasher_free(s->hasher);
    for (size_t i = 0; i < PIECES; i++)
        free(s->data[i]);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int read_staged(struct oci_stream *s, const void **data, size_t *len, struct err *e)
{
    int rc = 0;
    *len = 0;
    pthread_mutex_lock(&s->lock);
    if (s->lent) {
        s->taken++;
        s->lent = false;
        pthread_cond_broadcast(&s->changed);
    }
    while (!s->ended && s->decoded == s->taken)
        pthread_cond_wait(&s->changed, &s->lock);
    if (s->decoded > s->taken) {
        *data = s->data[s->taken % PIECES];
        *len = s->len[s->taken % PIECES];
        s->lent = true;
    } else if (s->rc < 0) {
        *e = s->err;
        rc = s->rc;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int oci_stream_read(struct oci_stream *s, const void **data, size_t *len, struct err *e)
{
    if (s->thread_count > 0)
        return read_staged(s, data, len, e);
    int rc = oci_decoder_read(s->decoder, s->data[0], PIECE_LEN, len, e);
    if (rc < 0)
        return rc;
    hasher_add(s->hasher, s->data[0], *len);
    *data = s->data[0];
    return 0;
}

int oci_stream_check_blob(struct oci_stream *s, struct err *e)
{
    join_threads(s);
    return oci_decoder_check_blob(s->decoder, e);
}

int oci_stream_check_plain(struct oci_stream *s, const struct digest *diff_id, struct err *e)
{
    join_threads(s);
    return oci_digest_check(s->hasher, diff_id, ERR_CORRUPT, "the uncompressed layer has diff_id",
                            e);
}
