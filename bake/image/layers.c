/* SPDX-License-Identifier: MIT */
/*
 * The layers of an image on their way into the store: a few threads take one layer after another, each
 * through download and ingest, so one arrives while another is ingested. What several images share,
 * told by the diff_id, is fetched and ingested once, from whichever blob comes first; should that blob
 * be no good, those who have another one try it. A blob is dropped as soon as its layer is in the
 * store. How much is ingested at a time is the gate's matter.
 */

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bake/common/once.h"
#include "bake/common/slots.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/image/remote_layers.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { WORK_THREADS = 4 };

struct image_work {
    struct image *image;
    struct image_room *room;
    struct registry_progress told;     /* the caller's */
    struct registry_progress progress; /* ours, which calls that one under a lock */
    pthread_mutex_t progress_lock;
    pthread_t threads[WORK_THREADS];
    size_t thread_count;
    struct cancel_limit *limit; /* of the thread that they work for */
    pthread_mutex_t lock;       /* guards what follows */
    pthread_cond_t changed;
    struct {
        bool arrived; /* its blob is here, or not needed any more */
    } * layers;
    size_t next; /* layer that no thread has taken yet */
    size_t arrived;
    size_t running; /* threads */
    size_t failed;  /* lowest layer that failed; SIZE_MAX: none */
    struct err err; /* its error */
};

/* Each layer is looked at once in a run: another task may be making it again. */
int image_drop_damaged(struct image *i, struct image_room *r, struct err *e)
{
    for (size_t n = 0; n < i->config.diff_id_count; n++) {
        const struct digest *diff_id = &i->config.diff_ids[n];
        char digest[DIGEST_TEXT_MAX];
        AUTO_FREE char *key = mem_printf("check %s", digest_print(diff_id, digest));
        if (!key)
            return err_nomem(e, digest);
        bool mine = false;
        int rc = once_begin(r->once, key, &mine, NULL, e);
        if (rc < 0)
            return rc;
        if (!mine)
            continue;
        layer_drop_damaged(r->store, diff_id, remote_has_layer(r->remote, diff_id));
        once_end(r->once, key, 0, NULL, e);
    }
    return 0;
}

/* ---- Blobs ---- */

/* An old one is taken up again, empty ones too: from here on it is in use. */
static int open_partial(int *fd, struct store *s, const char *path, struct err *e)
{
    AUTO_FD int lock = -1;
    int rc = store_use_begin(&lock, s, e);
    if (rc == 0)
        rc = file_open(fd, store_dir(s), path, O_RDWR | O_CREAT, 0666, e);
    if (rc == 0 && futimens(*fd, NULL) < 0)
        rc = err_sys(e, "%s", path);
    return rc;
}

/* Downloads into blobs/partial-…, which survives a kill and is continued by the next try, then
 * renames. Not synced: whoever ingests it sees whether it is whole. */
static int download(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    const struct registry_progress *progress, struct err *e)
{
    char partial[BLOB_PATH_MAX];
    char final[BLOB_PATH_MAX];
    image_blob_path(partial, "blobs/partial", &d->digest);
    image_blob_path(final, "blobs", &d->digest);
    int dir = store_dir(r->store);
    if (store_use(r->store, final))
        return 0;
    if (r->offline)
        return image_missing_offline(e, "the blob");
    AUTO_FD int fd = -1;
    int rc = file_make_dirs(dir, "blobs/partial", e);
    if (rc == 0)
        rc = open_partial(&fd, r->store, partial, e);
    struct stat st = {0};
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = err_sys(e, "%s", partial);
    if (rc == 0 && d->size > (uint64_t)st.st_size)
        rc = file_need_room(fd, d->size - (uint64_t)st.st_size, e);
    if (rc == 0)
        rc = slots_enter(r->network, r->cancel, e);
    if (rc < 0)
        return rc;
    rc = registry_blob(r->registry, &i->ref, d, fd, progress, e);
    slots_leave(r->network);
    if (rc < 0)
        return rc;
    if (renameat(dir, partial, dir, final) < 0)
        return err_sys(e, "storing blob %s", final);
    return 0;
}

int image_pull_blob(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    const struct registry_progress *progress, struct err *e)
{
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("blob %s", digest_print(&d->digest, digest));
    if (!key)
        return err_nomem(e, digest);
    bool mine = false;
    int rc = once_begin(r->once, key, &mine, NULL, e);
    if (rc < 0 || !mine)
        return rc;
    rc = download(i, r, d, progress, e);
    if (rc < 0)
        err_in(e, "layer %s", digest);
    once_end(r->once, key, rc, NULL, e);
    return rc;
}

static void drop_blob(struct image_work *w, size_t n)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", &w->image->manifest.layers[n].digest);
    if (!image_is_local(w->image))
        unlinkat(store_dir(w->room->store), path, 0);
}

/* `why` makes the key of a second try another one than that of the first. */
static int download_once(struct image_work *w, size_t n, const char *why, struct err *e)
{
    if (image_is_local(w->image))
        return 0;
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key =
        mem_printf("pull%s %s", why, digest_print(&w->image->manifest.layers[n].digest, digest));
    if (!key)
        return err_nomem(e, digest);
    bool mine = false;
    int rc = once_begin(w->room->once, key, &mine, NULL, e);
    if (rc < 0 || !mine)
        return rc;
    rc = download(w->image, w->room, &w->image->manifest.layers[n], &w->progress, e);
    once_end(w->room->once, key, rc, NULL, e);
    return rc;
}

/* ---- One layer ---- */

static int ingest_blob(struct image_work *w, size_t n, struct err *e)
{
    struct source source = {0};
    int rc = image_open_layer(w->image, w->room, n, &source, e);
    if (rc < 0)
        return rc;
    struct layer_blob blob = {&source, &w->image->manifest.layers[n],
                              &w->image->config.diff_ids[n]};
    rc = layer_ingest(w->room->store, &blob, w->room->ingest, w->room->cancel, e);
    source_close(&source);
    atomic_fetch_add(&w->room->ingested, rc == 0);
    if (rc == 0 || rc == -ERR_DIGEST || rc == -ERR_CORRUPT)
        drop_blob(w, n);
    return rc;
}

static void note_arrival(struct image_work *w, size_t n)
{
    pthread_mutex_lock(&w->lock);
    w->arrived += !w->layers[n].arrived;
    w->layers[n].arrived = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/*
 * A blob that was here may have been torn by a power cut, or dropped by a task that takes it for
 * another layer; it is fetched once more.
 */
static int make_layer(struct image_work *w, size_t n, struct err *e)
{
    if (layer_has(w->room->store, &w->image->config.diff_ids[n]))
        return 0;
    int rc = download_once(w, n, "", e);
    if (rc < 0)
        return rc;
    note_arrival(w, n);
    rc = ingest_blob(w, n, e);
    if (image_is_local(w->image) || (rc != -ERR_NOTFOUND && rc != -ERR_DIGEST))
        return rc;
    log_event(LOG_WARN, "bake", "fetched again: %s", e->text);
    err_clear(e);
    rc = download_once(w, n, " again", e);
    return rc < 0 ? rc : ingest_blob(w, n, e);
}

/* *tried: this call had a go at it, and with this image's blob. */
static int make_layer_once(struct image_work *w, size_t n, const char *key, bool *tried,
                           struct err *e)
{
    int rc = once_begin(w->room->once, key, tried, NULL, e);
    if (rc < 0 || !*tried)
        return rc;
    rc = make_layer(w, n, e);
    once_end(w->room->once, key, rc, NULL, e);
    return rc;
}

static int take_layer(struct image_work *w, size_t n, struct err *e)
{
    char diff_id[DIGEST_TEXT_MAX];
    char blob[DIGEST_TEXT_MAX];
    if (w->image->shares && w->image->shares[n] == SHARE_ELSEWHERE)
        return 0; /* another baker makes it */
    digest_print(&w->image->config.diff_ids[n], diff_id);
    digest_print(&w->image->manifest.layers[n].digest, blob);
    AUTO_FREE char *any = mem_printf("layer %s", diff_id);
    AUTO_FREE char *own = mem_printf("layer %s from %s", diff_id, blob);
    if (!any || !own)
        return err_nomem(e, diff_id);
    bool tried = false;
    int rc = make_layer_once(w, n, any, &tried, e);
    if (tried && rc < 0) { /* so that nobody tries this blob again */
        bool first = false;
        struct err same = ERR_INIT;
        if (once_begin(w->room->once, own, &first, NULL, &same) == 0 && first)
            once_end(w->room->once, own, rc, NULL, e);
    }
    if (!tried && rc < 0 && rc != -ERR_CANCELLED) {
        err_clear(e);
        rc = make_layer_once(w, n, own, &tried, e);
    }
    if (rc == 0)
        drop_blob(w, n); /* an earlier run may have left it */
    return rc < 0 ? err_in(e, "layer %zu of %zu (%s)", n + 1, w->image->manifest.layer_count, blob)
                  : 0;
}

/* ---- All layers ---- */

static void *work_thread(void *self)
{
    struct image_work *w = self;
    cancel_limit_share(w->room->cancel, w->limit);
    pthread_mutex_lock(&w->lock);
    while (w->next < w->image->manifest.layer_count && w->failed == SIZE_MAX) {
        size_t n = w->next++;
        pthread_mutex_unlock(&w->lock);
        struct err e = ERR_INIT;
        int rc = take_layer(w, n, &e);
        if (rc == 0)
            note_arrival(w, n);
        pthread_mutex_lock(&w->lock);
        if (rc < 0 && n < w->failed) {
            w->failed = n;
            w->err = e;
        }
    }
    w->running--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void count_bytes(void *self, uint64_t bytes)
{
    struct image_work *w = self;
    pthread_mutex_lock(&w->progress_lock);
    if (w->told.arrived)
        w->told.arrived(w->told.ctx, bytes);
    pthread_mutex_unlock(&w->progress_lock);
}

static int work_start(struct image *i, struct image_room *r,
                      const struct registry_progress *progress, struct err *e)
{
    struct image_work *w = mem_zalloc(sizeof(*w));
    if (!w)
        return err_nomem(e, "layers");
    i->work = w;
    *w = (struct image_work){.image = i, .room = r, .failed = SIZE_MAX, .err = ERR_INIT};
    w->limit = cancel_limit_get(r->cancel);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->progress_lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->progress = (struct registry_progress){count_bytes, w};
    if (progress)
        w->told = *progress;
    size_t count = i->manifest.layer_count;
    w->layers = mem_array(count, sizeof(*w->layers));
    if (!w->layers)
        return err_nomem(e, "layers");
    size_t wanted = count < WORK_THREADS ? count : WORK_THREADS;
    while (w->thread_count < wanted) {
        pthread_mutex_lock(&w->lock);
        w->running++;
        pthread_mutex_unlock(&w->lock);
        int sys = pthread_create(&w->threads[w->thread_count], NULL, work_thread, w);
        if (sys == 0) {
            w->thread_count++;
            continue;
        }
        pthread_mutex_lock(&w->lock);
        w->running--;
        pthread_mutex_unlock(&w->lock);
        if (w->thread_count == 0)
            return err_sysno(e, sys, "starting a thread for layers");
        break;
    }
    return 0;
}

/* Waits for the threads, which end by themselves, and takes the result. */
static int work_result(struct image_work *w, struct err *e)
{
    for (size_t i = 0; i < w->thread_count; i++)
        pthread_join(w->threads[i], NULL);
    w->thread_count = 0;
    if (w->failed == SIZE_MAX)
        return 0;
    *e = w->err;
    return -(int)e->class;
}

void image_work_free(struct image_work *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->next = w->image->manifest.layer_count;
    pthread_mutex_unlock(&w->lock);
    struct err ignored = ERR_INIT;
    if (work_result(w, &ignored) < 0)
        err_clear(&ignored);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->progress_lock);
    pthread_mutex_destroy(&w->lock);
    free(w->layers);
    free(w);
}

int image_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
               struct err *e)
{
    int rc = native_pull(i, r, progress, e);
    if (rc == 0)
        rc = work_start(i, r, progress, e);
    if (rc < 0)
        return err_in(e, "image %s", i->text);
    struct image_work *w = i->work;
    pthread_mutex_lock(&w->lock);
    while (w->arrived < i->manifest.layer_count && w->running > 0)
        pthread_cond_wait(&w->changed, &w->lock);
    /* With a failure the threads may still be at lower layers: theirs would be the one to tell. */
    bool failed = w->failed != SIZE_MAX && w->running == 0 && !w->layers[w->failed].arrived;
    pthread_mutex_unlock(&w->lock);
    return failed ? image_ingest(i, r, e) : 0;
}

int image_ingest(struct image *i, struct image_room *r UNUSED, struct err *e)
{
    int rc = work_result(i->work, e);
    image_work_free(i->work);
    i->work = NULL;
    return rc < 0 ? err_in(e, "image %s", i->text) : 0;
}
