/* SPDX-License-Identifier: MIT */
/*
 * The recipe inside the guest: steps one after another, start command, ready check. A step counts
 * as done only when the agent has reported exit status 0; anything else fails the bake with the
 * step, its command and the last lines that it printed.
 */
#include "bake/pipeline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"

enum {
    INLINE_TEXT_MAX = 64 << 10, /* longer shell text goes into a file: Linux limits one argument
                                    to 128 KiB (MAX_ARG_STRLEN, linux/binfmts.h) */
    SHELL_PROBE_TIMEOUT_MS = 30000,
    COMMAND_SHOWN_MAX = 120,
    TAIL_SHOWN_MAX = 1200,
};

static const char script_path[] = AGENT_SCRATCH_DIR "/step.sh";

/* ---- Output ---- */

struct capture {
    const struct output_tap *tap; /* may be NULL */
    struct buf tail;              /* the last bytes of both streams */
    struct buf line;              /* the line that is not complete yet */
};

static void capture_init(struct capture *c, const struct output_tap *tap)
{
    c->tap = tap;
    buf_init(&c->tail, LIMIT_OUTPUT_TAIL);
    buf_init(&c->line, 4096);
}

static void capture_fini(struct capture *c)
{
    buf_fini(&c->tail);
    buf_fini(&c->line);
}

static void emit_line(struct capture *c)
{
    if (c->tap && c->tap->line)
        c->tap->line(c->tap->ctx, buf_text(&c->line));
    buf_drop(&c->line, c->line.len);
}

static int keep_tail(struct buf *tail, const char *data, size_t len, struct err *e)
{
    if (len > tail->ceiling / 2) {
        data += len - tail->ceiling / 2;
        len = tail->ceiling / 2;
    }
    if (tail->len + len > tail->ceiling)
        buf_drop(tail, tail->ceiling / 2);
    return buf_add(tail, data, len, e);
}

static int capture_output(void *ctx, int stream UNUSED, const void *data, size_t len, struct err *e)
{
    struct capture *c = ctx;
    const char *at = data;
    int rc = keep_tail(&c->tail, at, len, e);
    for (size_t i = 0; rc == 0 && i < len; i++) {
        if (at[i] == '\n' || c->line.len + 1 >= c->line.ceiling)
            emit_line(c);
        if (at[i] != '\n')
            rc = buf_add(&c->line, at + i, 1, e);
    }
    return rc;
}

/* The end of the output as a text that fits an error, its control characters made harmless. */
static void show_tail(const struct buf *tail, char *out, size_t out_len)
{
    size_t from = tail->len > TAIL_SHOWN_MAX ? tail->len - TAIL_SHOWN_MAX : 0;
    size_t len = 0;
    for (size_t i = from; i < tail->len && len + 1 < out_len; i++)
        out[len++] = tail->data[i] ? (char)tail->data[i] : '?';
    while (len > 0 && out[len - 1] == '\n')
        len--;
    out[len] = 0;
    text_make_harmless(out);
}

static void show_command(const char *text, char *out, size_t out_len)
{
    size_t len = strcspn(text, "\n");
    bool cut = text[len] != 0 || len > COMMAND_SHOWN_MAX;
    if (len > COMMAND_SHOWN_MAX)
        len = COMMAND_SHOWN_MAX;
    snprintf(out, out_len, "%.*s%s", (int)len, text, cut ? " ..." : "");
}

/* ---- Commands ---- */

/* Whether a shell starts at all: one may be there and lack its loader. */
static int shell_runs(struct guest *g, const char *shell, bool *runs, struct err *e)
{
    const char *const argv[] = {shell, "-c", "exit 0", NULL};
    const char *const env[] = {NULL};
    struct agent_exec exec = {.argv = argv, .env = env, .timeout_ms = SHELL_PROBE_TIMEOUT_MS};
    struct agent_result result;
    int rc = agent_run(g->agent, &exec, NULL, NULL, &result, e);
    *runs = rc == 0 && result.exited && result.status == 0;
    return rc == -ERR_STEP ? 0 : rc;
}

static int find_shell(struct guest *g, const char **out, struct err *e)
{
    static const char *const shells[] = {"/bin/bash", "/bin/sh"};
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        bool runs = false;
        int rc = shell_runs(g, shells[i], &runs, e);
        if (rc < 0)
            return rc;
        if (runs) {
            *out = shells[i];
            return 0;
        }
    }
    err_set(e, ERR_STEP, "the image has no working shell: neither /bin/bash nor /bin/sh starts");
    return err_hint(e, "give the step as a list of arguments, or use an image with a shell");
}

struct command {
    const char *argv[6];
    struct agent_exec exec;
};

/* Prepares shell text; `text` must outlive the command. */
static int prepare_text(struct guest *g, struct command *c, const char *text, bool pipefail,
                        struct err *e)
{
    const char *shell = NULL;
    int rc = find_shell(g, &shell, e);
    if (rc < 0)
        return rc;
    size_t n = 0;
    c->argv[n++] = shell;
    if (pipefail) {
        c->argv[n++] = "-o";
        c->argv[n++] = "pipefail";
    }
    size_t len = strlen(text);
    if (len > INLINE_TEXT_MAX) {
        rc = agent_put(g->agent, script_path, 0755, text, len, e);
        if (rc < 0)
            return rc;
        c->argv[n++] = script_path;
    } else {
        c->argv[n++] = "-c";
        c->argv[n++] = text;
    }
    c->argv[n] = NULL;
    c->exec.argv = c->argv;
    return 0;
}

static void use_context(struct command *c, const struct guest_context *context)
{
    static const char *const no_env[] = {NULL};
    c->exec.env = context->env ? (const char *const *)context->env : no_env;
    c->exec.workdir = context->workdir;
    c->exec.user = context->user;
}

static int command_failed(const struct agent_result *r, const struct buf *tail, uint64_t timeout_ms,
                          struct err *e)
{
    char shown[TAIL_SHOWN_MAX + 1];
    show_tail(tail, shown, sizeof(shown));
    const char *separator = shown[0] ? "; its last output:\n" : "; it printed nothing";
    if (r->timed_out)
        return err_set(e, ERR_STEP, "stopped after its time limit of %llu ms%s%s",
                       (unsigned long long)timeout_ms, separator, shown);
    if (!r->exited)
        return err_set(e, ERR_STEP, "killed by signal %d (%s)%s%s", r->status, strsignal(r->status),
                       separator, shown);
    return err_set(e, ERR_STEP, "exit status %d%s%s", r->status, separator, shown);
}

/* ---- Steps ---- */

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

static int run_command(struct guest *g, const struct recipe *r, const struct recipe_step *step,
                       const struct guest_context *context, const struct output_tap *tap,
                       struct err *e)
{
    struct command c = {.exec = {.timeout_ms = (int64_t)step->timeout_ms}};
    struct capture capture;
    capture_init(&capture, tap);
    struct agent_result result = {0};
    int rc = 0;
    if (step->argv)
        c.exec.argv = (const char *const *)step->argv;
    else
        rc = prepare_text(g, &c, step->text, r->pipefail, e);
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, capture_output, &capture, &result, e);
    if (rc == 0 && capture.line.len > 0)
        emit_line(&capture);
    if (rc == 0 && (!result.exited || result.status != 0 || result.timed_out))
        rc = command_failed(&result, &capture.tail, step->timeout_ms, e);
    capture_fini(&capture);
    return rc;
}

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

static int set_workdir(struct guest *g, struct guest_context *context, const char *path,
                       struct err *e)
{
    AUTO_FREE char *joined = NULL;
    int rc = join_workdir(&joined, context->workdir, path, e);
    if (rc == 0)
        rc = agent_make_dirs(g->agent, joined, 0755, e);
    if (rc < 0)
        return rc;
    free(context->workdir);
    context->workdir = MOVE(joined);
    return 0;
}

static int run_step(struct guest *g, const struct recipe *r, const struct recipe_step *step,
                    struct guest_context *context, const struct output_tap *tap, struct err *e)
{
    int rc = 0;
    switch (step->kind) {
    case RECIPE_RUN: {
        struct guest_context own = {0};
        rc = copy_context(&own, context, step, e);
        if (rc == 0)
            rc = run_command(g, r, step, &own, tap, e);
        guest_context_fini(&own);
        return rc;
    }
    case RECIPE_ENV:
        for (size_t i = 0; rc == 0 && i < step->env_count; i++)
            rc = guest_context_set(context, step->env[i].name, step->env[i].value, e);
        return rc;
    case RECIPE_WORKDIR:
        return set_workdir(g, context, step->text, e);
    case RECIPE_USER: {
        char *user = mem_strdup(step->text);
        if (!user)
            return err_nomem(e, "step");
        free(context->user);
        context->user = user;
        return 0;
    }
    }
    return err_set(e, ERR_INPUT, "unknown kind of step");
}

static const char *step_text(const struct recipe_step *step)
{
    if (step->text)
        return step->text;
    return step->argv ? step->argv[0] : "env";
}

int guest_run_steps(struct guest *g, const struct recipe *r, struct guest_context *context,
                    const struct output_tap *tap, struct err *e)
{
    for (size_t i = 0; i < r->step_count; i++) {
        int rc = cancel_check(g->room->cancel, e);
        if (rc == 0)
            rc = run_step(g, r, &r->steps[i], context, tap, e);
        if (rc < 0) {
            char command[COMMAND_SHOWN_MAX + 8];
            show_command(step_text(&r->steps[i]), command, sizeof(command));
            return err_in(e, "step %zu of %zu (line %u: %s)", i + 1, r->step_count,
                          r->steps[i].line, command);
        }
    }
    return 0;
}

/* ---- Start and ready ---- */

int guest_start(struct guest *g, const struct recipe *r, const struct guest_context *context,
                uint64_t *process, struct err *e)
{
    *process = 0;
    if (!r->start)
        return 0;
    struct command c = {.exec = {.detach = true}};
    int rc = prepare_text(g, &c, r->start, false, e);
    struct agent_result result = {0};
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, NULL, NULL, &result, e);
    if (rc < 0)
        return err_in(e, "start command");
    *process = result.id;
    return 0;
}

/* Fails when the start command has ended with a failure; an end with status 0 is fine: it may have
 * left a daemon behind. */
static int check_started(struct guest *g, uint64_t process, struct err *e)
{
    if (process == 0)
        return 0;
    AUTO_BUF struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    bool running = false;
    struct agent_result result = {0};
    int rc = agent_process(g->agent, process, &running, &result, &tail, e);
    if (rc < 0 || running || (result.exited && result.status == 0))
        return rc;
    command_failed(&result, &tail, 0, e);
    return err_in(e, "start command ended before it was ready");
}

/* One try of the ready check. *passed; what it printed goes to `tail`. */
static int try_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, bool *passed, struct buf *tail,
                     struct err *e)
{
    *passed = false;
    if (ready->kind == RECIPE_READY_PORT)
        return agent_probe_port(g->agent, ready->port, (int64_t)ready->try_timeout_ms, passed, e);
    struct command c = {.exec = {.timeout_ms = (int64_t)ready->try_timeout_ms}};
    struct capture capture;
    capture_init(&capture, NULL);
    struct agent_result result = {0};
    int rc = prepare_text(g, &c, ready->command, false, e);
    use_context(&c, context);
    if (rc == 0)
        rc = agent_run(g->agent, &c.exec, capture_output, &capture, &result, e);
    *passed = rc == 0 && result.exited && result.status == 0 && !result.timed_out;
    buf_drop(tail, tail->len);
    if (rc == 0)
        rc = buf_add(tail, capture.tail.data, capture.tail.len, e);
    capture_fini(&capture);
    return rc;
}

static int not_ready(struct guest *g, const struct recipe_ready *ready, uint64_t process,
                     const struct buf *tail, struct err *e)
{
    char shown[TAIL_SHOWN_MAX + 1];
    show_tail(tail, shown, sizeof(shown));
    char what[COMMAND_SHOWN_MAX + 8];
    if (ready->kind == RECIPE_READY_PORT)
        snprintf(what, sizeof(what), "port %u", ready->port);
    else
        show_command(ready->command, what, sizeof(what));
    AUTO_BUF struct buf start_tail;
    buf_init(&start_tail, LIMIT_OUTPUT_TAIL);
    bool running = false;
    struct agent_result result = {0};
    struct err ignored = ERR_INIT;
    if (process != 0)
        (void)!agent_process(g->agent, process, &running, &result, &start_tail, &ignored);
    char start_shown[TAIL_SHOWN_MAX / 2];
    show_tail(&start_tail, start_shown, sizeof(start_shown));
    err_set(e, ERR_STEP, "ready check (%s) has not passed within %llu ms%s%s%s%s", what,
            (unsigned long long)ready->timeout_ms, shown[0] ? "; its last output:\n" : "", shown,
            start_shown[0] ? "\nthe start command printed:\n" : "", start_shown);
    return err_hint(e, "see what the start command needs, or raise ready.timeout in the recipe");
}

int guest_wait_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, uint64_t process, struct err *e)
{
    AUTO_BUF struct buf tail;
    buf_init(&tail, LIMIT_OUTPUT_TAIL);
    int64_t deadline = clock_ms() + (int64_t)ready->timeout_ms;
    for (;;) {
        bool passed = ready->kind == RECIPE_READY_NONE;
        int rc = passed ? 0 : try_ready(g, ready, context, &passed, &tail, e);
        if (rc == 0)
            rc = check_started(g, process, e);
        if (rc < 0 || passed)
            return rc < 0 ? err_in(e, "ready check") : 0;
        if (clock_ms() >= deadline)
            return not_ready(g, ready, process, &tail, e);
        rc = cancel_sleep_ms(g->room->cancel, (long)ready->interval_ms, e);
        if (rc < 0)
            return rc;
    }
}
