/* SPDX-License-Identifier: MIT */
/*
 * Requests to the template server. Servers differ: AgentENV takes any case in a name and has no
 * upper limit on CPUs, E2B Cloud lower-cases names and wants even amounts. What both accept is left
 * to the caller; here stands what neither does, and the markup filter of AgentENV, which refuses a
 * whole request for a '<' that starts something like a tag, with a text that helps nobody.
 */
#include "registry/e2b_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum {
    NAME_MAX_LEN = 128,
    MEMORY_MIN_MB = 128,
    BODY_MAX_LEN = 2 << 20 /* a server's limit for a JSON body */
};

static int markup(struct err *e, const char *what)
{
    err_set(e, ERR_UNSUPPORTED, "%s contains '<', which template servers refuse as markup", what);
    return err_hint(e,
                    "write it without '<'; a script can be sent as: echo BASE64 | base64 -d | sh");
}

static int check_text(const char *what, const char *text, struct err *e)
{
    return text && strchr(text, '<') ? markup(e, what) : 0;
}

static size_t args_count(const struct e2b_step *step)
{
    size_t count = 0;
    while (step->args[count])
        count++;
    return count;
}

static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '\0';
}

static bool step_has_its_args(const struct e2b_step *step)
{
    size_t count = args_count(step);
    if (count == 0 || is_blank(step->args[0]))
        return false;
    if (strcmp(step->type, "ENV") != 0)
        return strcmp(step->type, "RUN") == 0 ? count <= 2 : count == 1;
    for (size_t i = 0; i < count; i += 2) {
        if (is_blank(step->args[i]))
            return false;
    }
    return count % 2 == 0;
}

static int check_step(const struct e2b_step *step, size_t number, struct err *e)
{
    static const char *const types[] = {"RUN", "ENV", "WORKDIR", "USER"};
    char what[64];
    bool known = false;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        known = known || strcmp(step->type, types[i]) == 0;
    if (!known)
        return err_set(e, ERR_UNSUPPORTED, "step %zu: template servers have no %.20s steps", number,
                       step->type);
    snprintf(what, sizeof(what), "step %zu (%s)", number, step->type);
    if (!step_has_its_args(step))
        return err_set(e, ERR_INPUT, "%s: its arguments are missing, blank or too many", what);
    for (size_t i = 0; step->args[i]; i++) {
        int rc = check_text(what, step->args[i], e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_size(const struct e2b_template *t, struct err *e)
{
    AUTO_JSON struct json *body = e2b_build_body(t, NULL);
    AUTO_FREE char *text = NULL;
    int rc = json_print(body, 0, &text, e);
    if (rc == 0 && strlen(text) > BODY_MAX_LEN)
        return err_set(e, ERR_LIMIT, "the steps are %zu bytes, more than the %d that servers take",
                       strlen(text), BODY_MAX_LEN);
    return rc;
}

int e2b_check_alias(const char *alias, struct err *e)
{
    size_t len = strlen(alias);
    if (len == 0 || len > NAME_MAX_LEN || strspn(alias, E2B_ID_LETTERS) != len)
        return err_set(e, ERR_INPUT,
                       "alias '%.140s': 1 to %d letters, digits, '-' and '_' are allowed", alias,
                       NAME_MAX_LEN);
    return 0;
}

int e2b_check_template(const struct e2b_template *t, struct err *e)
{
    int rc = e2b_check_alias(t->alias, e);
    if (rc < 0)
        return rc;
    if (!t->from_image || is_blank(t->from_image))
        return err_set(e, ERR_INPUT, "alias %s: no image to start from", t->alias);
    if (t->cpus == 0 || t->memory_mb < MEMORY_MIN_MB)
        return err_set(e, ERR_INPUT, "alias %s: at least 1 CPU and %d MB of memory are needed",
                       t->alias, MEMORY_MIN_MB);
    rc = check_text("the image's name", t->from_image, e);
    if (rc == 0)
        rc = check_text("the start command", t->start_command, e);
    if (rc == 0)
        rc = check_text("the ready command", t->ready_command, e);
    for (size_t i = 0; rc == 0 && i < t->step_count; i++)
        rc = check_step(&t->steps[i], i + 1, e);
    return rc < 0 ? rc : check_size(t, e);
}

struct json *e2b_create_body(const struct e2b_template *t, enum e2b_name_field field)
{
    struct json *body = json_new_object();
    if (!body)
        return NULL;
    json_set(body, field == E2B_NAME_ALIAS ? "alias" : "name", json_new_string(t->alias));
    json_set(body, "cpuCount", json_new_integer(t->cpus));
    json_set(body, "memoryMB", json_new_integer((int64_t)t->memory_mb));
    return body;
}

static struct json *step_body(const struct e2b_step *step)
{
    struct json *object = json_new_object();
    struct json *args = json_new_array();
    if (!object || !args) {
        json_free(object);
        json_free(args);
        return NULL;
    }
    for (size_t i = 0; step->args[i]; i++)
        json_append(args, json_new_string(step->args[i]));
    json_set(object, "type", json_new_string(step->type));
    json_set(object, "args", args);
    json_set(object, "force", json_new_bool(false));
    return object;
}

struct json *e2b_build_body(const struct e2b_template *t, const char *from_template)
{
    struct json *body = json_new_object();
    struct json *steps = json_new_array();
    if (!body || !steps) {
        json_free(body);
        json_free(steps);
        return NULL;
    }
    for (size_t i = 0; !from_template && i < t->step_count; i++)
        json_append(steps, step_body(&t->steps[i]));
    if (from_template)
        json_set(body, "fromTemplate", json_new_string(from_template));
    else
        json_set(body, "fromImage", json_new_string(t->from_image));
    json_set(body, "steps", steps);
    json_set(body, "force", json_new_bool(t->force));
    if (from_template) /* it runs already, as the base left it */
        return body;
    if (t->start_command)
        json_set(body, "startCmd", json_new_string(t->start_command));
    if (t->ready_command)
        json_set(body, "readyCmd", json_new_string(t->ready_command));
    return body;
}
