/* SPDX-License-Identifier: MIT */
/* Images in files: layouts, packed layouts, archives of `docker save`. Blobs are read where they
 * are. An archive is opened once in a run, however many tasks name it. */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "bake/image/image.h"
#include "bake/image/pins.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

struct open_archive {
    struct open_archive *next;
    char *path;
    struct oci_archive *archive;
};

void image_archives_init(struct image_archives *a)
{
    *a = (struct image_archives){.ready = true};
    pthread_mutex_init(&a->lock, NULL);
}

void image_archives_fini(struct image_archives *a)
{
    if (!a->ready)
        return;
    for (struct open_archive *at = a->first; at;) {
        struct open_archive *next = at->next;
        oci_archive_close(at->archive);
        free(at->path);
        free(at);
        at = next;
    }
    pthread_mutex_destroy(&a->lock);
    *a = (struct image_archives){0};
}

static int add_archive(struct image_archives *all, struct image_room *r, const char *path,
                       const struct oci_archive **out, struct err *e)
{
    struct open_archive *held = mem_zalloc(sizeof(*held));
    char *copy = mem_strdup(path);
    int rc = held && copy
                 ? oci_archive_open(&held->archive, path, store_tmp_dir(r->store), r->cancel, e)
                 : err_nomem(e, "archive");
    if (rc < 0) {
        free(held);
        free(copy);
        return rc;
    }
    held->path = copy;
    held->next = all->first;
    all->first = held;
    *out = held->archive;
    return 0;
}

/* The lock is held while an archive is unpacked: whoever else wants one waits, most likely for
 * this one. */
static int find_archive(struct image_room *r, const char *path, const struct oci_archive **out,
                        struct err *e)
{
    struct image_archives *all = &r->archives;
    *out = NULL;
    pthread_mutex_lock(&all->lock);
    for (const struct open_archive *at = all->first; at && !*out; at = at->next) {
        if (strcmp(at->path, path) == 0)
            *out = at->archive;
    }
    int rc = *out ? 0 : add_archive(all, r, path, out, e);
    pthread_mutex_unlock(&all->lock);
    return rc;
}

static int files_start(struct image *i, struct image_room *r, struct oci_descriptor *out,
                       struct err *e)
{
    bool found; /* where it is held to something, pins_note compares */
    struct digest ignored;
    int rc = i->ref.has_digest ? 0 : pins_find(r->pins, i->text, &found, &ignored, e);
    if (rc < 0)
        return rc;
    if (i->ref.transport == OCI_LAYOUT) {
        rc = oci_layout_open(&i->layout, i->ref.repository, e);
    } else {
        const struct oci_archive *archive = NULL;
        rc = find_archive(r, i->ref.repository, &archive, e);
        if (rc == 0)
            rc = oci_layout_open_archive(&i->layout, archive, i->ref.transport, e);
    }
    return rc < 0 ? rc : oci_layout_resolve(i->layout, &i->ref, out, e);
}

static int files_document(struct image *i, struct image_room *r UNUSED,
                          const struct oci_descriptor *d, enum image_document what UNUSED,
                          struct buf *out, struct err *e)
{
    struct source from = {0};
    if (d->size > out->ceiling)
        return err_set(e, ERR_LIMIT, "document of %llu bytes", (unsigned long long)d->size);
    int rc = oci_layout_blob(i->layout, d, &from, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *data = mem_zalloc((size_t)d->size);
    rc = data ? source_read_full(&from, 0, data, (size_t)d->size, e) : err_nomem(e, "document");
    source_close(&from);
    if (rc == 0)
        rc = buf_add(out, data, (size_t)d->size, e);
    return rc == 0 ? image_check_document(&d->digest, out, e) : rc;
}

static int files_layer(struct image *i, struct image_room *r UNUSED, const struct oci_descriptor *d,
                       struct source *out, struct err *e)
{
    return oci_layout_blob(i->layout, d, out, e);
}

const struct image_source image_from_files = {
    .start = files_start,
    .document = files_document,
    .layer = files_layer,
    .is_local = true,
};
