/* SPDX-License-Identifier: MIT */
/* TOML, and the same text as a task.toml. */
#include <string.h>

#include "fuzz.h"
#include "manifests/manifest.h"

static void walk(const struct toml *t)
{
    size_t len = 0;
    const char *text = toml_string(t, &len);
    PROMISE(toml_line(t) >= 1 && toml_column(t) >= 1);
    PROMISE(toml_type(t) != TOML_STRING || (text && text[len] == '\0'));
    for (size_t i = 0; i < toml_length(t); i++) {
        if (toml_type(t) == TOML_TABLE)
            PROMISE(toml_key_at(t, i));
        walk(toml_at(t, i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    AUTO_TOML struct toml *document = NULL;
    AUTO_TASK struct task *task = NULL;
    int rc = toml_parse(&document, data, size, "fuzz.toml", &e);
    PROMISE_ERROR(rc, &e);
    if (rc == 0)
        walk(document);
    err_clear(&e);
    rc = task_parse(&task, "fuzz", "task.toml", data, size, &e);
    PROMISE_ERROR(rc, &e);
    if (rc == 0)
        PROMISE(task->image && task->cpus >= 1 && task->memory_mb >= 2048);
    err_clear(&e);
    AUTO_TASK_TRIAL struct task_trial *trial = NULL;
    rc = task_trial_parse(&trial, "task.toml", data, size, &e);
    PROMISE_ERROR(rc, &e);
    for (size_t i = 0; rc == 0 && i < trial->solve.env_count; i++)
        PROMISE(trial->solve.env[i].name &&
                (trial->solve.env[i].value || trial->solve.env[i].host));
    return 0;
}
