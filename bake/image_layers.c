/* SPDX-License-Identifier: MIT */
/*
 * The layers of an image: blobs pulled, ingested, dropped. What several images share is pulled and
 * ingested once; a blob is dropped as soon as its layer is in the store.
 */
#include "bake/pipeline.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

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
 * renames. Only one thread of one process gets here for a blob: the run lock and `once` see to
 * it. */
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
        rc = registry_blob(r->registry, &i->ref, d, fd, progress, e);
    if (rc < 0)
        return rc;
    if (fdatasync(fd) < 0 || renameat(dir, partial, dir, final) < 0)
        return err_sys(e, "storing blob %s", final);
    return 0;
}

static bool is_left_to_others(const struct image *i, size_t n)
{
    return i->shares && i->shares[n] == SHARE_ELSEWHERE;
}

int image_pull_blob(struct image *i, struct image_room *r, const struct oci_descriptor *d,
                    const struct registry_progress *progress, struct err *e)
{
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("pull %s", digest_print(&d->digest, digest));
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

static int pull_layer(struct image *i, struct image_room *r, size_t n,
                      const struct registry_progress *progress, struct err *e)
{
    if (layer_has(r->store, &i->config.diff_ids[n]) || is_left_to_others(i, n))
        return 0;
    return image_pull_blob(i, r, &i->manifest.layers[n], progress, e);
}

int image_pull(struct image *i, struct image_room *r, const struct registry_progress *progress,
               struct err *e)
{
    int rc = native_pull(i, r, progress, e);
    for (size_t n = 0; !image_is_local(i) && rc == 0 && n < i->manifest.layer_count; n++)
        rc = pull_layer(i, r, n, progress, e);
    return rc < 0 ? err_in(e, "image %s", i->text) : 0;
}

static int ingest_blob(struct image *i, struct image_room *r, size_t n, struct err *e)
{
    const struct oci_descriptor *d = &i->manifest.layers[n];
    struct source source = {0};
    int rc = image_open_layer(i, r, n, &source, e);
    if (rc < 0)
        return rc;
    struct layer_blob blob = {&source, d, &i->config.diff_ids[n]};
    rc = layer_ingest(r->store, &blob, machine_cores(), r->cancel, e);
    source_close(&source);
    return rc;
}

/* The layer is there, whoever made it and from whichever blob, or this blob is no good: it may have
 * been damaged here, and the next run fetches it anew. */
static void drop_blob(const struct image *i, struct image_room *r, size_t n)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", &i->manifest.layers[n].digest);
    if (!image_is_local(i))
        unlinkat(store_dir(r->store), path, 0);
}

static int ingest_layer(struct image *i, struct image_room *r, size_t n, struct err *e)
{
    const struct digest *diff_id = &i->config.diff_ids[n];
    if (layer_has(r->store, diff_id) || is_left_to_others(i, n))
        return 0;
    char digest[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("ingest %s", digest_print(diff_id, digest));
    if (!key)
        return err_nomem(e, digest);
    bool mine = false;
    int rc = once_begin(r->once, key, &mine, NULL, e);
    if (rc < 0 || !mine)
        return rc;
    if (!layer_has(r->store, diff_id)) {
        rc = ingest_blob(i, r, n, e);
        atomic_fetch_add(&r->ingested, rc == 0);
    }
    if (rc < 0)
        err_in(e, "layer %zu of %zu (%s)", n + 1, i->manifest.layer_count,
               digest_print(&i->manifest.layers[n].digest, digest));
    once_end(r->once, key, rc, NULL, e);
    return rc;
}

int image_ingest(struct image *i, struct image_room *r, struct err *e)
{
    int rc = 0;
    for (size_t n = 0; rc == 0 && n < i->manifest.layer_count; n++) {
        rc = ingest_layer(i, r, n, e);
        if (rc == 0 || rc == -ERR_DIGEST || rc == -ERR_CORRUPT)
            drop_blob(i, r, n);
    }
    return rc < 0 ? err_in(e, "image %s", i->text) : 0;
}
