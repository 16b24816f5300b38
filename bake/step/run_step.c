/* SPDX-License-Identifier: MIT */
/*
 * The recipe's steps inside the guest, one after another. A step counts as done only when the agent
 * has reported exit status 0; anything else fails the bake with the step, its command and the last
 * lines that it printed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/step/context.h"
#include "bake/step/internal.h"
#include "bake/step/steps.h"
#include "base/mem.h"

/* ---- Steps that change the context ---- */

/* Resolves `path` against the current directory; "." and ".." are taken out as text. */
static int join_workdir(char **out, const char *current, const char *path, struct err *e)
{
    AUTO_FREE char *all = path[0] == '/' ? mem_strdup(path) : mem_printf("%s/%s", current, path);
    char *clean = all ? mem_zalloc(strlen(all) + 2) : NULL;
    if (!clean)
        return err_nomem(e, "work directory");
    size_t len = 0;
    for (const char *at = all; *at;) {
        size_t part = strcspn(at, "/");
        if (part == 2 && strncmp(at, "..", 2) == 0) {
            while (len > 0 && clean[--len] != '/')
                ;
        } else if (part > 0 && !(part == 1 && at[0] == '.')) {
            clean[len++] = '/';
            memcpy(clean + len, at, part);
            len += part;
        }
        at += part;
        at += strspn(at, "/");
    }
    if (len == 0)
        clean[len++] = '/';
    clean[len] = 0;
    *out = clean;
    return 0;
}

static int set_text(char **field, char *text, struct err *e)
{
    if (!text)
        return err_nomem(e, "step");
    free(*field);
    *field = text;
    return 0;
}

int guest_skip_step(struct step_run *run, size_t index, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    struct guest_context *context = run->context;
    char *joined = NULL;
    int rc = 0;
    switch (step->kind) {
    case RECIPE_ENV:
        for (size_t i = 0; rc == 0 && i < step->env_count; i++)
            rc = guest_context_set(context, step->env[i].name, step->env[i].value, e);
        return rc;
    case RECIPE_WORKDIR:
        rc = join_workdir(&joined, context->workdir, step->text, e);
        return rc < 0 ? rc : set_text(&context->workdir, joined, e);
    case RECIPE_USER:
        return set_text(&context->user, mem_strdup(step->text), e);
    case RECIPE_RUN:
    case RECIPE_COPY:
    case RECIPE_GRAFT:
        break;
    }
    return 0;
}

/* ---- Steps ---- */

static int run_step(struct guest *g, struct step_run *run, size_t index, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    int rc = 0;
    switch (step->kind) {
    case RECIPE_RUN:
        return guest_run_program(g, run, index, e);
    case RECIPE_ENV:
    case RECIPE_USER:
        return guest_skip_step(run, index, e);
    case RECIPE_WORKDIR:
        rc = guest_skip_step(run, index, e);
        return rc < 0 ? rc : agent_make_dirs(g->agent, run->context->workdir, 0755, e);
    case RECIPE_COPY:
        return guest_lay_files(g, step->files, run->context->workdir, e);
    case RECIPE_GRAFT:
        return graft_lay(g, run->images, step->files, e);
    }
    return err_set(e, ERR_INPUT, "unknown kind of step");
}

/* What a step is called in an error. */
static const char *step_text(const struct recipe_step *step)
{
    if (step->text)
        return step->text;
    if (step->files)
        return step->files->from;
    return step->argv ? step->argv[0] : "env";
}

int guest_run_step(struct guest *g, struct step_run *run, size_t index, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    int rc = cancel_check(g->room->cancel, e);
    if (rc == 0)
        rc = run_step(g, run, index, e);
    if (rc == 0)
        return 0;
    char command[COMMAND_SHOWN_MAX + 8];
    show_command(step_text(step), command, sizeof(command));
    return err_in(e, "step %zu of %zu (line %u: %s)", index + 1, run->recipe->step_count,
                  step->line, command);
}

int guest_run_steps(struct guest *g, struct step_run *run, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < run->recipe->step_count; i++)
        rc = guest_run_step(g, run, i, e);
    return rc;
}
