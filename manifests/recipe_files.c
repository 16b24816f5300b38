/* SPDX-License-Identifier: MIT */
/*
 * Steps that lay files: `copy` takes them from the host, `graft` from a directory, a tarball or an
 * image. Only what is written is checked here; what it names is read when a bake is planned.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "manifests/recipe_internal.h"

enum { EXCLUDES_MAX = 256 };

/* A path of the host from where the recipe lies. */
static int resolve(char **out, const char *recipe, const char *path, struct err *e)
{
    const char *slash = strrchr(recipe, '/');
    if (path[0] == '/' || !slash)
        *out = mem_strdup(path);
    else
        *out = mem_printf("%.*s/%s", (int)(slash - recipe), recipe, path);
    return *out ? 0 : err_nomem(e, "recipe");
}

static int read_source(struct decoder *d, const struct node *value, const char *key,
                       enum recipe_source source, struct err *e)
{
    struct recipe_files *f = d->step->files;
    if (f->from)
        return node_fail(d->path, value, e,
                         "a graft must have exactly one of directory, tarball and image");
    f->source = source;
    int rc = node_text(&f->from, d->path, key, value, e);
    if (rc == 0 && value->len >= LIMIT_PATH)
        return node_fail(d->path, value, e, "%s is longer than %zu bytes", key, (size_t)LIMIT_PATH);
    if (rc == 0 && source != RECIPE_SOURCE_IMAGE)
        rc = resolve(&f->path, d->path, f->from, e);
    return rc;
}

static int read_from(struct decoder *d, const struct node *value, struct err *e)
{
    return read_source(d, value, "from", RECIPE_SOURCE_DIRECTORY, e);
}

static int read_directory(struct decoder *d, const struct node *value, struct err *e)
{
    return read_source(d, value, "directory", RECIPE_SOURCE_DIRECTORY, e);
}

static int read_tarball(struct decoder *d, const struct node *value, struct err *e)
{
    return read_source(d, value, "tarball", RECIPE_SOURCE_TARBALL, e);
}

static int read_image(struct decoder *d, const struct node *value, struct err *e)
{
    return read_source(d, value, "image", RECIPE_SOURCE_IMAGE, e);
}

static int read_to(struct decoder *d, const struct node *value, struct err *e)
{
    int rc = node_text(&d->step->files->to, d->path, "to", value, e);
    if (rc == 0 && value->len >= LIMIT_PATH)
        return node_fail(d->path, value, e, "to is longer than %zu bytes", (size_t)LIMIT_PATH);
    return rc;
}

static int read_at(struct decoder *d, const struct node *value, struct err *e)
{
    int rc = node_text(&d->step->files->to, d->path, "at", value, e);
    if (rc == 0 && (value->text[0] != '/' || value->len >= LIMIT_PATH))
        return node_fail(d->path, value, e, "at must be an absolute path");
    return rc;
}

static int read_owner(struct decoder *d, const struct node *value, struct err *e)
{
    return recipe_read_account(&d->step->files->owner, d, "owner", value, e);
}

static int read_mode(struct decoder *d, const struct node *value, struct err *e)
{
    size_t digits = value->kind == NODE_SCALAR ? strspn(value->text, "01234567") : 0;
    if (digits < 3 || digits > 5 || digits != value->len || (digits == 5 && value->text[0] != '0'))
        return node_fail(d->path, value, e, "mode must be three or four octal digits");
    d->step->files->mode = (uint32_t)strtoul(value->text, NULL, 8);
    d->step->files->has_mode = true;
    return 0;
}

static int read_exclude(struct decoder *d, const struct node *value, struct err *e)
{
    if (value->kind == NODE_SEQUENCE && value->count > EXCLUDES_MAX)
        return node_fail(d->path, value, e, "more than %d patterns", EXCLUDES_MAX);
    int rc = node_argv(&d->step->files->excludes, d->path, "exclude", value, e);
    for (size_t i = 0; rc == 0 && i < value->count; i++) {
        const char *fault = glob_fault(value->items[i]->text);
        if (fault)
            rc = node_fail(d->path, value->items[i], e, "the pattern matches nothing: %s", fault);
    }
    return rc;
}

static const struct key copy_keys[] = {
    {"from", read_from}, {"to", read_to},           {"owner", read_owner},
    {"mode", read_mode}, {"exclude", read_exclude},
};

static const struct key graft_keys[] = {
    {"directory", read_directory}, {"tarball", read_tarball},
    {"image", read_image},         {"at", read_at},
    {"owner", read_owner},         {"mode", read_mode},
    {"exclude", read_exclude},
};

static int begin(struct decoder *d, enum recipe_step_kind kind, struct err *e)
{
    d->step->kind = kind;
    d->step->files = mem_zalloc(sizeof(*d->step->files));
    return d->step->files ? 0 : err_nomem(e, "recipe");
}

int recipe_read_copy(struct decoder *d, const struct node *value, struct err *e)
{
    int rc = begin(d, RECIPE_COPY, e);
    if (rc == 0)
        rc = recipe_read_mapping(d, value, "copy", copy_keys, ARRAY_LEN(copy_keys), e);
    if (rc == 0 && (!d->step->files->from || !d->step->files->to))
        return node_fail(d->path, value, e, "copy must have from and to");
    return rc;
}

int recipe_read_graft(struct decoder *d, const struct node *value, struct err *e)
{
    int rc = begin(d, RECIPE_GRAFT, e);
    if (rc == 0)
        rc = recipe_read_mapping(d, value, "graft", graft_keys, ARRAY_LEN(graft_keys), e);
    const struct recipe_files *f = d->step->files;
    if (rc == 0 && (!f->from || !f->to))
        return node_fail(d->path, value, e,
                         "graft must have at, and one of directory, tarball and image");
    if (rc == 0 && f->excludes && f->source != RECIPE_SOURCE_DIRECTORY)
        return node_fail(d->path, node_get(value, "exclude"), e,
                         "exclude is for a graft of a directory");
    return rc;
}

void recipe_files_free(struct recipe_files *f)
{
    if (!f)
        return;
    argv_free(f->excludes);
    free(f->from);
    free(f->path);
    free(f->to);
    free(f->owner);
    free(f);
}
