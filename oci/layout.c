/* SPDX-License-Identifier: MIT */
/*
 * Images in files: layouts (image-layout.md) in a directory or an archive, and archives of `docker
 * save`; read only. A directory is held open, so that a layout that is moved or replaced meanwhile
 * stays the one that was opened.
 */
#include "oci/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"

#define REF_NAME "org.opencontainers.image.ref.name"

enum { LAYOUT_FILE_MAX = 4096 };

struct oci_layout {
    int dir;                           /* -1: the files are those of `archive` */
    const struct oci_archive *archive; /* borrowed */
    struct oci_docker *docker;         /* what follows is not used then */
    struct json *index;
    struct json *entries; /* borrowed from index */
};

/* ---- Files ------------------------------------------------------------------------------ */

static int open_file(const struct oci_layout *l, const char *path, struct source *out,
                     struct err *e)
{
    AUTO_FD int fd = -1;
    struct stat status;

    if (l->dir < 0)
        return oci_archive_file(l->archive, path, out, e);
    /* O_NONBLOCK: a FIFO under that name must not hang us. */
    if (file_open(&fd, l->dir, path, O_RDONLY | O_NONBLOCK, 0, e) < 0)
        return -(int)e->class;
    if (fstat(fd, &status) < 0)
        return err_sys(e, "%s", path);
    if (!S_ISREG(status.st_mode))
        return err_set(e, ERR_CORRUPT, "%s: not a regular file", path);
    int handed = fd;
    fd = -1;
    return source_from_fd(out, handed, e);
}

static int read_file(const struct oci_layout *l, const char *path, struct buf *out, struct err *e)
{
    struct source from = {0};
    int rc = open_file(l, path, &from, e);

    if (rc < 0)
        return rc;
    rc = oci_source_read(&from, out, e);
    source_close(&from);
    return rc < 0 ? err_in(e, "%s", path) : 0;
}

/* ---- Opening ---------------------------------------------------------------------------- */

static int check_version(const struct oci_layout *l, struct err *e)
{
    AUTO_BUF struct buf text;
    AUTO_JSON struct json *doc = NULL;
    const char *version = NULL;

    buf_init(&text, LAYOUT_FILE_MAX);
    if (read_file(l, "oci-layout", &text, e) < 0) {
        if (e->class != ERR_NOTFOUND)
            return -(int)e->class;
        err_set(e, ERR_INPUT, "not an image layout: it has no file \"oci-layout\"");
        return l->archive && oci_archive_has(l->archive, "manifest.json")
                   ? err_hint(e, "docker save writes such archives: name it docker-archive:%s",
                              oci_archive_path(l->archive))
                   : -ERR_INPUT;
    }
    if (json_parse(&doc, text.data, text.len, "oci-layout", e) < 0)
        return -(int)e->class;
    if (json_kind(doc) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "oci-layout: no JSON object");
    if (json_get_string(doc, "imageLayoutVersion", &version, e) < 0)
        return err_in(e, "oci-layout");
    if (strncmp(version, "1.", 2) != 0)
        return err_set(e, ERR_UNSUPPORTED, "image layout version \"%.40s\"", version);
    return 0;
}

static int read_index(struct oci_layout *l, struct err *e)
{
    AUTO_BUF struct buf text;

    buf_init(&text, LIMIT_MANIFEST);
    if (read_file(l, "index.json", &text, e) < 0 ||
        json_parse(&l->index, text.data, text.len, "index.json", e) < 0)
        return -(int)e->class;
    if (json_kind(l->index) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "index.json: no JSON object");
    if (json_get_array(l->index, "manifests", &l->entries, e) < 0)
        return err_in(e, "index.json");
    return 0;
}

int oci_layout_open(struct oci_layout **out, const char *path, struct err *e)
{
    AUTO_OCI_LAYOUT struct oci_layout *l = mem_zalloc(sizeof(*l));

    if (!l)
        return err_nomem(e, "image layout");
    l->dir = -1;
    if (file_open(&l->dir, AT_FDCWD, path, O_RDONLY | O_DIRECTORY, 0, e) < 0) {
        err_in(e, "image layout");
        return e->sys == ENOTDIR ? err_hint(e, "a file is named oci-archive:%s", path)
                                 : -(int)e->class;
    }
    if (check_version(l, e) < 0 || read_index(l, e) < 0)
        return err_in(e, "image layout %s", path);
    *out = MOVE(l);
    return 0;
}

int oci_layout_open_archive(struct oci_layout **out, const struct oci_archive *a,
                            enum oci_transport transport, struct err *e)
{
    AUTO_OCI_LAYOUT struct oci_layout *l = mem_zalloc(sizeof(*l));
    int rc;

    if (!l)
        return err_nomem(e, "image layout");
    l->dir = -1;
    l->archive = a;
    if (transport == OCI_DOCKER_ARCHIVE) {
        rc = oci_docker_open(&l->docker, a, e);
    } else {
        rc = check_version(l, e);
        if (rc == 0)
            rc = read_index(l, e);
    }
    if (rc < 0)
        return err_in(e, "archive %s", oci_archive_path(a));
    *out = MOVE(l);
    return 0;
}

void oci_layout_close(struct oci_layout *l)
{
    if (!l)
        return;
    oci_docker_close(l->docker);
    json_free(l->index);
    file_close(&l->dir);
    free(l);
}

/* ---- Names ------------------------------------------------------------------------------ */

static int entry_matches(bool *out, const struct json *entry, const struct oci_ref *ref,
                         struct err *e)
{
    struct json *annotations = NULL;
    const char *name = NULL;
    const char *digest = NULL;
    char wanted[DIGEST_TEXT_MAX];

    if (json_kind(entry) != JSON_KIND_OBJECT)
        return err_set(e, ERR_CORRUPT, "it is no object");
    if (json_get_string(entry, "digest", &digest, e) < 0 ||
        json_get_object_opt(entry, "annotations", &annotations, e) < 0 ||
        (annotations && json_get_string_opt(annotations, REF_NAME, &name, e) < 0))
        return -(int)e->class;
    if (ref->has_digest)
        *out = strcmp(digest, digest_print(&ref->digest, wanted)) == 0;
    else
        *out = !ref->tag || (name && strcmp(name, ref->tag) == 0);
    return 0;
}

/* Where a blob lies in a layout (image-layout.md, Blobs); NULL when memory is short. */
static char *blob_path(const struct digest *digest)
{
    char hex[DIGEST_TEXT_MAX];

    return mem_printf("blobs/%s/%s", digest->algorithm == DIGEST_SHA256 ? "sha256" : "sha512",
                      digest_hex(digest, hex));
}

/* A digest that the index does not list may still be a blob, of a nested index for example. */
static int resolve_blob(struct oci_layout *l, const struct digest *digest,
                        struct oci_descriptor *out, struct err *e)
{
    struct oci_descriptor d = {.digest = *digest};
    AUTO_FREE char *path = blob_path(digest);

    if (!path)
        return err_nomem(e, "image layout");
    struct source from = {0};
    if (open_file(l, path, &from, e) < 0)
        return -(int)e->class;
    d.size = from.size;
    source_close(&from);
    d.media_type = mem_strdup("");
    if (!d.media_type)
        return err_nomem(e, "image layout");
    *out = d;
    return 0;
}

static int not_found(const struct oci_layout *l, const struct oci_ref *ref, struct err *e)
{
    if (ref->tag) {
        err_set(e, ERR_NOTFOUND, "tag \"%s\": not in the layout", ref->tag);
        return err_hint(e, "check the tag; index.json lists what there is");
    }
    return err_set(e, ERR_NOTFOUND, "the layout lists %zu images", json_length(l->entries));
}

/* Remembers an entry that matches; a second one must be the same image. */
static int note_match(struct oci_descriptor *found, const struct json *entry,
                      const struct oci_ref *ref, struct err *e)
{
    struct oci_descriptor d;

    if (oci_descriptor_read(&d, entry, e) < 0)
        return -(int)e->class;
    if (!found->media_type) {
        *found = d;
        return 0;
    }
    bool same = digest_equal(&found->digest, &d.digest);
    oci_descriptor_fini(&d);
    if (same)
        return 0;
    if (ref->tag)
        err_set(e, ERR_INPUT, "another image has the tag \"%s\" too", ref->tag);
    else
        err_set(e, ERR_INPUT, "there are several images, and no tag was given");
    return err_hint(e, "name the image by its digest: @sha256:...");
}

static int resolve_index(const struct oci_layout *l, const struct oci_ref *ref,
                         struct oci_descriptor *out, struct err *e)
{
    if (ref->index >= json_length(l->entries))
        return err_set(e, ERR_NOTFOUND, "there is no image @%zu: it holds %zu, counted from 0",
                       ref->index, json_length(l->entries));
    if (oci_descriptor_read(out, json_element(l->entries, ref->index), e) < 0)
        return err_in(e, "index.json: entry %zu", ref->index + 1);
    return 0;
}

int oci_layout_resolve(struct oci_layout *l, const struct oci_ref *ref, struct oci_descriptor *out,
                       struct err *e)
{
    struct oci_descriptor found = {0};

    if (l->docker)
        return oci_docker_resolve(l->docker, ref, out, e);
    if (ref->has_index)
        return resolve_index(l, ref, out, e);
    for (size_t i = 0; i < json_length(l->entries); i++) {
        const struct json *entry = json_element(l->entries, i);
        bool matches = false;
        int rc = entry_matches(&matches, entry, ref, e);

        if (rc == 0 && matches)
            rc = note_match(&found, entry, ref, e);
        if (rc < 0) {
            oci_descriptor_fini(&found);
            return err_in(e, "index.json: entry %zu", i + 1);
        }
    }
    if (found.media_type) {
        *out = found;
        return 0;
    }
    if (ref->has_digest)
        return resolve_blob(l, &ref->digest, out, e);
    return not_found(l, ref, e);
}

/* ---- Blobs ------------------------------------------------------------------------------ */

int oci_layout_blob(struct oci_layout *l, const struct oci_descriptor *d, struct source *out,
                    struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    struct source from = {0};

    if (l->docker)
        return oci_docker_blob(l->docker, d, out, e);
    AUTO_FREE char *path = blob_path(&d->digest);
    if (!path)
        return err_nomem(e, "image layout");
    if (open_file(l, path, &from, e) < 0)
        return -(int)e->class;
    if (from.size != d->size) {
        unsigned long long size = from.size;
        source_close(&from);
        return err_set(e, ERR_CORRUPT, "blob %s: expected %llu bytes, the file has %llu",
                       digest_print(&d->digest, text), (unsigned long long)d->size, size);
    }
    *out = from;
    return 0;
}
