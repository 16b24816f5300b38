/* SPDX-License-Identifier: MIT */
/* What a recipe lays, read when a bake is planned: a part of each template's key. */

#include <fcntl.h>
#include <stdlib.h>

#include "bake/common/blame.h"
#include "bake/recipe.h"
#include "bake/recipe/files.h"
#include "bake/recipe/host_tree.h"
#include "base/file.h"
#include "base/mem.h"
#include "oci/oci.h"

int recipe_files_open(struct host_tree **out, const struct recipe_files *f, const struct cancel *c,
                      struct err *e)
{
    struct host_tree_options o = {.path = f->path,
                                  .excludes = (const char *const *)f->excludes,
                                  .has_mode = f->has_mode,
                                  .mode = f->mode,
                                  .cancel = c};
    return host_tree_open(out, &o, e);
}

static int hash_file(struct digest *out, const char *path, const struct cancel *cancel,
                     struct err *e)
{
    AUTO_HOST_TREE struct host_tree *t = NULL;
    struct host_tree_options o = {.path = path, .cancel = cancel};
    int rc = host_tree_open(&t, &o, e);
    if (rc == 0 && !t->single)
        rc = err_set(e, ERR_INPUT, "%s is a directory", path);
    if (rc == 0)
        rc = host_tree_read_all(t, e);
    if (rc == 0)
        *out = t->entries[0].content;
    return rc;
}

static int hash_tree(struct digest *out, const struct recipe_files *f, const struct cancel *cancel,
                     struct err *e)
{
    AUTO_HOST_TREE struct host_tree *t = NULL;
    int rc = recipe_files_open(&t, f, cancel, e);
    if (rc == 0)
        rc = host_tree_read_all(t, e);
    return rc < 0 ? rc : host_tree_digest(t, out, e);
}

int recipe_read_files(struct recipe *r, const struct cancel *cancel, struct err *e)
{
    for (size_t i = 0; i < r->step_count; i++) {
        struct recipe_files *f = r->steps[i].files;
        if (!f || !f->path)
            continue;
        int rc = f->source == RECIPE_SOURCE_TARBALL ? hash_file(&f->content, f->path, cancel, e)
                                                    : hash_tree(&f->content, f, cancel, e);
        if (rc < 0) {
            if (e->class == ERR_LIMIT) /* more than a recipe may lay */
                e->class = ERR_INPUT;
            err_in(e, "line %u of the recipe", r->steps[i].line);
            return blame_input(e, "paths in a recipe start from the recipe's own directory");
        }
        f->has_content = true;
    }
    return 0;
}

int recipe_tarball_open(struct source *out, struct oci_descriptor *d, const struct recipe_files *f,
                        struct err *e)
{
    AUTO_FD int fd = -1;
    *d = (struct oci_descriptor){.digest = f->content,
                                 .media_type = mem_strdup("application/x-tar")};
    int rc = d->media_type ? file_size(AT_FDCWD, f->path, &d->size, e) : err_nomem(e, "graft");
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, f->path, O_RDONLY, 0, e);
    if (rc == 0)
        rc = source_from_fd(out, fd, e);
    if (rc == 0)
        fd = -1;
    return rc;
}

/* Names, types and limits of what is in it, as a bake reads it; nothing is kept. */
static int check_tarball(const struct recipe_files *f, const struct cancel *c, struct err *e)
{
    AUTO_OCI_LAYER struct oci_layer *layer = NULL;
    struct source source = {0};
    struct oci_layer_options options = {.cancel = c};
    int rc = recipe_tarball_open(&source, &options.blob, f, e);
    if (rc == 0) {
        rc = oci_layer_read(&layer, &source, &options, e);
        source_close(&source);
    }
    oci_descriptor_fini(&options.blob);
    if (rc == -ERR_CORRUPT || rc == -ERR_UNSUPPORTED || rc == -ERR_LIMIT)
        e->class = ERR_INPUT;
    return rc < 0 ? err_in(e, "graft of %s", f->from) : 0;
}

static int check_tarballs(const struct recipe *r, const struct cancel *c, struct err *e)
{
    for (size_t i = 0; i < r->step_count; i++) {
        const struct recipe_files *f = r->steps[i].files;
        if (f && f->source == RECIPE_SOURCE_TARBALL && check_tarball(f, c, e) < 0)
            return err_in(e, "line %u of the recipe", r->steps[i].line);
    }
    return 0;
}

int recipe_inspect(struct json **canonical, const char *path, const struct cancel *c, struct err *e)
{
    AUTO_RECIPE struct recipe *r = NULL;
    int rc = recipe_load(&r, path, e);
    if (rc < 0)
        return rc;
    rc = recipe_read_files(r, c, e);
    if (rc == 0)
        rc = check_tarballs(r, c, e);
    if (rc < 0)
        return err_in(e, "%s", path);
    *canonical = recipe_canonical(r);
    return *canonical ? 0 : err_nomem(e, "recipe");
}
