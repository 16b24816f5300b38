/* SPDX-License-Identifier: MIT */
/*
 * How a program of a recipe is started in the guest: by which shell, with long text in a file, and
 * what is said of one that failed.
 */
#include <stdio.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/step/internal.h"
#include "bake/step/steps.h"

enum {
    INLINE_TEXT_MAX = 64 << 10, /* longer shell text goes into a file: Linux limits one argument
                                    to 128 KiB (MAX_ARG_STRLEN, linux/binfmts.h) */
    SHELL_PROBE_TIMEOUT_MS = 30000,
};

static const char script_path[] = AGENT_SCRATCH_DIR "/step.sh";

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

int find_shell(struct guest *g, const char **out, struct err *e)
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

int prepare_text(struct guest *g, struct command *c, const char *text, bool pipefail, struct err *e)
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

void use_context(struct command *c, const struct guest_context *context)
{
    static const char *const no_env[] = {NULL};
    c->exec.env = context->env ? (const char *const *)context->env : no_env;
    c->exec.workdir = context->workdir;
    c->exec.user = context->user;
}

int command_failed(const struct guest *g, const struct agent_result *r, const struct buf *tail,
                   uint64_t timeout_ms, struct err *e)
{
    char shown[TAIL_SHOWN_MAX + 1];
    show_tail(tail, shown, sizeof(shown));
    const char *separator = shown[0] ? "; its last output:\n" : "; it printed nothing";
    if (r->oom_kills > 0 && !r->timed_out) {
        /* Which one that was the agent cannot know: a shell tells of its child by a status. */
        err_set(e, ERR_STEP,
                "%s %d; killed by the guest's out-of-memory killer (%u of its programs): "
                "%llu MB of memory are too little%s%s",
                r->exited ? "exit status" : "signal", r->status, r->oom_kills,
                (unsigned long long)g->memory_mb, separator, shown);
        return err_hint(e, "raise memory_mb in the task's task.toml, or let the step need less");
    }
    if (r->timed_out)
        return err_set(e, ERR_STEP, "stopped after its time limit of %llu ms%s%s",
                       (unsigned long long)timeout_ms, separator, shown);
    if (!r->exited)
        return err_set(e, ERR_STEP, "killed by signal %d (%s)%s%s", r->status, strsignal(r->status),
                       separator, shown);
    return err_set(e, ERR_STEP, "exit status %d%s%s", r->status, separator, shown);
}
