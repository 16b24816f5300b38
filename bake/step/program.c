/* SPDX-License-Identifier: MIT */
/*
 * Run steps: a program with its environment and secrets, tried again where the recipe asks for it, its
 * output kept for the report of a later step. Secrets are laid before and gone after; a template in whose
 * disk one was found is not made.
 */
#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/recipe/secrets.h"
#include "bake/step/context.h"
#include "bake/step/internal.h"
#include "bake/step/steps.h"
#include "base/mem.h"

enum { EARLIER_SHOWN_MAX = 300, EARLIER_MAX = 600, BACKOFF_MAX_MS = 600 * 1000 };

static int copy_context(struct guest_context *to, const struct guest_context *from,
                        const struct recipe_step *step, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < from->env_count; i++)
        rc = guest_context_set_pair(to, from->env[i], e);
    for (size_t i = 0; rc == 0 && i < step->env_count; i++)
        rc = guest_context_set(to, step->env[i].name, step->env[i].value, e);
    if (rc < 0)
        return rc;
    to->workdir = mem_strdup(step->workdir ? step->workdir : from->workdir);
    to->user = mem_strdup(step->user ? step->user : from->user);
    return to->workdir && to->user ? 0 : err_nomem(e, "step");
}

/* ---- What earlier steps said ---- */

void step_run_fini(struct step_run *run)
{
    buf_fini(&run->earlier);
}

/* A step that passed may still be why a later one fails: a download that a pipeline hid. */
static int note_errors(struct step_run *run, size_t index, const struct buf *errors, struct err *e)
{
    if (errors->len == 0)
        return 0;
    char shown[EARLIER_SHOWN_MAX + 1];
    show_tail(errors, shown, sizeof(shown));
    AUTO_FREE char *note = mem_printf("\nstep %zu printed to stderr:\n%s", index + 1, shown);
    if (!note)
        return err_nomem(e, "step");
    if (run->earlier.ceiling == 0)
        buf_init(&run->earlier, 2 * EARLIER_MAX);
    return keep_tail(&run->earlier, note, strlen(note), e);
}

static int add_earlier(const struct step_run *run, struct err *e)
{
    enum err_class class = e->class;
    if (class != ERR_STEP || run->earlier.len == 0)
        return -(int)class;
    char before[ERR_TEXT_MAX];
    char hint[ERR_HINT_MAX];
    char notes[EARLIER_MAX + 1];
    memcpy(before, e->text, sizeof(before));
    memcpy(hint, e->hint, sizeof(hint));
    show_tail(&run->earlier, notes, sizeof(notes));
    err_set(e, class, "%s%s%s", before, notes[0] == '\n' ? "" : "\n...", notes);
    return hint[0] ? err_hint(e, "%s", hint) : -(int)class;
}

/* ---- Secrets ---- */

static int lay_secret(struct guest *g, const struct secret *s, const char *user, struct err *e)
{
    AUTO_AGENT_COPY struct agent_copy *c = NULL;
    AUTO_FREE char *path = mem_printf("%s/%s", AGENT_SECRETS_DIR, s->name);
    if (!path)
        return err_nomem(e, "secret");
    const struct agent_copy_target to = {.single = true, .to = path, .owner = user};
    const struct agent_copy_entry file = {
        .type = COPY_FILE, .path = "", .mode = 0400, .size = s->len};
    int rc = agent_copy_open(&c, g->agent, &to, e);
    if (rc == 0)
        rc = agent_copy_add(c, &file, e);
    if (rc == 0)
        rc = agent_copy_data(c, s->value, s->len, e);
    return rc < 0 ? rc : agent_copy_finish(c, e);
}

static int lay_secrets(struct guest *g, const struct step_run *run, const struct recipe_step *step,
                       struct guest_context *context, struct err *e)
{
    int rc = run->secrets || step->secret_count == 0
                 ? 0
                 : err_set(e, ERR_INPUT, "the step's secrets were not given");
    for (size_t i = 0; rc == 0 && i < step->secret_count; i++) {
        const struct recipe_secret *wanted = &step->secrets[i];
        const struct secret *s = secrets_find(run->secrets, wanted->name);
        rc = s ? lay_secret(g, s, context->user, e)
               : err_set(e, ERR_INPUT, "secret %s was not given", wanted->name);
        if (rc == 0 && wanted->env)
            rc = guest_context_set(context, wanted->env, s->value, e);
    }
    return rc;
}

/* After a step with secrets: what the agent had of them is gone, and the disk has none. */
static int forget_secrets(struct guest *g, const struct step_run *run, struct err *e)
{
    int rc = agent_forget(g->agent, e);
    if (rc == 0)
        rc = agent_sync(g->agent, false, e);
    return rc < 0 || !g->disk ? rc : guest_search_disk(g, run->secrets, e);
}

/* ---- Run steps ---- */

static void drop_context(struct guest_context *c)
{
    for (size_t i = 0; i < c->env_count; i++)
        explicit_bzero(c->env[i], strlen(c->env[i]));
    guest_context_fini(c);
}

static int run_once(struct guest *g, struct step_run *run, size_t index,
                    const struct guest_context *context, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    struct command c = {.exec = {.timeout_ms = (int64_t)step->timeout_ms,
                                 .apart = true,
                                 .alone = step->secret_count > 0 || step->retries > 0,
                                 .no_network = step->no_network}};
    struct capture capture;
    capture_init(&capture, run->tap, step->secret_count > 0 ? run->secrets : NULL);
    struct agent_result result = {0};
    int rc = 0;
    if (step->argv)
        c.exec.argv = (const char *const *)step->argv;
    else
        rc = prepare_text(g, &c, step->text, run->recipe->pipefail, e);
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, capture_output, &capture, &result, e);
    if (rc == 0)
        rc = capture_end(&capture, e);
    if (rc == 0 && (!result.exited || result.status != 0 || result.timed_out))
        rc = command_failed(g, &result, &capture.tail, step->timeout_ms, e);
    else if (rc == 0)
        rc = note_errors(run, index, &capture.errors, e);
    capture_fini(&capture);
    if (rc < 0)
        secret_mask_error(run->secrets, e);
    return rc;
}

static void tell_retry(const struct step_run *run, size_t index, uint64_t pause_ms,
                       const struct err *e)
{
    AUTO_FREE char *line =
        mem_printf("step %zu failed, and is tried again in %llu ms: %.*s", index + 1,
                   (unsigned long long)pause_ms, (int)strcspn(e->text, "\n"), e->text);
    if (line && run->tap && run->tap->line)
        run->tap->line(run->tap->ctx, line);
}

/* Tries again what failed in the guest, as often as the recipe says; the guest is as the failed try left
 * it. */
static int run_tries(struct guest *g, struct step_run *run, size_t index,
                     const struct guest_context *context, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    uint64_t pause_ms = step->backoff_ms;
    int rc = run_once(g, run, index, context, e);
    for (unsigned left = step->retries; rc == -ERR_STEP && left > 0; left--) {
        tell_retry(run, index, pause_ms, e);
        err_clear(e);
        rc = cancel_sleep_ms(g->room->cancel, (long)pause_ms, e);
        if (rc == 0)
            rc = run_once(g, run, index, context, e);
        pause_ms = pause_ms > BACKOFF_MAX_MS / 2 ? BACKOFF_MAX_MS : 2 * pause_ms;
    }
    return rc;
}

int guest_run_program(struct guest *g, struct step_run *run, size_t index, struct err *e)
{
    const struct recipe_step *step = &run->recipe->steps[index];
    struct guest_context own = {0};
    int rc = copy_context(&own, run->context, step, e);
    if (rc == 0)
        rc = lay_secrets(g, run, step, &own, e);
    if (rc == 0)
        rc = run_tries(g, run, index, &own, e);
    drop_context(&own);
    struct err ignored = ERR_INIT; /* the step's own failure is the one to tell */
    if (step->secret_count > 0 && forget_secrets(g, run, rc < 0 ? &ignored : e) < 0 && rc == 0)
        rc = -(int)e->class;
    return rc < 0 ? add_earlier(run, e) : 0;
}
