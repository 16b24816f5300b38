/* SPDX-License-Identifier: MIT */
/*
 * Registration: the local catalog always, a template server when one is set. The server builds from
 * the task's image with the recipe's steps; its alias is the catalog's.
 */

#include <stdlib.h>
#include <string.h>

#include "bake/bake.h"
#include "bake/image/image.h"
#include "bake/push.h"
#include "bake/run/events.h"
#include "bake/run/run.h"
#include "bake/smoke.h"
#include "bake/template.h"
#include "bake/template/record.h"
#include "base/buf.h"
#include "base/mem.h"

/* Steps in the server's terms. Argument lists are owned, and so are the texts made for them; other
 * strings in them are the recipe's. */
struct server_steps {
    struct e2b_step *steps;
    size_t count;
    size_t capacity;
    char **texts;
    size_t text_count;
    size_t text_capacity;
};

static void server_steps_fini(struct server_steps *s)
{
    for (size_t i = 0; i < s->count; i++) {
        const char **args;
        memcpy(&args, &s->steps[i].args, sizeof(args));
        free(args);
    }
    free(s->steps);
    for (size_t i = 0; i < s->text_count; i++)
        free(s->texts[i]);
    free(s->texts);
}

/* Adds a step with up to two arguments; `second` NULL: one. */
static int add_step(struct server_steps *s, const char *type, const char *first, const char *second,
                    struct err *e)
{
    int rc = mem_grow(&s->steps, &s->capacity, s->count + 1, sizeof(*s->steps), e);
    const char **args = rc == 0 ? mem_array(3, sizeof(*args)) : NULL;
    if (!args)
        return err_nomem(e, "server steps");
    args[0] = first;
    args[1] = second;
    s->steps[s->count++] = (struct e2b_step){.type = type, .args = args};
    return 0;
}

/* Appends a word in single quotes, as sh reads it. */
static int add_quoted(struct buf *b, const char *word, struct err *e)
{
    int rc = buf_add_text(b, "'", e);
    for (; rc == 0 && *word; word++)
        rc = *word == '\'' ? buf_add_text(b, "'\\''", e) : buf_add(b, word, 1, e);
    return rc < 0 ? rc : buf_add_text(b, "'", e);
}

/* The server knows no environment or directory of a single step: the shell text sets them. */
static int step_text(char **out, const struct recipe_step *step, struct err *e)
{
    AUTO_BUF struct buf b;
    buf_init(&b, LIMIT_RECIPE);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < step->env_count; i++) {
        rc = buf_printf(&b, e, "export %s=", step->env[i].name);
        if (rc == 0)
            rc = add_quoted(&b, step->env[i].value, e);
        if (rc == 0)
            rc = buf_add_text(&b, "; ", e);
    }
    if (rc == 0 && step->workdir) {
        rc = buf_add_text(&b, "cd ", e);
        if (rc == 0)
            rc = add_quoted(&b, step->workdir, e);
        if (rc == 0)
            rc = buf_add_text(&b, " || exit 1; ", e);
    }
    if (rc == 0)
        rc = buf_add_text(&b, step->text, e);
    if (rc < 0)
        return rc;
    *out = buf_take(&b);
    return *out ? 0 : err_nomem(e, "server steps");
}

/* What a server's steps have no words for. */
static int refuse_step(const struct recipe_step *step, const char *what, struct err *e)
{
    err_set(e, ERR_UNSUPPORTED, "line %u: %s", step->line, what);
    return err_hint(
        e, "servers build from an image by RUN, ENV, WORKDIR and USER alone: let them begin "
           "with the disk that was baked here (--push HOST/NAME)");
}

static int add_run(struct server_steps *s, const struct recipe_step *step, struct err *e)
{
    if (!step->text) {
        err_set(e, ERR_UNSUPPORTED, "line %u: a step given as a list of arguments", step->line);
        return err_hint(e, "the template server runs shell text only: write the step as text");
    }
    if (step->secret_count > 0)
        return refuse_step(step, "a step with secrets", e);
    if (step->no_network)
        return refuse_step(step, "a step without network", e);
    if (step->env_count == 0 && !step->workdir)
        return add_step(s, "RUN", step->text, step->user, e);
    int rc = mem_grow(&s->texts, &s->text_capacity, s->text_count + 1, sizeof(*s->texts), e);
    char *text = NULL;
    if (rc == 0)
        rc = step_text(&text, step, e);
    if (rc < 0)
        return rc;
    s->texts[s->text_count++] = text;
    return add_step(s, "RUN", text, step->user, e);
}

static int add_recipe_step(struct server_steps *s, const struct recipe_step *step, struct err *e)
{
    int rc = 0;
    switch (step->kind) {
    case RECIPE_RUN:
        return add_run(s, step, e);
    case RECIPE_ENV:
        for (size_t i = 0; rc == 0 && i < step->env_count; i++)
            rc = add_step(s, "ENV", step->env[i].name, step->env[i].value, e);
        return rc;
    case RECIPE_WORKDIR:
        return add_step(s, "WORKDIR", step->text, NULL, e);
    case RECIPE_USER:
        return add_step(s, "USER", step->text, NULL, e);
    case RECIPE_COPY:
        return refuse_step(step, "a copy step", e);
    case RECIPE_GRAFT:
        return refuse_step(step, "a graft", e);
    }
    return err_set(e, ERR_UNSUPPORTED, "step of unknown kind");
}

static int make_steps(struct server_steps *s, const struct baking *b, struct err *e)
{
    /* The user first, said outright: servers differ in whom they start with. */
    const char *user = b->task->user ? b->task->user : "root";
    int rc = add_step(s, "USER", user, NULL, e);
    for (size_t i = 0; rc == 0 && i < b->task->env_count; i++)
        rc = add_step(s, "ENV", b->task->env[i].name, b->task->env[i].value, e);
    for (size_t i = 0; rc == 0 && i < b->recipe->step_count; i++)
        rc = add_recipe_step(s, &b->recipe->steps[i], e);
    return rc;
}

/* For e2b_template.verify. */
static int smoke_registered(void *ctx, const char *alias, struct err *e)
{
    struct baking *b = ctx;
    AUTO_FREE char *command = smoke_command(&b->recipe->ready);
    if (!command)
        return err_nomem(e, "ready check");
    struct e2b_smoke smoke = {.alias = alias, .command = command};
    struct e2b_smoke_result result;
    if (e2b_smoke(b->run->server, &smoke, &result, e) < 0)
        return err_in(e, "trying it out (%s)", smoke_stage_name(result.stage));
    baking_output(b, "tried out in a sandbox");
    return 0;
}

static int server_register(struct baking *b, const struct template *t, bool replace, struct err *e)
{
    struct server_steps steps = {0};
    struct e2b_result result = {0};
    char key[DIGEST_TEXT_MAX];
    bool from_push = b->result->pushed && b->run->options->builder != BUILDER_SERVER;
    if (!from_push && image_is_local(b->image)) {
        err_set(e, ERR_UNSUPPORTED, "template server: it cannot read %s", b->task->image);
        return err_hint(e, "push the image to a registry that the server reaches, or use --push");
    }
    int rc = from_push ? 0 : make_steps(&steps, b, e);
    if (rc == 0) {
        const struct recipe *recipe = b->recipe;
        struct e2b_template wanted = {
            .alias = t->alias,
            .from_image = from_push ? b->result->pushed : b->task->image,
            .steps = steps.steps,
            .step_count = steps.count,
            .start_command = recipe->start,
            .ready_command =
                recipe->ready.kind == RECIPE_READY_COMMAND ? recipe->ready.command : NULL,
            .cpus = t->cpus,
            .memory_mb = t->memory_mb,
            .force = replace,
            .revision = digest_hex(&t->key, key),
            .verify = b->run->options->smoke ? smoke_registered : NULL,
            .verify_ctx = b,
        };
        rc = e2b_register(b->run->server, &wanted, baking_output, b, &result, e);
    }
    e2b_result_fini(&result);
    server_steps_fini(&steps);
    return rc < 0 ? err_in(e, "registering at the template server") : 0;
}

static int push_disk(struct baking *b, const struct template *t, struct err *e)
{
    struct push_report report;
    int rc = push_template(b->run->push, t, b->run->options->push_to, &report, e);
    if (rc == 0 && !b->result->pushed) /* else: this is another try */
        b->result->pushed = MOVE(report.reference);
    push_report_fini(&report);
    return rc;
}

/* True if the alias stood for a template of other inputs: an image moved under its tag keeps it. */
static bool has_moved_on(struct baking *b, const struct template *t)
{
    struct err ignored = ERR_INIT;
    AUTO_TEMPLATE struct template *old = NULL;
    return template_load(&old, b->run->store, t->alias, &ignored) == 0 &&
           strcmp(old->alias, t->alias) == 0 && !digest_equal(&old->key, &t->key);
}

/*
 * The catalog is last where the server has an older template: until it has the new one, the next run
 * must see that there is something to replace.
 */
int register_template(struct baking *b, const struct template *t, struct err *e)
{
    bool moved = b->run->server && has_moved_on(b, t);
    int rc = moved ? 0 : catalog_put(b->run->store, t->alias, t->task, &t->key, &t->record, e);
    if (rc == 0 && b->run->push)
        rc = push_disk(b, t, e);
    if (rc == 0 && b->run->server)
        rc = server_register(b, t, moved || b->run->options->force, e);
    if (rc == 0 && moved)
        rc = catalog_put(b->run->store, t->alias, t->task, &t->key, &t->record, e);
    return rc;
}
