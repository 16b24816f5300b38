/* SPDX-License-Identifier: MIT */
/* Pushes: what to push is found in the store or made, then sent layer by layer, the manifest last. */

#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/common/run_lock.h"
#include "bake/image/image.h"
#include "bake/image/layer_store.h"
#include "bake/push.h"
#include "bake/push/internal.h"
#include "bake/template.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

enum { SENDERS = 4, BLOCK_SIZE_DEFAULT = 16 << 10 };

void push_report_fini(struct push_report *r)
{
    free(r->reference);
    *r = (struct push_report){0};
}

/* Fills in what was left open. */
static int settle_compression(struct push_options *o, struct err *e)
{
    bool plain = o->format == PUSH_OCI;
    if (o->compression == PUSH_COMPRESSION_DEFAULT)
        o->compression = plain ? PUSH_GZIP : PUSH_ZSTD;
    if (o->compression != (plain ? PUSH_LZ4 : PUSH_GZIP))
        return 0;
    err_set(e, ERR_INPUT, "--compression: %s",
            plain ? "plain images have no lz4" : "OverlayBD has no gzip");
    return err_hint(e, "take zstd, or %s", plain ? "gzip" : "lz4");
}

enum overlaybd_compression push_overlaybd_compression(const struct push_options *o)
{
    return o->compression == PUSH_LZ4 ? OVERLAYBD_LZ4 : OVERLAYBD_ZSTD;
}

int push_open(struct push **out, struct store *s, const struct push_options *o, struct err *e)
{
    if (o->images.offline) {
        err_set(e, ERR_INPUT, "--offline and a push exclude each other");
        return err_hint(e, "a push is requests to a registry");
    }
    AUTO_PUSH struct push *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "push");
    p->store = s;
    p->options = *o;
    if (!p->options.block_size)
        p->options.block_size = BLOCK_SIZE_DEFAULT;
    int rc = settle_compression(&p->options, e);
    if (rc == 0)
        rc = image_room_open(&p->room, s, &o->images, o->cancel, e);
    if (rc < 0)
        return rc;
    *out = MOVE(p);
    return 0;
}

void push_close(struct push *p)
{
    if (!p)
        return;
    image_room_close(&p->room);
    free(p);
}

/* ---- Where to ---- */

static bool has_tag(const char *to)
{
    const char *slash = strrchr(to, '/');
    return strchr(slash ? slash : to, ':') != NULL;
}

/* `tag` is for a repository that is given without one. */
static int open_target(struct push_target *t, struct push *p, const char *to, const char *tag,
                       struct err *e)
{
    *t = (struct push_target){.push = p};
    AUTO_FREE char *name = has_tag(to) ? mem_strdup(to) : mem_printf("%s:%s", to, tag);
    if (!name)
        return err_nomem(e, "repository");
    int rc = oci_ref_parse(&t->ref, name, e);
    if (rc == 0 && (t->ref.transport != OCI_REGISTRY || t->ref.has_digest || !t->ref.tag)) {
        oci_ref_fini(&t->ref);
        rc = err_set(e, ERR_INPUT, "%s is not a repository of a registry", to);
        err_hint(e, "write it as HOST/NAME or HOST/NAME:TAG");
    }
    return rc;
}

/* Name and tag of an image as one tag: "debian-12". */
static char *image_tag(const struct oci_ref *r)
{
    enum { TAG_MAX = 128 };
    const char *slash = strrchr(r->repository, '/');
    const char *tag = r->transport == OCI_REGISTRY && r->tag ? r->tag : "latest";
    char *text = mem_printf("%s-%s", slash ? slash + 1 : r->repository, tag);
    for (char *at = text; at && *at; at++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *at) ||
            (at == text && (*at == '.' || *at == '-')))
            *at = '_';
        if (at - text == TAG_MAX - 1)
            at[1] = '\0';
    }
    return text;
}

/* ---- What ---- */

/* A disk, and what is known of the image that it began as. */
struct subject {
    struct block_map *disk;
    struct oci_config config;
    bool has_config;
    struct block_map **regions;
    size_t region_count;
};

static void subject_fini(struct subject *s)
{
    block_map_free(s->disk);
    oci_config_fini(&s->config);
    for (size_t i = 0; i < s->region_count; i++)
        block_map_free(s->regions[i]);
    free(s->regions);
}

/* The regions of the image's layers. Where one is not in the store, what is above it has no place. */
static int load_regions(struct subject *s, struct store *store, const struct oci_config *c,
                        struct err *e)
{
    s->regions = mem_array(c->diff_id_count + 1, sizeof(struct block_map *));
    if (!s->regions)
        return err_nomem(e, "layers");
    for (size_t i = 0; i < c->diff_id_count; i++) {
        struct digest region;
        int rc = layer_region(store, &c->diff_ids[i], &region, e);
        if (rc == 0)
            rc = store_get_map(store, &region, &s->regions[i], e);
        if (rc == -ERR_NOTFOUND || rc == -ERR_CORRUPT || rc == -ERR_DIGEST) {
            log_event(LOG_INFO, "bake", "push: layer %zu is not used: %s", i + 1, e->text);
            err_clear(e);
            return 0;
        }
        if (rc < 0)
            return rc;
        s->region_count++;
    }
    return 0;
}

/* A document of an image; *found: the store has it, whole. */
static int read_document(struct store *s, const struct digest *d, struct buf *out, bool *found,
                         struct err *e)
{
    char path[BLOB_PATH_MAX];
    image_blob_path(path, "blobs", d);
    store_use(s, path);
    int rc = file_read(store_dir(s), path, out, e);
    if (rc == 0)
        rc = image_check_document(d, out, e);
    *found = rc == 0;
    if (rc != -ERR_NOTFOUND && rc != -ERR_DIGEST)
        return rc;
    err_clear(e);
    return 0;
}

/* The config of the template's image, if the store still has it. */
static int load_config(struct subject *s, struct store *store, const struct template *t,
                       struct err *e)
{
    AUTO_BUF struct buf bytes;
    AUTO_BUF struct buf config;
    struct oci_manifest m = {0};
    struct digest manifest;
    bool found = false;
    buf_init(&bytes, LIMIT_MANIFEST);
    buf_init(&config, LIMIT_CONFIG);
    int rc = json_get_digest(t->document, "manifest", &manifest, e);
    if (rc == 0)
        rc = read_document(store, &manifest, &bytes, &found, e);
    if (rc < 0 || !found)
        return rc;
    rc = oci_manifest_parse(&m, bytes.data, bytes.len, e);
    if (rc == 0)
        rc = read_document(store, &m.config.digest, &config, &found, e);
    if (rc == 0 && found)
        rc = oci_config_parse(&s->config, config.data, config.len, e);
    s->has_config = rc == 0 && found;
    oci_manifest_fini(&m);
    return rc;
}

static int template_subject(struct subject *s, struct store *store, const struct template *t,
                            struct err *e)
{
    int rc = store_get_map(store, &t->disk, &s->disk, e);
    if (rc == 0)
        rc = load_config(s, store, t, e);
    if (rc == 0 && s->has_config)
        rc = load_regions(s, store, &s->config, e);
    return rc;
}

static int assemble(struct push *p, struct image *i, uint64_t free_size, struct block_map **out,
                    struct err *e)
{
    struct digest disk;
    int rc = image_drop_damaged(i, &p->room, e);
    if (rc == 0)
        rc = image_pull(i, &p->room, NULL, e);
    if (rc == 0)
        rc = image_ingest(i, &p->room, e);
    return rc < 0 ? rc : image_assemble(i, &p->room, free_size, out, &disk, e);
}

int push_assemble(struct push *p, struct image *i, uint64_t free_size, struct block_map **out,
                  struct err *e)
{
    AUTO_FD int lock = -1;
    int rc = p->options.in_run ? 0 : run_lock(&lock, p->store, e);
    return rc < 0 ? rc : assemble(p, i, free_size, out, e);
}

/* ---- Sending ---- */

static int layer_work(void *ctx, void *item, struct err *e)
{
    const struct push_target *t = ctx;
    struct push_layer *l = item;
    int rc = cancel_check(t->push->options.cancel, e);
    return rc < 0 ? rc : push_layer_send(t, l, e);
}

static int layer_done(void *ctx UNUSED, void *item UNUSED, struct err *e UNUSED)
{
    return 0;
}

static const struct pool_ops layer_ops = {.work = layer_work, .done = layer_done};

static int send_layers(struct push_target *t, struct push_plan *plan, struct err *e)
{
    AUTO_POOL struct pool *pool = NULL;
    int rc = pool_new(&pool, &layer_ops, t, plan->count < SENDERS ? plan->count : SENDERS, e);
    /* The last one is most likely new and big: it begins first. */
    for (size_t i = plan->count; rc == 0 && i > 0; i--)
        rc = pool_submit(pool, &plan->layers[i - 1], e);
    return rc < 0 ? rc : pool_finish(pool, e);
}

void push_count(struct push_report *out, const struct push_blob *b)
{
    out->layers++;
    out->size += b->size;
    out->converted += b->converted;
    out->mounted += b->result == PUSH_MOUNTED;
    out->sent += b->result == PUSH_SENT;
    out->sent_size += b->result == PUSH_SENT ? b->size : 0;
}

static int send_disk(struct push_target *t, const struct subject *s, const struct push_facts *facts,
                     struct push_report *out, struct err *e)
{
    struct push_plan plan = {0};
    int rc = push_plan_make(&plan, s->disk, s->regions, s->region_count, e);
    if (rc == 0)
        rc = send_layers(t, &plan, e);
    if (rc == 0)
        rc = push_documents(t, &plan, facts, &out->digest, e);
    for (size_t i = 0; i < plan.count; i++)
        push_count(out, &plan.layers[i].blob);
    push_plan_fini(&plan);
    return rc;
}

/* Names what was pushed. */
static int close_target(struct push_target *t, struct push_report *out, int rc, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *name = oci_ref_print(&t->ref);
    oci_ref_fini(&t->ref);
    if (rc < 0)
        return err_in(e, "push to %s", name ? name : "the registry");
    out->reference = name ? mem_printf("%s@%s", name, digest_print(&out->digest, text)) : NULL;
    return out->reference ? 0 : err_nomem(e, "push");
}

int push_template(struct push *p, const struct template *t, const char *to, struct push_report *out,
                  struct err *e)
{
    struct push_target target;
    struct subject subject = {0};
    *out = (struct push_report){0};
    int rc = open_target(&target, p, to, t->alias, e);
    if (rc < 0)
        return rc;
    if (p->options.format == PUSH_OCI)
        return close_target(&target, out, push_plain(&target, t, out, e), e);
    rc = template_subject(&subject, p->store, t, e);
    struct push_facts facts = {.image_config = subject.has_config ? subject.config.raw : NULL,
                               .template = t};
    if (rc == 0)
        rc = send_disk(&target, &subject, &facts, out, e);
    subject_fini(&subject);
    return close_target(&target, out, rc, e);
}

static int send_image(struct push_target *t, struct image *i, struct push_report *out,
                      struct err *e)
{
    struct subject subject = {0};
    if (t->push->options.format == PUSH_OCI)
        return push_copy(t, i, out, e);
    int rc = push_assemble(t->push, i, t->push->options.free_size, &subject.disk, e);
    if (rc == 0)
        rc = load_regions(&subject, t->push->store, &i->config, e);
    struct push_facts facts = {.image_config = i->config.raw};
    if (rc == 0)
        rc = send_disk(t, &subject, &facts, out, e);
    subject_fini(&subject);
    return rc;
}

int push_image(struct push *p, const char *image, const char *to, struct push_report *out,
               struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    struct push_target target;
    *out = (struct push_report){0};
    int rc = image_resolve(&i, &p->room, image, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *tag = image_tag(&i->ref);
    rc = tag ? open_target(&target, p, to, tag, e) : err_nomem(e, "push");
    return rc < 0 ? rc : close_target(&target, out, send_image(&target, i, out, e), e);
}
