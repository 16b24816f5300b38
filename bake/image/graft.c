/* SPDX-License-Identifier: MIT */
/*
 * Grafts: a directory, a tarball or an image becomes layers of the store, whose entries lie below the
 * path where it is laid and have owner and mode as the recipe says. A layer's name comes of what goes
 * into it, so a graft is read once for all images, and not at all where the store has it.
 *
 * No tar is written for this. An image's own layers are ingested as ever; the graft's layers have
 * their entries, renamed, over the same regions. What has no bytes (directories, links) goes into the
 * first of them, each file into that of its region.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/common/document.h"
#include "bake/common/once.h"
#include "bake/image/graft.h"
#include "bake/image/image.h"
#include "bake/image/ingest_gate.h"
#include "bake/image/layer_store.h"
#include "bake/image/pins.h"
#include "bake/recipe/files.h"
#include "bake/recipe/host_tree.h"
#include "base/mem.h"
#include "blockdev/blockdev.h"

enum { GRAFT_FORMAT = 1, IDS_MAX = 65535 };

/* ---- Which are laid without a guest ---- */

/* Accounts have numbers only in an image's own /etc/passwd, which is for the agent to read. */
static bool has_numbers(const char *owner, uint32_t *uid, uint32_t *gid)
{
    char *end = NULL;
    unsigned long long id = strtoull(owner, &end, 10);
    if (owner[0] < '0' || owner[0] > '9' || *end != ':' || end[1] < '0' || end[1] > '9' ||
        id > LIMIT_ACCOUNT)
        return false;
    *uid = (uint32_t)id;
    id = strtoull(end + 1, &end, 10);
    *gid = (uint32_t)id;
    return *end == 0 && id <= LIMIT_ACCOUNT;
}

size_t graft_head(const struct recipe *r, bool native)
{
    uint32_t id;
    size_t count = 0;
    for (; count < r->step_count; count++) {
        const struct recipe_step *step = &r->steps[count];
        bool laid = step->kind == RECIPE_GRAFT && !native &&
                    (!step->files->owner || has_numbers(step->files->owner, &id, &id));
        if (!laid && step->kind != RECIPE_ENV && step->kind != RECIPE_USER)
            break;
    }
    return count;
}

int graft_resolve(struct recipe *r, struct image_room *room, struct pins *pins, struct err *e)
{
    for (size_t i = 0; i < r->step_count; i++) {
        struct recipe_files *f = r->steps[i].files;
        if (!f || f->source != RECIPE_SOURCE_IMAGE)
            continue;
        AUTO_IMAGE struct image *image = NULL;
        int rc = image_resolve(&image, room, f->from, e);
        if (rc == 0 && image->native)
            rc = err_set(e, ERR_UNSUPPORTED, "a native image cannot be a graft");
        if (rc == 0)
            rc = pins_note(pins, f->from, &image->root, 0, e);
        if (rc < 0)
            return err_in(e, "graft of %s (line %u of the recipe)", f->from, r->steps[i].line);
        f->content = image->manifest.digest;
        f->has_content = true;
    }
    return 0;
}

/* ---- Names ---- */

/* Of the layer with this number of the graft. */
static int name_layer(struct digest *out, const struct recipe_files *f, size_t number,
                      struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "graft", json_new_integer(GRAFT_FORMAT));
    json_set(j, "source", json_new_integer(f->source));
    json_set(j, "content", json_digest(&f->content));
    json_set(j, "number", json_new_integer((int64_t)number));
    json_set(j, "at", json_new_string(f->to));
    if (f->owner)
        json_set(j, "owner", json_new_string(f->owner));
    if (f->has_mode)
        json_set(j, "mode", json_new_integer(f->mode));
    return json_hash(out, j, e);
}

/* ---- Entries ---- */

/* "/opt//tools/" as entries have it: "opt/tools". */
static char *clean_path(const char *at)
{
    char *out = mem_zalloc(strlen(at) + 1);
    size_t len = 0;
    for (; out && *at; at += strspn(at, "/")) {
        size_t part = strcspn(at, "/");
        if (part > 0 && len > 0)
            out[len++] = '/';
        memcpy(out + len, at, part);
        len += part;
        at += part;
    }
    return out;
}

static char *join(const char *prefix, const char *path)
{
    return mem_printf("%s%s%s", prefix, *prefix && *path ? "/" : "", path);
}

size_t graft_path_len(const struct recipe_files *f)
{
    size_t len = 0;
    for (const char *at = f->to; *at; at += strspn(at, "/")) {
        size_t part = strcspn(at, "/");
        len += part + (part > 0 && len > 0);
        at += part;
    }
    return len;
}

static void apply_rules(struct oci_entry *entry, const struct recipe_files *f)
{
    uint32_t uid = 0;
    uint32_t gid = 0;
    if (f->owner && has_numbers(f->owner, &uid, &gid)) {
        entry->uid = uid;
        entry->gid = gid;
    }
    if (f->has_mode && entry->type == OCI_FILE)
        entry->mode = f->mode;
    if (f->has_mode && entry->type == OCI_DIRECTORY)
        entry->mode = f->mode | (f->mode & 0444) >> 2;
}

/* ---- From the host ---- */

struct region_sink {
    struct region_writer *writer;
    uint64_t off;
};

static int write_region(void *self, const void *data, size_t len, struct err *e)
{
    struct region_sink *s = self;
    int rc = layer_region_ops.file_data(s->writer, s->off, data, len, e);
    s->off += len;
    return rc;
}

static int take_bytes(struct oci_entry *entry, struct host_tree *t, size_t n,
                      struct region_writer *w, struct err *e)
{
    struct region_sink to = {.writer = w};
    entry->size = t->entries[n].size;
    if (entry->size == 0)
        return host_tree_read(t, n, NULL, e);
    int rc = layer_region_ops.file_begin(w, entry->size, e);
    if (rc == 0)
        rc = host_tree_read(t, n, &(struct sink){.write = write_region, .self = &to}, e);
    if (rc == 0)
        rc = layer_region_ops.file_end(w, &entry->extents, &entry->extent_count, e);
    return rc;
}

static int add_host_entry(struct oci_layer *l, struct host_tree *t, size_t n,
                          struct region_writer *w, const struct recipe_files *f, struct err *e)
{
    static const enum oci_entry_type types[] = {[HOST_FILE] = OCI_FILE,
                                                [HOST_DIRECTORY] = OCI_DIRECTORY,
                                                [HOST_SYMLINK] = OCI_SYMLINK,
                                                [HOST_LINK] = OCI_HARDLINK};
    const struct host_entry *from = &t->entries[n];
    AUTO_FREE char *prefix = clean_path(f->to);
    struct oci_entry entry = {
        .type = types[from->type], .mode = from->mode, .mtime_seconds = HOST_TREE_TIME};
    entry.path = prefix ? join(prefix, from->path) : NULL;
    if (from->type == HOST_SYMLINK)
        entry.target = mem_strdup(from->target);
    if (from->type == HOST_LINK && prefix)
        entry.target = join(prefix, t->entries[from->link].path);
    if (from->type == HOST_SYMLINK)
        entry.mode = 0777;
    int rc = entry.path && (entry.target || from->type < HOST_SYMLINK) ? 0 : err_nomem(e, "graft");
    if (from->type == HOST_LINK)
        entry.mode = 0, entry.mtime_seconds = 0;
    else
        apply_rules(&entry, f);
    if (rc == 0 && from->type == HOST_FILE)
        rc = take_bytes(&entry, t, n, w, e);
    if (rc < 0) {
        oci_entry_fini(&entry);
        return rc;
    }
    return oci_layer_add(l, &entry, e);
}

static int check_content(const struct recipe_files *f, const struct host_tree *t, struct err *e)
{
    struct digest now;
    int rc = host_tree_digest(t, &now, e);
    if (rc < 0 || digest_equal(&now, &f->content))
        return rc;
    err_set(e, ERR_INPUT, "%s was changed since the bake began", f->path);
    return err_hint(e, "bake again: what is laid must be what the template's key says");
}

static int put_directory(const struct digest *id, struct image_room *room,
                         const struct recipe_files *f, struct err *e)
{
    AUTO_HOST_TREE struct host_tree *t = NULL;
    AUTO_REGION_WRITER struct region_writer *w = NULL;
    AUTO_BLOCK_MAP struct block_map *region = NULL;
    struct layer_made made = {0};
    int rc = recipe_files_open(&t, f, room->cancel, e);
    if (rc == 0 && t->single)
        rc = err_set(e, ERR_INPUT, "%s is no directory", f->path);
    if (rc == 0)
        rc = region_writer_new_on(&w, room->store, ingest_gate_crew(room->ingest), e);
    if (rc == 0)
        rc = oci_layer_new(&made.layer, e);
    for (size_t n = 0; rc == 0 && n < t->count; n++)
        rc = add_host_entry(made.layer, t, n, w, f, e);
    if (rc == 0)
        rc = check_content(f, t, e);
    if (rc == 0)
        rc = region_writer_finish(w, &region, e);
    if (rc == 0)
        rc = store_put_map_unsynced(room->store, region, &made.region, e);
    if (rc == 0)
        rc = layer_put(room->store, id, &made, e);
    layer_made_fini(&made);
    return rc;
}

/* ---- From layers ---- */

struct stack {
    struct oci_layer **layers;
    struct digest *regions;
    size_t count;
    struct oci_tree *tree;
    char **paths; /* of the tree's nodes, below the graft's path */
};

static int stack_init(struct stack *s, size_t count, struct err *e)
{
    s->layers = mem_array(count, sizeof(struct oci_layer *));
    s->regions = mem_array(count, sizeof(*s->regions));
    s->count = count;
    return s->layers && s->regions ? 0 : err_nomem(e, "graft");
}

static void stack_fini(struct stack *s)
{
    size_t nodes = s->tree && s->paths ? oci_tree_count(s->tree) : 0;
    for (size_t i = 0; i < nodes; i++)
        free(s->paths[i]);
    free(s->paths);
    oci_tree_free(s->tree);
    for (size_t i = 0; s->layers && i < s->count; i++)
        oci_layer_free(s->layers[i]);
    free(s->layers);
    free(s->regions);
}

static int merge(struct stack *s, const struct recipe_files *f, const struct cancel *c,
                 struct err *e)
{
    int rc = oci_tree_merge(&s->tree, s->layers, s->count, c, e);
    if (rc < 0)
        return rc;
    size_t count = oci_tree_count(s->tree);
    s->paths = mem_array(count, sizeof(char *));
    if (!s->paths || !(s->paths[0] = clean_path(f->to)))
        return err_nomem(e, "graft");
    for (size_t n = 1; n < count; n++) {
        struct oci_node node = oci_tree_node(s->tree, n);
        s->paths[n] = join(s->paths[node.parent], node.name);
        if (!s->paths[n])
            return err_nomem(e, "graft");
        if (strlen(s->paths[n]) >= LIMIT_PATH)
            return err_set(e, ERR_LIMIT, "a path of the graft is longer than %zu bytes",
                           (size_t)LIMIT_PATH);
    }
    return 0;
}

static int copy_attributes(struct oci_entry *to, const struct oci_entry *from, struct err *e)
{
    to->xattrs = mem_array(from->xattr_count, sizeof(*to->xattrs));
    to->extents = from->extent_count > 0
                      ? mem_dup(from->extents, from->extent_count * sizeof(*to->extents))
                      : NULL;
    if ((!to->xattrs && from->xattr_count > 0) || (!to->extents && from->extent_count > 0))
        return err_nomem(e, "graft");
    to->extent_count = from->extent_count;
    for (size_t i = 0; i < from->xattr_count; i++) {
        struct oci_xattr *x = &to->xattrs[to->xattr_count++];
        x->name = mem_strdup(from->xattrs[i].name);
        x->value = mem_dup(from->xattrs[i].value, from->xattrs[i].value_len);
        x->value_len = from->xattrs[i].value_len;
        if (!x->name || !x->value)
            return err_nomem(e, "graft");
    }
    return 0;
}

static int add_node(struct oci_layer *l, const struct stack *s, size_t n,
                    const struct recipe_files *f, struct err *e)
{
    struct oci_node node = oci_tree_node(s->tree, n);
    const struct oci_entry *from = node.entry;
    bool link = node.link_of != SIZE_MAX;
    struct oci_entry entry = {.type = link ? OCI_HARDLINK : from->type};
    const char *target = link ? s->paths[node.link_of] : from->target;
    int rc = 0;
    if (!link) {
        entry.mode = from->mode;
        entry.uid = from->uid;
        entry.gid = from->gid;
        entry.mtime_seconds = from->mtime_seconds;
        entry.mtime_nanoseconds = from->mtime_nanoseconds;
        entry.size = from->size;
        entry.device_major = from->device_major;
        entry.device_minor = from->device_minor;
        rc = copy_attributes(&entry, from, e);
        apply_rules(&entry, f);
    }
    entry.path = mem_strdup(s->paths[n]);
    entry.target = target ? mem_strdup(target) : NULL;
    if (rc == 0 && (!entry.path || (target && !entry.target)))
        rc = err_nomem(e, "graft");
    if (rc < 0) {
        oci_entry_fini(&entry);
        return rc;
    }
    return oci_layer_add(l, &entry, e);
}

/* Which of the graft's layers a node goes into. */
static size_t layer_of(const struct stack *s, size_t n)
{
    struct oci_node node = oci_tree_node(s->tree, n);
    if (node.link_of != SIZE_MAX)
        node = oci_tree_node(s->tree, node.link_of);
    return node.entry->extent_count > 0 ? node.layer : 0;
}

static int put_layer(const struct digest *id, const struct stack *s, size_t number,
                     struct image_room *room, const struct recipe_files *f, struct err *e)
{
    struct layer_made made = {.region = s->regions[number]};
    int rc = oci_layer_new(&made.layer, e);
    size_t count = oci_tree_count(s->tree);
    for (size_t n = 1; rc == 0 && n < count; n++) {
        if (layer_of(s, n) == number)
            rc = add_node(made.layer, s, n, f, e);
    }
    if (rc == 0)
        rc = layer_put(room->store, id, &made, e);
    layer_made_fini(&made);
    return rc;
}

static int put_layers(const struct digest *ids, struct stack *s, struct image_room *room,
                      const struct recipe_files *f, struct err *e)
{
    int rc = merge(s, f, room->cancel, e);
    for (size_t i = s->count; rc == 0 && i-- > 0;) /* the first one last: with it they are whole */
        rc = put_layer(&ids[i], s, i, room, f, e);
    return rc;
}

static int put_tarball(const struct digest *id, struct image_room *room,
                       const struct recipe_files *f, struct err *e)
{
    struct source source = {0};
    struct stack s = {0};
    struct layer_made made = {0};
    struct oci_descriptor d;
    int rc = recipe_tarball_open(&source, &d, f, e);
    if (rc == 0) {
        struct layer_blob blob = {.source = &source, .descriptor = &d};
        rc = layer_read_blob(&made, room->store, &blob, room->ingest, room->cancel, e);
        source_close(&source);
    }
    oci_descriptor_fini(&d);
    if (rc == -ERR_DIGEST)
        rc = err_hint(e, "it was changed since the bake began: bake again");
    if (rc == 0)
        rc = stack_init(&s, 1, e);
    if (rc == 0) {
        s.layers[0] = MOVE(made.layer);
        s.regions[0] = made.region;
        rc = put_layers(id, &s, room, f, e);
    }
    layer_made_fini(&made);
    stack_fini(&s);
    return rc;
}

/* ---- From an image ---- */

/* The image as it was when the bake began, whatever its tag stands for now. */
static int open_image(struct image **out, struct image_room *room, const struct recipe_files *f,
                      struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    struct oci_ref ref = {.transport = OCI_LAYOUT};
    char digest[DIGEST_TEXT_MAX];
    int rc = oci_ref_parse(&ref, f->from, e);
    bool tagged = rc == 0 && ref.transport == OCI_REGISTRY && !ref.has_digest;
    oci_ref_fini(&ref);
    AUTO_FREE char *pinned = mem_printf("%s%s%s", f->from, tagged ? "@" : "",
                                        tagged ? digest_print(&f->content, digest) : "");
    if (rc == 0)
        rc = pinned ? image_resolve(&i, room, pinned, e) : err_nomem(e, "graft");
    if (rc == 0 && !digest_equal(&i->manifest.digest, &f->content)) {
        err_set(e, ERR_INPUT, "the image stands for something else since the bake began");
        rc = err_hint(e, "bake again");
    }
    if (rc == 0)
        *out = MOVE(i);
    return rc;
}

static int put_image(const struct digest *ids, struct image *i, struct image_room *room,
                     const struct recipe_files *f, struct err *e)
{
    struct stack s = {0};
    int rc = stack_init(&s, i->config.diff_id_count, e);
    if (rc == 0)
        rc = image_drop_damaged(i, room, e);
    if (rc == 0)
        rc = image_pull(i, room, NULL, e);
    if (rc == 0)
        rc = image_ingest(i, room, e);
    for (size_t n = 0; rc == 0 && n < s.count; n++) {
        AUTO_BLOCK_MAP struct block_map *region = NULL;
        rc = layer_load(room->store, &i->config.diff_ids[n], &s.layers[n], &region, e);
        if (rc == 0)
            rc = layer_region(room->store, &i->config.diff_ids[n], &s.regions[n], e);
    }
    if (rc == 0)
        rc = put_layers(ids, &s, room, f, e);
    stack_fini(&s);
    return rc;
}

/* ---- All of them ---- */

static int make_layers(const struct digest *ids, struct image *i, struct image_room *room,
                       const struct recipe_files *f, struct err *e)
{
    if (i)
        return put_image(ids, i, room, f, e);
    return f->source == RECIPE_SOURCE_TARBALL ? put_tarball(ids, room, f, e)
                                              : put_directory(ids, room, f, e);
}

static bool have_all(struct store *s, const struct digest *ids, size_t count)
{
    size_t n = 0;
    while (n < count && layer_has(s, &ids[n]))
        n++;
    return n == count;
}

static int make_once(const struct digest *ids, size_t count, struct image *i,
                     struct image_room *room, const struct recipe_files *f, struct err *e)
{
    char text[DIGEST_TEXT_MAX];
    AUTO_FREE char *key = mem_printf("graft %s", digest_print(&ids[0], text));
    bool mine = false;
    int rc = key ? once_begin(room->once, key, &mine, NULL, e) : err_nomem(e, "graft");
    if (rc < 0 || !mine)
        return rc;
    for (size_t n = 0; n < count; n++)
        layer_drop_damaged(room->store, &ids[n], false);
    if (!have_all(room->store, ids, count))
        rc = make_layers(ids, i, room, f, e);
    once_end(room->once, key, rc, NULL, e);
    return rc;
}

/* The graft's image, of those that have one, and the names of its layers. */
static int name_layers(struct image **image, struct digest **ids, size_t *count,
                       struct image_room *room, const struct recipe_files *f, struct err *e)
{
    int rc = f->source == RECIPE_SOURCE_IMAGE ? open_image(image, room, f, e) : 0;
    size_t n = rc == 0 && *image ? (*image)->config.diff_id_count : 1;
    if (rc == 0 && (n == 0 || n > IDS_MAX))
        rc = err_set(e, ERR_UNSUPPORTED, "an image of %zu layers", n);
    if (rc == 0 && !(*ids = mem_array(n, sizeof(**ids))))
        rc = err_nomem(e, "graft");
    for (size_t at = 0; rc == 0 && at < n; at++)
        rc = name_layer(&(*ids)[at], f, at, e);
    *count = n;
    return rc;
}

/* `make`: their layers too. */
static int open_graft(struct digest **ids, size_t *count, struct image_room *room,
                      const struct recipe_files *f, bool make, struct err *e)
{
    AUTO_IMAGE struct image *i = NULL;
    AUTO_FREE struct digest *names = NULL;
    int rc = name_layers(&i, &names, count, room, f, e);
    if (rc == 0 && make)
        rc = make_once(names, *count, i, room, f, e);
    if (rc < 0)
        return err_in(e, "graft of %s", f->from);
    *ids = MOVE(names);
    return 0;
}

int graft_make(struct digest **ids, size_t *count, struct image_room *room,
               const struct recipe_files *f, struct err *e)
{
    return open_graft(ids, count, room, f, true, e);
}

static int open_all(struct image *i, struct image_room *room, const struct recipe *r, bool make,
                    struct err *e)
{
    const size_t head = graft_head(r, i->native);
    size_t capacity = 0;
    int rc = 0;
    free(MOVE(i->grafts));
    i->graft_count = i->graft_total = 0;
    for (size_t n = 0; rc == 0 && n < r->step_count; n++) {
        AUTO_FREE struct digest *ids = NULL;
        size_t count = 0;
        if (r->steps[n].kind != RECIPE_GRAFT)
            continue;
        rc = open_graft(&ids, &count, room, r->steps[n].files, make, e);
        if (rc == 0)
            rc = mem_grow(&i->grafts, &capacity, i->graft_total + count, sizeof(*ids), e);
        if (rc < 0)
            return rc;
        memcpy(i->grafts + i->graft_total, ids, count * sizeof(*ids));
        i->graft_total += count;
        i->graft_count += n < head ? count : 0;
    }
    return rc;
}

int graft_name(struct image *i, struct image_room *room, const struct recipe *r, struct err *e)
{
    return open_all(i, room, r, false, e);
}

int graft_prepare(struct image *i, struct image_room *room, const struct recipe *r, struct err *e)
{
    return open_all(i, room, r, true, e);
}
