/* SPDX-License-Identifier: MIT */
/*
 * A remote store in a repository of an OCI registry (docs/formats/remote-store.md).
 *
 * A unit is an artifact under a tag of its own: its files as blobs, its chunks in packs, and a table
 * that says where in which pack each chunk is. A chunk that an earlier unit has sent is not sent
 * again: the table points into that unit's pack, and the manifest lists the pack, so that a registry
 * which removes what no manifest names keeps it as long as anyone needs it.
 *
 * A registry cannot say who was first, so there are no claims: two bakers may do the same work at
 * the same time, and the later one's result is the one that stays.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/remote.h"
#include "bake/remote/internal.h"
#include "bake/remote/remote.h"
#include "base/file.h"
#include "base/io.h"
#include "base/log.h"
#include "base/mem.h"
#include "registry/registry.h"

enum {
    PACK_SIZE = 32 << 20,
    PACKS_MAX = 4096, /* of one unit */
    TAG_MAX = 128,
};

#define FILE_TYPE "application/vnd.tb2-bake.file.v1"
#define PACK_TYPE "application/vnd.tb2-bake.pack.v1"
#define TABLE_TYPE "application/vnd.tb2-bake.chunks.v1"
#define EMPTY_TYPE "application/vnd.oci.empty.v1+json"
#define MANIFEST_TYPE "application/vnd.oci.image.manifest.v1+json"

/* A file of a unit that was found. */
struct unit_file {
    char path[REMOTE_PATH_MAX];
    struct digest digest;
    uint64_t size;
};

struct pack {
    struct digest digest;
    uint64_t size;
};

struct oci_remote {
    struct remote *remote;
    struct registry *registry;
    struct oci_ref ref;   /* without a tag of its own */
    pthread_mutex_t lock; /* guards the rest; not held while the registry is asked */
    struct unit_file *files;
    size_t file_count, file_capacity;
    struct pack *packs; /* places of known chunks point here */
    size_t pack_count, pack_capacity;
    char (*found)[TAG_MAX]; /* units whose files and chunks are known */
    size_t found_count, found_capacity;
    atomic_uint_least64_t pushes;
};

static int tag_of(char tag[TAG_MAX], enum remote_kind kind, const char *name, struct err *e)
{
    int len = snprintf(tag, TAG_MAX, "%s-%s", remote_kind_name(kind), name);
    return len > 0 && len < TAG_MAX
               ? 0
               : err_set(e, ERR_UNSUPPORTED, "'%s' is too long for a registry's tag", name);
}

/* The reference with another tag; its texts are borrowed. */
static struct oci_ref ref_of(const struct oci_remote *o, char *tag)
{
    struct oci_ref ref = o->ref;
    ref.tag = tag;
    return ref;
}

/* ---- What is known ---- */

static bool is_found(struct oci_remote *o, const char *tag)
{
    bool found = false;
    pthread_mutex_lock(&o->lock);
    for (size_t i = 0; !found && i < o->found_count; i++)
        found = strcmp(o->found[i], tag) == 0;
    pthread_mutex_unlock(&o->lock);
    return found;
}

static int note_found(struct oci_remote *o, const char *tag, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    int rc = mem_grow(&o->found, &o->found_capacity, o->found_count + 1, sizeof(*o->found), e);
    if (rc == 0)
        snprintf(o->found[o->found_count++], TAG_MAX, "%s", tag);
    pthread_mutex_unlock(&o->lock);
    return rc;
}

static int note_file(struct oci_remote *o, const struct unit_file *file, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    size_t at = 0;
    while (at < o->file_count && strcmp(o->files[at].path, file->path) != 0)
        at++;
    int rc = mem_grow(&o->files, &o->file_capacity, at + 1, sizeof(*o->files), e);
    if (rc == 0) {
        o->files[at] = *file;
        o->file_count = at < o->file_count ? o->file_count : at + 1;
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

/* *index is the pack's place in o->packs. */
static int note_pack(struct oci_remote *o, const struct pack *pack, uint32_t *index, struct err *e)
{
    pthread_mutex_lock(&o->lock);
    size_t at = 0;
    while (at < o->pack_count && !digest_equal(&o->packs[at].digest, &pack->digest))
        at++;
    int rc = mem_grow(&o->packs, &o->pack_capacity, at + 1, sizeof(*o->packs), e);
    if (rc == 0) {
        o->packs[at] = *pack;
        o->pack_count = at < o->pack_count ? o->pack_count : at + 1;
        *index = (uint32_t)at;
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

static struct pack pack_at(struct oci_remote *o, uint32_t index)
{
    pthread_mutex_lock(&o->lock);
    struct pack pack = o->packs[index];
    pthread_mutex_unlock(&o->lock);
    return pack;
}

/* ---- Reading ---- */

static int read_blob(struct oci_remote *o, const struct digest *d, uint64_t size, struct buf *out,
                     struct err *e)
{
    struct registry_range whole = {.blob = *d, .len = (size_t)size};
    struct digest got;
    size_t before = out->len;
    if (size > out->ceiling - before)
        return err_set(e, ERR_LIMIT, "a file of %llu bytes", (unsigned long long)size);
    int rc = registry_blob_range(o->registry, &o->ref, &whole, out, e);
    if (rc < 0)
        return rc;
    digest_bytes(&got, size ? out->data + before : NULL, out->len - before);
    return digest_equal(&got, d) ? 0
                                 : err_set(e, ERR_DIGEST, "a blob's bytes hash to something else");
}

/* What a manifest says, before any of it is believed. */
struct artifact {
    struct pack packs[PACKS_MAX];
    size_t pack_count;
    struct pack table;
    bool has_table;
};

static int take_title(struct unit_file *file, const struct json *layer, struct err *e)
{
    struct json *annotations = NULL;
    const char *title = NULL;
    int rc = json_get_object(layer, "annotations", &annotations, e);
    if (rc == 0)
        rc = json_get_string(annotations, "org.opencontainers.image.title", &title, e);
    if (rc < 0)
        return rc;
    if (strlen(title) >= REMOTE_PATH_MAX)
        return err_set(e, ERR_CORRUPT, "a file with a name of %zu bytes", strlen(title));
    snprintf(file->path, sizeof(file->path), "%s", title);
    return 0;
}

static int take_layer(struct oci_remote *o, struct artifact *a, const struct json *layer,
                      struct err *e)
{
    const char *type = NULL;
    struct unit_file file = {0};
    int rc = json_get_string(layer, "mediaType", &type, e);
    if (rc == 0)
        rc = json_get_digest(layer, "digest", &file.digest, e);
    if (rc == 0)
        rc = json_get_u64(layer, "size", &file.size, e);
    if (rc < 0)
        return rc;
    if (file.digest.algorithm != DIGEST_SHA256)
        return err_set(e, ERR_CORRUPT, "a blob that is not named by its sha256");
    struct pack blob = {file.digest, file.size};
    if (strcmp(type, PACK_TYPE) == 0) {
        if (a->pack_count == PACKS_MAX)
            return err_set(e, ERR_LIMIT, "more than %d packs", PACKS_MAX);
        a->packs[a->pack_count++] = blob;
    } else if (strcmp(type, TABLE_TYPE) == 0) {
        a->table = blob;
        a->has_table = true;
    } else if (strcmp(type, FILE_TYPE) == 0) {
        rc = take_title(&file, layer, e);
        return rc < 0 ? rc : note_file(o, &file, e);
    }
    return 0;
}

static int read_table(struct oci_remote *o, const struct artifact *a, struct err *e)
{
    AUTO_BUF struct buf bytes;
    buf_init(&bytes, REMOTE_TABLE_MAX);
    int rc = read_blob(o, &a->table.digest, a->table.size, &bytes, e);
    AUTO_REMOTE_TABLE struct remote_table table = {0};
    if (rc == 0)
        rc = remote_table_decode(&table, bytes.data, bytes.len, e);
    AUTO_FREE uint32_t *numbers = mem_array(a->pack_count + 1, sizeof(*numbers));
    if (!numbers)
        return err_nomem(e, "chunks of a unit");
    for (size_t i = 0; rc == 0 && i < a->pack_count; i++)
        rc = note_pack(o, &a->packs[i], &numbers[i], e);
    for (size_t i = 0; rc == 0 && i < table.count; i++) {
        struct remote_place place = table.places[i];
        if (place.pack >= a->pack_count || place.len > a->packs[place.pack].size ||
            place.off > a->packs[place.pack].size - place.len)
            return err_set(e, ERR_CORRUPT, "a chunk that lies outside its pack");
        place.pack = numbers[place.pack];
        rc = remote_known_add(o->remote->known, &place, e);
    }
    return rc;
}

static int read_artifact(struct oci_remote *o, const struct buf *body, struct err *e)
{
    AUTO_JSON struct json *document = NULL;
    AUTO_FREE struct artifact *a = mem_zalloc(sizeof(*a));
    struct json *layers = NULL;
    if (!a)
        return err_nomem(e, "manifest");
    int rc = json_parse(&document, body->data, body->len, "manifest", e);
    if (rc == 0)
        rc = json_get_array(document, "layers", &layers, e);
    for (size_t i = 0; rc == 0 && i < json_length(layers); i++)
        rc = take_layer(o, a, json_element(layers, i), e);
    return rc < 0 || !a->has_table ? rc : read_table(o, a, e);
}

static int oci_find(void *self, enum remote_kind kind, const char *name, struct err *e)
{
    struct oci_remote *o = self;
    char tag[TAG_MAX];
    struct oci_descriptor got = {0};
    struct buf body;
    int rc = tag_of(tag, kind, name, e);
    if (rc < 0 || is_found(o, tag))
        return rc;
    struct oci_ref ref = ref_of(o, tag);
    rc = registry_manifest(o->registry, &ref, &got, &body, e);
    if (rc == 0)
        rc = read_artifact(o, &body, e);
    if (rc == 0)
        rc = note_found(o, tag, e);
    buf_fini(&body);
    oci_descriptor_fini(&got);
    return rc < 0 ? err_in(e, "%s: %s", o->remote->name, tag) : 0;
}

static int oci_has(void *self, enum remote_kind kind, const char *name, bool *there, struct err *e)
{
    int rc = oci_find(self, kind, name, e);
    *there = rc == 0;
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        rc = 0;
    }
    return rc;
}

static int oci_file(void *self, const char *path, struct buf *out, struct err *e)
{
    struct oci_remote *o = self;
    struct unit_file file = {0};
    pthread_mutex_lock(&o->lock);
    for (size_t i = 0; i < o->file_count; i++) {
        if (strcmp(o->files[i].path, path) == 0)
            file = o->files[i];
    }
    pthread_mutex_unlock(&o->lock);
    if (!file.path[0])
        return err_set(e, ERR_NOTFOUND, "%s: no %s there", o->remote->name, path);
    int rc = read_blob(o, &file.digest, file.size, out, e);
    return rc < 0 ? err_in(e, "%s: %s", o->remote->name, path) : 0;
}

static int oci_chunk(void *self, const struct digest *d, int64_t deadline_ms, struct buf *stored,
                     struct err *e)
{
    struct oci_remote *o = self;
    struct remote_place place;
    if (!remote_known_find(o->remote->known, d, &place))
        return err_set(e, ERR_NOTFOUND, "%s: not in any unit that is in use", o->remote->name);
    struct registry_range range = {.blob = pack_at(o, place.pack).digest,
                                   .off = place.off,
                                   .len = place.len,
                                   .deadline_ms = deadline_ms};
    return registry_blob_range(o->registry, &o->ref, &range, stored, e);
}

/* ---- Writing ---- */

/* An artifact that is being made. */
struct making {
    struct oci_remote *oci;
    const struct remote_unit *unit;
    struct json *layers;
    struct buf pack; /* chunks that wait to be sent */
    struct remote_place *waiting;
    size_t waiting_count, waiting_capacity;
    struct remote_table table; /* packs numbered as in o->packs */
};

static int push_bytes(struct oci_remote *o, const struct buf *bytes, struct digest *digest,
                      bool *sent, struct err *e)
{
    char type[] = "application/octet-stream";
    struct source from = {0};
    digest_bytes(digest, bytes->data, bytes->len);
    struct oci_descriptor d = {.media_type = type, .digest = *digest, .size = bytes->len};
    enum registry_push_result result = PUSH_WAS_THERE;
    int rc = source_from_memory(&from, bytes->data, bytes->len, e);
    if (rc == 0)
        rc = registry_push_blob(o->registry, &o->ref, &(struct registry_upload){&d, &from, NULL},
                                &result, e);
    if (sent)
        *sent = result == PUSH_SENT;
    source_close(&from);
    atomic_fetch_add(&o->pushes, 1);
    return rc;
}

static struct json *descriptor(const char *type, const struct digest *d, uint64_t size,
                               const char *title)
{
    struct json *j = json_new_object();
    json_set(j, "mediaType", json_new_string(type));
    json_set(j, "digest", json_digest(d));
    json_set(j, "size", json_new_integer((int64_t)size));
    if (title) {
        struct json *annotations = json_new_object();
        json_set(annotations, "org.opencontainers.image.title", json_new_string(title));
        json_set(j, "annotations", annotations);
    }
    return j;
}

static int add_place(struct remote_place **list, size_t *count, size_t *capacity,
                     const struct remote_place *place, struct err *e)
{
    int rc = mem_grow(list, capacity, *count + 1, sizeof(**list), e);
    if (rc == 0)
        (*list)[(*count)++] = *place;
    return rc;
}

/* Sends the pack; its chunks are known from then on. */
static int send_pack(struct making *m, struct err *e)
{
    struct remote *r = m->oci->remote;
    struct pack pack = {.size = m->pack.len};
    uint32_t index = 0;
    bool sent = false;
    if (m->waiting_count == 0)
        return 0;
    int rc = push_bytes(m->oci, &m->pack, &pack.digest, &sent, e);
    if (rc == 0)
        rc = note_pack(m->oci, &pack, &index, e);
    for (size_t i = 0; rc == 0 && i < m->waiting_count; i++) {
        struct remote_place place = m->waiting[i];
        place.pack = index;
        rc = add_place(&m->table.places, &m->table.count, &m->table.capacity, &place, e);
        if (rc == 0)
            rc = remote_known_add(r->known, &place, e);
    }
    if (rc == 0 && sent) {
        atomic_fetch_add(&r->chunks_sent, m->waiting_count);
        atomic_fetch_add(&r->chunk_bytes_sent, m->pack.len);
    }
    m->waiting_count = 0;
    m->pack.len = 0;
    return rc;
}

static int add_chunk(struct making *m, const struct digest *d, struct err *e)
{
    struct remote_place place = {.chunk = *d, .off = m->pack.len};
    if (remote_known_find(m->oci->remote->known, d, &place))
        return add_place(&m->table.places, &m->table.count, &m->table.capacity, &place, e);
    int rc = m->pack.len + CHUNK_STORED_MAX > PACK_SIZE ? send_pack(m, e) : 0;
    place = (struct remote_place){.chunk = *d, .off = m->pack.len};
    if (rc == 0)
        rc = store_get_stored_chunk(m->oci->remote->store, d, &m->pack, e);
    place.len = (uint32_t)(m->pack.len - place.off);
    return rc < 0 ? rc : add_place(&m->waiting, &m->waiting_count, &m->waiting_capacity, &place, e);
}

static int add_chunks(struct making *m, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->unit->chunk_count; i++) {
        rc = cancel_check(m->oci->remote->cancel, e);
        if (rc == 0)
            rc = add_chunk(m, &m->unit->chunks[i], e);
    }
    return rc < 0 ? rc : send_pack(m, e);
}

/* The table with the unit's own numbers of packs, which the manifest lists in that order. */
static int add_table(struct making *m, struct err *e)
{
    struct oci_remote *o = m->oci;
    AUTO_BUF struct buf bytes;
    struct digest digest = {0};
    uint32_t used = 0;
    pthread_mutex_lock(&o->lock);
    size_t known = o->pack_count;
    pthread_mutex_unlock(&o->lock);
    AUTO_FREE uint32_t *numbers = mem_array(known + 1, sizeof(*numbers));
    buf_init(&bytes, REMOTE_TABLE_MAX);
    if (!numbers)
        return err_nomem(e, "manifest");
    for (size_t i = 0; i < m->table.count; i++) {
        struct remote_place *place = &m->table.places[i];
        if (place->pack >= known)
            return err_set(e, ERR_CORRUPT, "a chunk in a pack that is not known");
        if (numbers[place->pack] == 0) {
            struct pack pack = pack_at(o, place->pack);
            json_append(m->layers, descriptor(PACK_TYPE, &pack.digest, pack.size, NULL));
            numbers[place->pack] = ++used;
        }
        place->pack = numbers[place->pack] - 1;
    }
    if (used > PACKS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d packs", PACKS_MAX);
    int rc = remote_table_encode(&m->table, &bytes, e);
    if (rc == 0)
        rc = push_bytes(o, &bytes, &digest, NULL, e);
    json_append(m->layers, descriptor(TABLE_TYPE, &digest, bytes.len, "chunks.table"));
    return rc;
}

static int add_files(struct making *m, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->unit->file_count; i++) {
        const char *path = m->unit->files[i];
        AUTO_BUF struct buf bytes;
        struct unit_file file = {0};
        buf_init(&bytes, LIMIT_LAYER_INDEX + 128);
        rc = file_read(store_dir(m->oci->remote->store), path, &bytes, e);
        if (rc == 0)
            rc = push_bytes(m->oci, &bytes, &file.digest, NULL, e);
        if (rc < 0)
            return rc;
        file.size = bytes.len;
        snprintf(file.path, sizeof(file.path), "%s", path);
        json_append(m->layers, descriptor(FILE_TYPE, &file.digest, file.size, path));
        rc = note_file(m->oci, &file, e);
    }
    return rc;
}

static int push_document(struct making *m, char *tag, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    AUTO_FREE char *type =
        mem_printf("application/vnd.tb2-bake.%s.v1", remote_kind_name(m->unit->kind));
    AUTO_FREE char *text = NULL;
    AUTO_BUF struct buf bytes;
    struct digest empty;
    buf_init(&bytes, LIMIT_MANIFEST);
    if (!type)
        return err_nomem(e, "manifest");
    int rc = buf_add_text(&bytes, "{}", e);
    if (rc == 0)
        rc = push_bytes(m->oci, &bytes, &empty, NULL, e);
    if (rc < 0)
        return rc;
    json_set(j, "schemaVersion", json_new_integer(2));
    json_set(j, "mediaType", json_new_string(MANIFEST_TYPE));
    json_set(j, "artifactType", json_new_string(type));
    json_set(j, "config", descriptor(EMPTY_TYPE, &empty, bytes.len, NULL));
    json_set(j, "layers", MOVE(m->layers));
    rc = json_print(j, 0, &text, e);
    bytes.len = 0;
    if (rc == 0)
        rc = buf_add_text(&bytes, text, e);
    struct oci_ref ref = ref_of(m->oci, tag);
    if (rc == 0)
        rc = registry_push_manifest(m->oci->registry, &ref, MANIFEST_TYPE, &bytes, e);
    return rc;
}

/* Makes the chunks of the layers below known, so that they are pointed to, not sent. */
static void look_at_needs(struct oci_remote *o, const struct remote_unit *u)
{
    for (size_t i = 0; i < u->need_count; i++) {
        char hex[DIGEST_TEXT_MAX];
        struct err ignored = ERR_INIT;
        if (oci_find(o, REMOTE_LAYER, digest_hex(&u->needs[i], hex), &ignored) < 0)
            log_event(LOG_DEBUG, "bake", "%s", ignored.text);
    }
}

static int oci_publish(void *self, const struct remote_unit *u, struct err *e)
{
    struct oci_remote *o = self;
    struct making m = {.oci = o, .unit = u, .layers = json_new_array()};
    char tag[TAG_MAX];
    buf_init(&m.pack, PACK_SIZE);
    look_at_needs(o, u);
    int rc = tag_of(tag, u->kind, u->name, e);
    if (rc == 0)
        rc = add_files(&m, e);
    if (rc == 0)
        rc = add_chunks(&m, e);
    if (rc == 0 && u->chunk_count > 0)
        rc = add_table(&m, e);
    if (rc == 0)
        rc = push_document(&m, tag, e);
    if (rc == 0 && !is_found(o, tag))
        rc = note_found(o, tag, e);
    json_free(m.layers);
    buf_fini(&m.pack);
    free(m.waiting);
    remote_table_fini(&m.table);
    return rc < 0 ? err_in(e, "%s: %s", o->remote->name, tag) : 0;
}

/* ---- Opening ---- */

static uint64_t oci_requests(void *self)
{
    struct oci_remote *o = self;
    struct registry_stats s = registry_stats(o->registry);
    return s.manifest_gets + s.blob_gets + s.retries + atomic_load(&o->pushes);
}

static void oci_close(void *self)
{
    struct oci_remote *o = self;
    if (!o)
        return;
    registry_free(o->registry);
    oci_ref_fini(&o->ref);
    pthread_mutex_destroy(&o->lock);
    free(o->files);
    free(o->packs);
    free(o->found);
    free(o);
}

static int parse_place(struct oci_remote *o, const char *text, struct err *e)
{
    int rc = oci_ref_parse(&o->ref, text, e);
    if (rc == 0 && (o->ref.transport != OCI_REGISTRY || o->ref.has_digest || !o->ref.tag ||
                    strcmp(o->ref.tag, "latest") != 0 || strstr(text, ":latest"))) {
        err_set(e, ERR_INPUT, "oci://%s is not a repository", text);
        rc = err_hint(e, "name a host and a repository without a tag: oci://registry.corp/tb2");
    }
    return rc;
}

int remote_oci_open(struct remote *r, const struct remote_options *options, struct err *e)
{
    static const struct remote_ops ops = {oci_has,     oci_find,     oci_file, oci_chunk,
                                          oci_publish, oci_requests, oci_close};
    struct registry_options registry = {.plain_http_hosts = options->plain_http_hosts,
                                        .config_path = options->docker_config,
                                        .cancel = options->cancel};
    struct oci_remote *o = mem_zalloc(sizeof(*o));
    if (!o)
        return err_nomem(e, "remote store");
    o->remote = r;
    pthread_mutex_init(&o->lock, NULL);
    r->self = o;
    r->ops = &ops;
    r->writable = true;
    int rc = parse_place(o, options->url + strlen("oci://"), e);
    if (rc == 0)
        rc = registry_new(&o->registry, &registry, e);
    if (rc < 0)
        return rc;
    r->name = mem_printf("oci://%s/%s", o->ref.host, o->ref.repository);
    return r->name ? 0 : err_nomem(e, "remote store");
}
