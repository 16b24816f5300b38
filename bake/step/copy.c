/* SPDX-License-Identifier: MIT */
/*
 * Copy steps: files of the host, laid in the guest by its agent. What is laid is what the template's key
 * speaks of, or the step fails: the files are hashed while they are sent.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/recipe/files.h"
#include "bake/recipe/host_tree.h"
#include "bake/step/steps.h"
#include "base/mem.h"

/* ---- Laying --------------------------------------------------------------------------------- */

static int send_bytes(void *self, const void *data, size_t len, struct err *e)
{
    return agent_copy_data(self, data, len, e);
}

static int lay_entry(struct agent_copy *c, struct host_tree *t, size_t n, struct err *e)
{
    static const enum agent_copy_type types[] = {[HOST_FILE] = COPY_FILE,
                                                 [HOST_DIRECTORY] = COPY_DIRECTORY,
                                                 [HOST_SYMLINK] = COPY_SYMLINK,
                                                 [HOST_LINK] = COPY_HARD_LINK};
    const struct host_entry *entry = &t->entries[n];
    const struct agent_copy_entry record = {
        .type = types[entry->type],
        .path = t->single ? "" : entry->path,
        .target = entry->type == HOST_LINK ? t->entries[entry->link].path : entry->target,
        .mode = entry->mode,
        .time = HOST_TREE_TIME,
        .size = entry->size,
    };
    int rc = agent_copy_add(c, &record, e);
    if (rc < 0 || entry->type != HOST_FILE)
        return rc;
    return host_tree_read(t, n, &(struct sink){.write = send_bytes, .self = c}, e);
}

/* Directories, the innermost first: each one gets its time after all that is in it. */
static int settle_directories(struct agent_copy *c, const struct host_tree *t, struct err *e)
{
    struct agent_copy_entry record = {.type = COPY_SETTLE, .time = HOST_TREE_TIME};
    int rc = 0;
    for (size_t i = t->count; rc == 0 && i > 0; i--) {
        if (t->entries[i - 1].type != HOST_DIRECTORY)
            continue;
        record.path = t->entries[i - 1].path;
        record.mode = t->entries[i - 1].mode;
        rc = agent_copy_add(c, &record, e);
    }
    if (rc < 0 || t->single)
        return rc;
    record.path = "";
    record.mode = t->root_mode;
    return agent_copy_add(c, &record, e);
}

static int check_content(const struct recipe_files *f, const struct host_tree *t, struct err *e)
{
    struct digest now;
    int rc = host_tree_digest(t, &now, e);
    if (rc < 0 || !f->has_content || digest_equal(&now, &f->content))
        return rc;
    err_set(e, ERR_STEP, "%s was changed since the bake began", f->path);
    return err_hint(e, "bake again: what is laid must be what the template's key says");
}

int guest_lay_files(struct guest *g, const struct recipe_files *f, const char *workdir,
                    struct err *e)
{
    AUTO_HOST_TREE struct host_tree *t = NULL;
    AUTO_AGENT_COPY struct agent_copy *c = NULL;
    AUTO_FREE char *to = f->to[0] == '/' ? mem_strdup(f->to) : mem_printf("%s/%s", workdir, f->to);
    if (!to)
        return err_nomem(e, "copy");
    int rc = recipe_files_open(&t, f, g->room->cancel, e);
    if (rc < 0)
        return rc;
    const struct agent_copy_target target = {.single = t->single,
                                             .to = to,
                                             .name = t->single ? t->entries[0].path : NULL,
                                             .owner = f->owner};
    rc = agent_copy_open(&c, g->agent, &target, e);
    for (size_t i = 0; rc == 0 && i < t->count; i++)
        rc = lay_entry(c, t, i, e);
    if (rc == 0)
        rc = settle_directories(c, t, e);
    if (rc == 0)
        rc = agent_copy_finish(c, e);
    if (rc == -ERR_NOTFOUND) /* a path of the guest: nobody's input is wrong */
        e->class = ERR_STEP;
    return rc < 0 ? -(int)e->class : check_content(f, t, e);
}
