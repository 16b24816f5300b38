/* SPDX-License-Identifier: MIT */
/*
 * One trial, as Harbor's oracle agent and verifier do it: /solution, then solve.sh, whose exit status
 * decides nothing; /tests, then test.sh; then the reward, from /logs/verifier. The tests come into the
 * guest when the solution is done. What solve.sh left running runs on while the tests do.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/channel.h"
#include "bake/golden.h"
#include "bake/golden/internal.h"
#include "bake/guest/guest.h"
#include "bake/step/context.h"
#include "bake/template/copy.h"
#include "bake/vm.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "manifests/manifest.h"

enum {
    RESTORE_TRIES = 2,
    TOOL_TIMEOUT_MS = 120000, /* ln, rm */
    SHOWN_MAX = 1200
};

static const char agent_logs[] = "/logs/agent";
static const char verifier_logs[] = "/logs/verifier";
static const char reward_text_path[] = "/logs/verifier/reward.txt";
static const char reward_json_path[] = "/logs/verifier/reward.json";

/* A script of the trial. */
struct script {
    const char *from;   /* below the task's directory */
    const char *name;   /* in it */
    const char *to;     /* in the guest */
    const char *output; /* file of the host */
    const struct trial_script *said;
    struct golden_script *result;
};

struct trial {
    const struct golden_task *task;
    struct golden_result *result;
    struct template_copy copy;
    struct golden_output output; /* of the script that ran last */
};

/* ---- Variables ---- */

const char *golden_variable(const struct golden_options *o, const struct trial_variable *v)
{
    size_t len = v->host ? strlen(v->host) : 0;
    for (size_t i = o->env_count; v->host && i > 0; i--) { /* the last one counts */
        const char *given = o->env[i - 1];
        if (strncmp(given, v->host, len) == 0 && given[len] == '=')
            return given + len + 1;
    }
    return v->value;
}

int golden_check_variables(const struct golden_options *o, const struct trial_script *s,
                           const char *name, struct err *e)
{
    for (size_t i = 0; i < s->env_count; i++) {
        if (golden_variable(o, &s->env[i]))
            continue;
        err_set(e, ERR_INPUT, "%s needs the variable %s", name, s->env[i].host);
        return err_hint(e, "give it with --env %s, or leave the task out (--exclude)",
                        s->env[i].host);
    }
    return 0;
}

/* Those of the template, then what task.toml leaves to the host, then the script's own. */
static int make_context(struct guest_context *c, const struct trial *t, const struct script *s,
                        struct err *e)
{
    const struct golden_task *task = t->task;
    int rc = 0;
    for (size_t i = 0; rc == 0 && task->template->env[i]; i++)
        rc = guest_context_set_pair(c, task->template->env[i], e);
    for (size_t i = 0; rc == 0 && i < task->trial->env_count; i++) {
        const struct trial_variable *v = &task->trial->env[i];
        const char *value = v->host ? golden_variable(task->options, v) : NULL;
        if (value)
            rc = guest_context_set(c, v->name, value, e);
    }
    if (rc == 0)
        rc = golden_check_variables(task->options, s->said, s->name, e);
    if (rc == 0 && s->said == &task->trial->solve)
        rc = guest_context_set(c, "DEBIAN_FRONTEND", "noninteractive", e);
    for (size_t i = 0; rc == 0 && i < s->said->env_count; i++) {
        const struct trial_variable *v = &s->said->env[i];
        rc = guest_context_set(c, v->name, golden_variable(task->options, v), e);
    }
    return rc;
}

/* ---- Files ---- */

static int make_dir(void *ctx, const char *path, uint32_t mode, struct err *e)
{
    struct trial *t = ctx;
    return agent_make_dirs(t->copy.guest->agent, path, mode, e);
}

static int put(void *ctx, const char *path, uint32_t mode, const void *data, size_t len,
               struct err *e)
{
    struct trial *t = ctx;
    int rc = cancel_check(t->task->room->cancel, e);
    return rc < 0 ? rc : agent_put(t->copy.guest->agent, path, mode, data, len, e);
}

/* Runs a tool of the image as root. */
static int run_tool(struct trial *t, const char *const *argv, struct err *e)
{
    struct agent_exec exec = {.argv = argv,
                              .env = (const char *const *)t->task->template->env,
                              .timeout_ms = TOOL_TIMEOUT_MS};
    struct agent_result end = {0};
    int rc = agent_run(t->copy.guest->agent, &exec, NULL, NULL, &end, e);
    if (rc == 0 && (!end.exited || end.status != 0))
        rc = err_set(e, ERR_STEP, "the image's own %s failed", argv[0]);
    return rc;
}

static int put_link(void *ctx, const char *path, const char *target, struct err *e)
{
    const char *const argv[] = {"ln", "-sfn", "--", target, path, NULL};
    int rc = run_tool(ctx, argv, e);
    return rc < 0 ? err_in(e, "making the link %s", path) : 0;
}

/* A harness mounts these directories, so they are there and anyone may write to them. */
static int make_logs(struct trial *t, struct err *e)
{
    int rc = agent_make_dirs(t->copy.guest->agent, "/logs", 0755, e);
    if (rc == 0)
        rc = agent_make_dirs(t->copy.guest->agent, agent_logs, 0777, e);
    if (rc == 0)
        rc = agent_make_dirs(t->copy.guest->agent, verifier_logs, 0777, e);
    return rc;
}

/* Whether there is anything of that name that can be read as a file, whatever its size. */
static int probe(struct trial *t, const char *path, bool *there, struct err *e)
{
    AUTO_BUF struct buf data;
    buf_init(&data, GOLDEN_REWARD_MAX);
    struct err why = ERR_INIT;
    int rc = agent_get(t->copy.guest->agent, path, &data, &why);
    *there = rc != -ERR_NOTFOUND;
    if (rc < 0 && rc != -ERR_NOTFOUND && rc != -ERR_STEP && rc != -ERR_LIMIT) {
        *e = why;
        return rc;
    }
    return 0;
}

/* A reward that the image or the solution left is none. */
static int drop_old_rewards(struct trial *t, struct err *e)
{
    bool text = false;
    bool json = false;
    int rc = probe(t, reward_text_path, &text, e);
    if (rc == 0)
        rc = probe(t, reward_json_path, &json, e);
    if (rc < 0 || (!text && !json))
        return rc;
    const char *const argv[] = {"rm", "-rf", "--", reward_text_path, reward_json_path, NULL};
    rc = run_tool(t, argv, e);
    return rc < 0 ? err_in(e, "removing a reward that was there before the tests") : 0;
}

/* ---- Scripts ---- */

/* Whether the script names its interpreter. */
static int has_interpreter(const char *path, bool *out, struct err *e)
{
    AUTO_FD int fd = -1;
    char start[2] = {0};
    uint64_t size = 0;
    int rc = file_size(AT_FDCWD, path, &size, e);
    if (rc == 0)
        rc = file_open(&fd, AT_FDCWD, path, O_RDONLY, 0, e);
    if (rc == 0 && size >= sizeof(start))
        rc = file_pread_full(fd, start, sizeof(start), 0, e);
    /* What is no text, a compiled program, needs none. */
    *out = (start[0] == '#' && start[1] == '!') || start[0] == 0x7f;
    return rc;
}

/* Without an interpreter the shell that a harness calls it from takes it: bash, where there is
 * one. */
static int run_script(struct trial *t, const struct script *s, struct agent_exec *exec,
                      struct err *e)
{
    char path[64];
    snprintf(path, sizeof(path), "%s/%s", s->to, s->name);
    AUTO_FREE char *host = mem_printf("%s/%s/%s", t->task->directory, s->from, s->name);
    bool direct = false;
    int rc = host ? has_interpreter(host, &direct, e) : err_nomem(e, "path");
    static const char *const shells[] = {"/bin/bash", "/bin/sh"};
    size_t n = 0;
    while (rc == 0) {
        const char *const with_shell[] = {shells[n], path, NULL};
        const char *const alone[] = {path, NULL};
        exec->argv = direct ? alone : with_shell;
        rc = agent_run(t->copy.guest->agent, exec, golden_output_add, &t->output, &s->result->end,
                       e);
        struct err ignored = ERR_INIT;
        if (rc != -ERR_STEP || direct || ++n == ARRAY_LEN(shells) ||
            vm_check(t->copy.guest->vm, &ignored) < 0)
            break;
        rc = 0; /* that shell does not start */
    }
    return rc;
}

static int prepare_script(struct trial *t, const struct script *s, struct err *e)
{
    const struct golden_target target = {
        .ctx = t, .make_dir = make_dir, .put = put, .link = put_link};
    AUTO_FREE char *from = mem_printf("%s/%s", t->task->directory, s->from);
    if (!from)
        return err_nomem(e, "path");
    int rc = golden_put_tree(&target, from, s->to, s->name, e);
    if (rc == 0) {
        golden_output_fini(&t->output);
        rc = golden_output_open(&t->output, t->result->output, s->output, e);
    }
    return rc;
}

static int do_script(struct trial *t, const struct script *s, struct err *e)
{
    const struct golden_options *o = t->task->options;
    struct guest_context context = {0};
    int rc = prepare_script(t, s, e);
    if (rc == 0)
        rc = make_context(&context, t, s, e);
    uint64_t factor = o->timeout_multiplier > 0 ? o->timeout_multiplier : 1;
    s->result->limit_ms = (int64_t)(s->said->timeout_ms * factor);
    static const char *const no_env[] = {NULL};
    struct agent_exec exec = {
        .env = context.env ? (const char *const *)context.env : no_env,
        .workdir = t->task->template->workdir,
        .user = s->said->user ? s->said->user : t->task->template->user,
        .timeout_ms = s->result->limit_ms,
    };
    int64_t start_ms = clock_ms();
    if (rc == 0)
        rc = run_script(t, s, &exec, e);
    guest_context_fini(&context);
    s->result->wall_ms = clock_ms() - start_ms;
    s->result->ran = rc == 0;
    struct err ignored = ERR_INIT;
    int ended = golden_output_end(&t->output, rc == 0 ? e : &ignored);
    return rc < 0 ? err_in(e, "%s", s->name) : ended;
}

/* ---- The verdict ---- */

/* *found with the text of a reward file. What is there and is no good is an error. */
static int get_reward(struct trial *t, const char *path, struct buf *text, bool *found,
                      struct err *e)
{
    buf_init(text, GOLDEN_REWARD_MAX);
    int rc = agent_get(t->copy.guest->agent, path, text, e);
    *found = rc == 0;
    if (rc == -ERR_NOTFOUND) {
        err_clear(e);
        return 0;
    }
    return rc;
}

static int read_reward(struct trial *t, struct err *e)
{
    struct golden_result *r = t->result;
    AUTO_BUF struct buf json;
    AUTO_BUF struct buf text;
    bool found = false;
    bool has_number = false;
    buf_init(&text, 0);
    int rc = get_reward(t, reward_json_path, &json, &found, e);
    if (rc == 0 && found)
        rc = golden_reward_json(&r->reward, &has_number, json.data, json.len, e);
    if (rc == 0 && has_number)
        r->source = GOLDEN_REWARD_JSON;
    if (rc < 0 || has_number)
        return rc;
    bool other = found;
    rc = get_reward(t, reward_text_path, &text, &found, e);
    if (rc == 0 && found) {
        rc = golden_reward_text(&r->reward, text.data, text.len, e);
        r->source = rc == 0 ? GOLDEN_REWARD_TEXT : GOLDEN_NO_REWARD;
        return rc;
    }
    if (rc == 0 && other)
        return err_set(e, ERR_CORRUPT, "reward.json has no number 'reward'");
    if (rc == 0) {
        r->source = GOLDEN_STATUS;
        r->reward = r->test.end.exited && r->test.end.status == 0 ? 1 : 0;
    }
    return rc;
}

static void describe_end(const struct golden_script *s, const char *name, char *text, size_t len)
{
    if (s->end.timed_out)
        snprintf(text, len, "%s was stopped after its time limit of %lld s", name,
                 (long long)s->limit_ms / 1000);
    else if (!s->end.exited)
        snprintf(text, len, "%s was killed by signal %d", name, s->end.status);
    else
        snprintf(text, len, "%s ended with exit status %d", name, s->end.status);
}

/* Why it failed: what the tests ended with, what the solution ended with unless that was well, and
 * the last words. */
static void explain(struct trial *t, enum err_class class, const char *what)
{
    struct golden_result *r = t->result;
    char solve[128] = "";
    char shown[SHOWN_MAX];
    if (r->solve.end.timed_out || !r->solve.end.exited || r->solve.end.status != 0)
        describe_end(&r->solve, "; solve.sh", solve, sizeof(solve));
    golden_output_show(&t->output, shown, sizeof(shown));
    err_set(&r->err, class, "%s%s%s%s", what, solve,
            shown[0] ? "; the tests' last output:\n" : "; the tests printed nothing", shown);
    r->outcome = GOLDEN_FAILED;
}

static int judge(struct trial *t, struct err *e)
{
    struct golden_result *r = t->result;
    char what[256];
    if (r->test.end.timed_out) {
        describe_end(&r->test, "test.sh", what, sizeof(what));
        explain(t, ERR_TIMEOUT, what);
        return 0;
    }
    struct err why = ERR_INIT;
    int rc = read_reward(t, &why);
    if (rc == -ERR_CORRUPT || rc == -ERR_LIMIT || rc == -ERR_STEP) {
        /* Of the guest's own doing, unless it is gone. */
        if (vm_check(t->copy.guest->vm, e) < 0)
            return -(int)e->class;
        snprintf(what, sizeof(what), "%.200s", why.text);
        explain(t, why.class, what);
        return 0;
    }
    if (rc < 0) {
        *e = why;
        return rc;
    }
    if (r->reward >= 1) {
        r->outcome = GOLDEN_PASSED;
        return 0;
    }
    if (r->source == GOLDEN_STATUS)
        describe_end(&r->test, "no reward was written, and test.sh", what, sizeof(what));
    else
        snprintf(what, sizeof(what), "the reward is %g", r->reward);
    explain(t, ERR_STEP, what);
    return 0;
}

/* ---- The whole ---- */

/* Nothing of the task has run in a copy that did not come up, so another one is tried. */
static int restore(struct trial *t, struct err *e)
{
    for (int left = RESTORE_TRIES - 1;; left--) {
        int rc = template_open_copy(&t->copy, t->task->template, t->task->room, e);
        if (left == 0 || (rc != -ERR_STEP && rc != -ERR_TIMEOUT))
            return rc;
        log_event(LOG_WARN, "bake", "task %s: restoring again: %s", t->result->task, e->text);
        template_copy_fini(&t->copy);
        err_clear(e);
    }
}

static int try_in(struct trial *t, struct err *e)
{
    const struct task_trial *said = t->task->trial;
    const struct script solve = {.from = "solution",
                                 .name = "solve.sh",
                                 .to = "/solution",
                                 .output = "solution.txt",
                                 .said = &said->solve,
                                 .result = &t->result->solve};
    const struct script test = {.from = "tests",
                                .name = "test.sh",
                                .to = "/tests",
                                .output = "tests.txt",
                                .said = &said->test,
                                .result = &t->result->test};
    int rc = make_logs(t, e);
    if (rc == 0)
        rc = do_script(t, &solve, e);
    if (rc == 0)
        rc = drop_old_rewards(t, e);
    if (rc == 0)
        rc = do_script(t, &test, e);
    return rc < 0 ? rc : judge(t, e);
}

int golden_try(const struct golden_task *task, struct golden_result *r, struct err *e)
{
    struct trial t = {.task = task, .result = r, .output = {.fd = -1}};
    int rc = file_make_dirs(AT_FDCWD, r->output, e);
    if (rc < 0)
        return err_in(e, "directory for the output");
    int64_t start_ms = clock_ms();
    rc = restore(&t, e);
    r->restore_ms = clock_ms() - start_ms;
    if (rc < 0)
        err_in(e, "restoring the template");
    else
        rc = try_in(&t, e);
    template_copy_fini(&t.copy);
    golden_output_fini(&t.output);
    return rc;
}
