/* SPDX-License-Identifier: MIT */
/*
 * Recipe providers: a user's own command says what a task is built from, and under which alias. What
 * a trainer looks up is the trainer's to know; so its code is asked, not imitated. The format of the
 * answers is in docs/formats/provider.md.
 */

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bake/recipe/files.h"
#include "bake/recipe/secrets.h"
#include "bake/run/provider.h"
#include "bake/run/run.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/proc.h"
#include "base/text.h"

enum { PROVIDER_TIMEOUT_MS = 30 * 60 * 1000, TAIL_LEN = 600, COMMANDS_MAX = 1000 };

#define PLACE "{}"

struct provider {
    const char *command; /* borrowed */
    struct json *all;    /* {task: answer}; NULL: asked task by task */
    const struct cancel *cancel;
};

/* ---- Asking -------------------------------------------------------------------------------- */

/* Runs the command text with sh; its output is JSON: one value, or one a line. */
static int ask(const char *command, const char *input, const struct cancel *cancel,
               struct json **out, struct err *e)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    AUTO_BUF struct buf answer;
    AUTO_BUF struct buf errors;
    buf_init(&answer, LIMIT_TASK_MANIFEST);
    buf_init(&errors, LIMIT_RECIPE);
    struct proc_io io = {.input = input,
                         .out = &answer,
                         .err_out = &errors,
                         .timeout_ms = PROVIDER_TIMEOUT_MS,
                         .cancel = cancel};
    int status = 0;
    int rc = proc_run(argv, &io, &status, e);
    if (rc < 0)
        return err_in(e, "recipe provider");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        const char *text = buf_text(&errors);
        size_t len = strlen(text);
        AUTO_FREE char *tail = mem_strdup(text + (len > TAIL_LEN ? len - TAIL_LEN : 0));
        err_set(e, ERR_INPUT, "recipe provider: the command ended with status %d\n%s",
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                tail ? text_make_harmless(tail) : "");
        return err_hint(e, "run it by hand: --recipe-from says which command it is");
    }
    AUTO_JSON struct json *list = json_new_array();
    struct err whole = ERR_INIT;
    struct json *one = NULL;
    if (json_parse(&one, answer.data, answer.len, "recipe provider's output", &whole) == 0) {
        *out = one;
        return 0;
    }
    const char *at = buf_text(&answer);
    for (size_t len; rc == 0 && *at; at += len + (at[len] != '\0')) {
        len = strcspn(at, "\n");
        if (strspn(at, " \t\r") >= len)
            continue;
        rc = json_parse(&one, at, len, "recipe provider's output", e);
        if (rc == 0)
            json_append(list, one);
    }
    if (rc < 0)
        return rc;
    *out = MOVE(list);
    return *out ? 0 : err_nomem(e, "recipe provider");
}

static int add_answer(struct json *all, const struct json *answer, struct err *e)
{
    const char *task;
    if (json_kind(answer) != JSON_KIND_OBJECT)
        return err_set(e, ERR_INPUT, "recipe provider: an answer is not a JSON object");
    int rc = json_get_string(answer, "task", &task, e);
    if (rc < 0)
        return err_in(e, "recipe provider");
    if (json_member(all, task))
        return err_set(e, ERR_INPUT, "recipe provider: two answers for task %.200s", task);
    json_set(all, task, json_clone(answer));
    return 0;
}

/* One line for each selected task: its name and its directory. */
static int describe_tasks(struct buf *out, const struct task_set *set, const bool *marks,
                          struct err *e)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < set->count; i++) {
        if (!marks[i])
            continue;
        AUTO_JSON struct json *line = json_new_object();
        AUTO_FREE char *text = NULL;
        json_set(line, "task", json_new_string(set->entries[i].name));
        if (set->entries[i].directory)
            json_set(line, "directory", json_new_string(set->entries[i].directory));
        rc = json_print(line, 0, &text, e);
        if (rc == 0)
            rc = buf_printf(out, e, "%s\n", text);
    }
    return rc;
}

int provider_open(struct provider **out, const struct provider_options *o, struct err *e)
{
    AUTO_PROVIDER struct provider *p = mem_zalloc(sizeof(*p));
    if (!p)
        return err_nomem(e, "recipe provider");
    p->command = o->command;
    p->cancel = o->cancel;
    if (strstr(o->command, PLACE)) {
        *out = MOVE(p);
        return 0;
    }
    AUTO_BUF struct buf input;
    AUTO_JSON struct json *answers = NULL;
    buf_init(&input, LIMIT_TASK_MANIFEST);
    int rc = describe_tasks(&input, o->set, o->marks, e);
    if (rc == 0)
        rc = ask(o->command, buf_text(&input), o->cancel, &answers, e);
    p->all = rc == 0 ? json_new_object() : NULL;
    if (rc == 0 && json_kind(answers) == JSON_KIND_OBJECT)
        rc = add_answer(p->all, answers, e);
    for (size_t i = 0; rc == 0 && i < json_length(answers); i++)
        rc = add_answer(p->all, json_element(answers, i), e);
    if (rc == 0)
        *out = MOVE(p);
    return rc;
}

void provider_free(struct provider *p)
{
    if (!p)
        return;
    json_free(p->all);
    free(p);
}

/* `text` in single quotes, as sh reads it. */
static int add_quoted(struct buf *b, const char *text, struct err *e)
{
    int rc = buf_add_text(b, "'", e);
    for (; rc == 0 && *text; text++)
        rc = *text == '\'' ? buf_add_text(b, "'\\''", e) : buf_add(b, text, 1, e);
    return rc < 0 ? rc : buf_add_text(b, "'", e);
}

/* The command with each {} replaced by the task's directory. */
static int ask_for_one(const struct provider *p, const struct task *task, struct json **out,
                       struct err *e)
{
    AUTO_BUF struct buf command;
    buf_init(&command, LIMIT_PATH * 16);
    int rc = 0;
    const char *at = p->command;
    for (const char *place; rc == 0 && (place = strstr(at, PLACE)); at = place + strlen(PLACE)) {
        rc = buf_add(&command, at, (size_t)(place - at), e);
        if (rc == 0)
            rc = add_quoted(&command, task->directory ? task->directory : task->name, e);
    }
    if (rc == 0)
        rc = buf_add_text(&command, at, e);
    if (rc == 0)
        rc = ask(buf_text(&command), NULL, p->cancel, out, e);
    if (rc == 0 && json_kind(*out) == JSON_KIND_ARRAY && json_length(*out) == 1) {
        struct json *only = json_clone(json_element(*out, 0));
        json_free(*out);
        *out = only;
    }
    if (rc == 0 && json_kind(*out) != JSON_KIND_OBJECT)
        rc = err_set(e, ERR_INPUT, "recipe provider: its answer is not one JSON object");
    return rc;
}

/* ---- Understanding ------------------------------------------------------------------------- */

static int add_commands(struct json *steps, const struct json *answer, const struct task *task,
                        struct err *e)
{
    struct json *commands;
    int rc = json_get_array(answer, "commands", &commands, e);
    if (rc == 0 && json_length(commands) > COMMANDS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d commands", COMMANDS_MAX);
    AUTO_FREE char *timeout = mem_printf("%" PRIu64, task->build_timeout_ms / 1000);
    for (size_t i = 0; rc == 0 && timeout && i < json_length(commands); i++) {
        const char *text = json_as_string(json_element(commands, i));
        struct json *step = json_new_object();
        if (text) {
            json_set(step, "run", json_new_string(text));
            json_set(step, "timeout", json_new_integer((int64_t)(task->build_timeout_ms / 1000)));
            json_append(steps, step);
            continue;
        }
        json_free(step);
        rc = err_set(e, ERR_INPUT, "'commands': element %zu is not a string", i + 1);
    }
    return rc < 0 || timeout ? rc : err_nomem(e, "recipe");
}

/* Steps as a recipe has them: what they may hold is the recipe's to say. */
static int add_steps(struct json *steps, const struct json *answer, struct err *e)
{
    struct json *given;
    int rc = json_get_array(answer, "steps", &given, e);
    if (rc == 0 && json_member(answer, "commands"))
        return err_set(e, ERR_INPUT, "an answer has either 'commands' or 'steps'");
    for (size_t i = 0; rc == 0 && i < json_length(given); i++)
        json_append(steps, json_clone(json_element(given, i)));
    return rc;
}

/* The answer as a recipe document: JSON is YAML. */
static int make_recipe(struct recipe **out, const struct json *answer, const struct task *task,
                       struct err *e)
{
    static const char *const as_in_recipes[] = {"start", "ready", "network", "pipefail"};
    const char *user;
    AUTO_JSON struct json *document = json_new_object();
    struct json *steps = json_new_array();
    json_set(document, "name", json_new_string("provided"));
    json_set(document, "steps", steps);
    int rc = json_get_string_opt(answer, "user", &user, e);
    if (rc == 0 && user && strcmp(user, "root") != 0) {
        struct json *step = json_new_object();
        json_set(step, "user", json_new_string(user));
        json_append(steps, step);
    }
    if (rc == 0)
        rc = json_member(answer, "steps") ? add_steps(steps, answer, e)
                                          : add_commands(steps, answer, task, e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(as_in_recipes); i++) {
        const struct json *value = json_member(answer, as_in_recipes[i]);
        if (value && json_kind(value) != JSON_KIND_NULL)
            json_set(document, as_in_recipes[i], json_clone(value));
    }
    AUTO_FREE char *text = NULL;
    AUTO_FREE char *path =
        mem_printf("%s%sprovided recipe", task->directory ? task->directory : "",
                   task->directory ? "/" : ""); /* its paths start from the task */
    if (rc == 0)
        rc = json_print(document, 0, &text, e);
    if (rc == 0 && !path)
        rc = err_nomem(e, "recipe");
    return rc < 0 ? rc : recipe_parse(out, path, text, strlen(text), e);
}

static int replace_text(char **field, const char *value, struct err *e)
{
    char *copy = mem_strdup(value);
    if (!copy)
        return err_nomem(e, "task");
    free(*field);
    *field = copy;
    return 0;
}

/* Image, user and size as the provider says, where it does. */
static int change_task(struct task *task, const struct json *answer, struct err *e)
{
    const char *image;
    const char *user;
    struct json *resources;
    int rc = json_get_string_opt(answer, "image", &image, e);
    if (rc == 0)
        rc = json_get_string_opt(answer, "user", &user, e);
    if (rc == 0)
        rc = json_get_object_opt(answer, "resources", &resources, e);
    if (rc == 0 && image)
        rc = replace_text(&task->image, image, e);
    if (rc == 0 && user)
        rc = replace_text(&task->user, user, e);
    if (rc < 0 || !resources)
        return rc;
    rc = json_get_u64_opt(resources, "cpu_count", task->alias_cpus, &task->alias_cpus, e);
    if (rc == 0)
        rc = json_get_u64_opt(resources, "memory_mb", task->alias_memory_mb, &task->alias_memory_mb,
                              e);
    if (rc == 0 && (task->alias_cpus == 0 || task->alias_cpus > 1024 ||
                    task->alias_memory_mb == 0 || task->alias_memory_mb > 1U << 24))
        return err_set(e, ERR_INPUT, "'resources' are out of range");
    /* The task's own size counts where it is more: the alias rule reads less of a task.toml. */
    if (rc == 0 && task->alias_cpus > task->cpus)
        task->cpus = (uint32_t)task->alias_cpus;
    if (rc == 0 && task->alias_memory_mb > task->memory_mb)
        task->memory_mb = task->alias_memory_mb;
    return rc;
}

static int apply(struct baking *b, const struct json *answer, struct err *e)
{
    const char *alias;
    int rc = json_get_string_opt(answer, "alias", &alias, e);
    if (rc == 0)
        rc = change_task(b->task, answer, e);
    if (rc == 0)
        rc = make_recipe(&b->own_recipe, answer, b->task, e);
    if (rc == 0)
        rc = recipe_read_files(b->own_recipe, b->run->options->cancel, e);
    if (rc == 0 && !b->run->plan_only)
        rc = secrets_check(b->run->secrets, b->own_recipe, e);
    if (rc < 0)
        return rc;
    b->own_recipe_json = recipe_canonical(b->own_recipe);
    b->recipe = b->own_recipe;
    b->recipe_json = b->own_recipe_json;
    b->given_alias = alias ? mem_strdup(alias) : NULL;
    return b->recipe_json && (!alias || b->given_alias) ? 0 : err_nomem(e, "recipe");
}

int provider_apply(const struct provider *p, struct baking *b, struct err *e)
{
    AUTO_JSON struct json *own = NULL;
    const struct json *answer = NULL;
    int rc = 0;
    if (p->all) {
        answer = json_member(p->all, b->task->name);
        if (!answer)
            rc = err_set(e, ERR_INPUT, "no answer for task %s", b->task->name);
    } else {
        rc = ask_for_one(p, b->task, &own, e);
        answer = own;
    }
    if (rc == 0)
        rc = apply(b, answer, e);
    return rc < 0 ? err_in(e, "recipe provider") : 0;
}

void provider_compare_alias(const struct baking *b, const char *ours)
{
    if (!b->given_alias || strcmp(b->given_alias, ours) == 0)
        return;
    log_event(
        LOG_WARN, "bake",
        "task %s: the recipe provider's alias is %s, the rule gives %s; the provider's counts",
        b->task->name, b->given_alias, ours);
}
