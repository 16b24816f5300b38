/* SPDX-License-Identifier: MIT */
/* tb2-bake ls, show, verify: templates of the catalog. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/options.h"
#include "cli/template_place.h"

int take_template_remote(void *arguments, const char *value, struct err *e UNUSED)
{
    struct template_place *p = arguments;
    p->remote = value;
    return 0;
}

int take_template_tap(void *arguments, const char *value, struct err *e UNUSED)
{
    struct template_place *p = arguments;
    p->tap = value;
    return 0;
}

static const struct option_row verify_rows[] = {
    REMOTE_ROW,
    TAP_ROW,
    {NULL, NULL, NULL, NULL},
};

/* For a command whose one operand is an alias: an exit status, or -1 to go on. */
static int parse_alias(struct template_place *p, const struct command *c, int argc, char **argv)
{
    int status = options_read(c, p->g, p, argc, argv);
    if (status >= 0)
        return status;
    return options_operand(&p->alias, c, "which template? Its alias is missing", argc, argv);
}

/* ---- A template to be used ---- */

int open_template(struct template **out, struct store **s, struct remote **remote,
                  const struct template_place *p, struct err *e)
{
    int rc = open_remote(remote, s, p->g, p->remote, e);
    if (rc == 0 && !*s)
        rc = open_existing_store(s, p->g, e);
    if (rc == 0)
        rc = template_load(out, *s, p->alias, e);
    if (rc == 0 && *remote)
        remote_use_template(*remote, *out);
    if (rc != -ERR_NOTFOUND || !*remote)
        return rc;
    err_clear(e);
    rc = remote_pull_template(*remote, p->alias, e);
    return rc < 0 ? rc : template_load(out, *s, p->alias, e);
}

/* ---- ls ---- */

struct catalog {
    char **aliases;
    struct template **templates; /* NULL where the record is damaged */
    struct template_sizes *sizes;
    size_t count;
    size_t loaded;
};

static void catalog_fini(struct catalog *c)
{
    for (size_t i = 0; i < c->count; i++) {
        free(c->aliases[i]);
        if (c->templates)
            template_free(c->templates[i]);
    }
    free(c->aliases);
    free(c->templates);
    free(c->sizes);
}

/* Loads what can be loaded, good ones first; what cannot is reported and left out. */
static int catalog_load(struct catalog *c, struct store *s, struct err *e)
{
    int rc = template_list(&c->aliases, &c->count, s, e);
    if (rc < 0)
        return rc;
    c->templates = mem_array(c->count, sizeof(struct template *));
    c->sizes = mem_array(c->count, sizeof(*c->sizes));
    if (!c->templates || !c->sizes)
        return err_nomem(e, "catalog");
    for (size_t i = 0; i < c->count; i++) {
        struct err why = ERR_INIT;
        if (template_load(&c->templates[c->loaded], s, c->aliases[i], &why) == 0)
            c->loaded++;
        else
            fprintf(stderr, "tb2-bake: %s: %s\n", c->aliases[i], why.text);
    }
    return template_measure(c->sizes, c->templates, c->loaded, s, e);
}

static struct json *sizes_json(const struct template_sizes *z)
{
    struct json *j = json_new_object();
    json_set(j, "disk_size", json_new_integer((int64_t)z->disk_size));
    json_set(j, "disk_data", json_new_integer((int64_t)z->disk_data));
    json_set(j, "memory_data", json_new_integer((int64_t)z->memory_data));
    json_set(j, "stored", json_new_integer((int64_t)z->stored));
    json_set(j, "unique", json_new_integer((int64_t)z->unique));
    return j;
}

static const char *state_of(const struct template_sizes *z)
{
    return z->damaged ? "damaged" : "ready";
}

static int list_json(const struct catalog *c, struct err *e)
{
    AUTO_JSON struct json *list = json_new_array();
    for (size_t i = 0; i < c->loaded; i++) {
        const struct template *t = c->templates[i];
        struct json *j = json_new_object();
        json_set(j, "alias", json_new_string(t->alias));
        json_set(j, "task", json_new_string(t->task));
        json_set(j, "state", json_new_string(state_of(&c->sizes[i])));
        json_set(j, "created", json_new_string(t->created));
        json_set(j, "sizes", sizes_json(&c->sizes[i]));
        json_append(list, j);
    }
    return print_json(list, e);
}

static const char *print_age(const char *created, char text[SIZE_TEXT_MAX])
{
    int64_t then = clock_parse(created);
    int64_t now = clock_wall_ns() / 1000000000;
    if (then < 0 || then > now)
        return "-";
    return print_duration((now - then) * 1000, text);
}

static void list_text(const struct catalog *c, const char *store_path)
{
    if (c->count == 0)
        fprintf(stderr, "no templates in %s\n", store_path);
    int alias_width = 5;
    int task_width = 4;
    for (size_t i = 0; i < c->loaded; i++) {
        int alias = (int)strlen(c->templates[i]->alias);
        int task = (int)strlen(c->templates[i]->task);
        alias_width = alias > alias_width ? alias : alias_width;
        task_width = task > task_width ? task : task_width;
    }
    printf("%-*s  %-*s  %-7s  %9s  %9s  %9s  %s\n", alias_width, "ALIAS", task_width, "TASK",
           "STATE", "DISK", "MEMORY", "UNIQUE", "AGE");
    for (size_t i = 0; i < c->loaded; i++) {
        const struct template *t = c->templates[i];
        char disk[SIZE_TEXT_MAX];
        char memory[SIZE_TEXT_MAX];
        char unique[SIZE_TEXT_MAX];
        char age[SIZE_TEXT_MAX];
        printf("%-*s  %-*s  %-7s  %9s  %9s  %9s  %s\n", alias_width, t->alias, task_width, t->task,
               state_of(&c->sizes[i]), print_size(c->sizes[i].disk_data, disk),
               print_size(c->sizes[i].memory_data, memory), print_size(c->sizes[i].unique, unique),
               print_age(t->created, age));
    }
}

static int run_ls(struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_ls, g, NULL, argc, argv);
    if (status < 0)
        status = options_end(&command_ls, 0, argc, argv);
    if (status >= 0)
        return status;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct catalog c = {0};
    int rc = open_existing_store(&s, g, &e);
    if (rc == 0)
        rc = catalog_load(&c, s, &e);
    if (rc == 0 && g->json)
        rc = list_json(&c, &e);
    else if (rc == 0)
        list_text(&c, g->store_path);
    catalog_fini(&c);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_ls = {
    .name = "ls",
    .arguments = "",
    .summary = "List the templates of the catalog.",
    .notes = "DISK and MEMORY are the bytes that are not zero, UNIQUE the stored bytes that no\n"
             "other template of the catalog refers to.",
    .run = run_ls,
};

/* ---- show ---- */

static int print_member(void *ctx, const char *key, struct json *value, struct err *e)
{
    (void)ctx;
    if (json_kind(value) == JSON_KIND_STRING) {
        printf("%-14s %s\n", key, json_as_string(value));
        return 0;
    }
    AUTO_FREE char *text = NULL;
    int rc = json_print(value, 0, &text, e);
    if (rc == 0)
        printf("%-14s %s\n", key, text);
    return rc;
}

static int run_show(struct global_options *g, int argc, char **argv)
{
    struct template_place place = {.g = g};
    int status = parse_alias(&place, &command_show, argc, argv);
    if (status >= 0)
        return status;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_TEMPLATE struct template *t = NULL;
    struct template_sizes sizes;
    int rc = open_existing_store(&s, g, &e);
    if (rc == 0)
        rc = template_load(&t, s, place.alias, &e);
    if (rc == 0)
        rc = template_measure(&sizes, &t, 1, s, &e);
    if (rc < 0)
        return report_error(&e);
    AUTO_JSON struct json *j = json_clone(t->document);
    json_set(j, "record", json_new_string(digest_print(&t->record, (char[DIGEST_TEXT_MAX]){0})));
    json_set(j, "sizes", sizes_json(&sizes));
    rc = g->json ? print_json(j, &e) : json_each(j, print_member, NULL, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

const struct command command_show = {
    .name = "show",
    .arguments = "ALIAS",
    .summary = "Show a template's whole record. ALIAS may be the task's name where that is enough.",
    .run = run_show,
};

/* ---- verify ---- */

struct template_use template_use_of(const struct template_place *p)
{
    const struct global_options *g = p->g;
    return (struct template_use){.cache_dir = g->cache_dir,
                                 .vmm = g->vmm,
                                 .cpu_template = g->cpu_template,
                                 .accel = g->accel,
                                 .tap = p->tap,
                                 .cancel = g->cancel};
}

static int run_verify(struct global_options *g, int argc, char **argv)
{
    struct template_place place = {.g = g};
    int status = parse_alias(&place, &command_verify, argc, argv);
    if (status >= 0)
        return status;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_TEMPLATE struct template *t = NULL;
    struct verify_report report;
    AUTO_REMOTE struct remote *remote = NULL;
    struct template_use use = template_use_of(&place);
    int rc = open_template(&t, &s, &remote, &place, &e);
    if (rc == 0)
        rc = template_verify(t, s, &use, &report, &e);
    if (rc < 0)
        return report_error(&e);
    if (g->json) {
        AUTO_JSON struct json *j = json_new_object();
        json_set(j, "alias", json_new_string(t->alias));
        json_set(j, "chunks", json_new_integer((int64_t)report.chunks));
        json_set(j, "size", json_new_integer((int64_t)report.size));
        json_set(j, "restore_ms", json_new_integer(report.proof.ready_ms));
        json_set(j, "clock_error_ms", json_new_integer(report.proof.clock_error_ms));
        json_set(j, "orphan_inodes", json_new_integer(report.proof.orphans));
        rc = print_json(j, &e);
        return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
    }
    char size[SIZE_TEXT_MAX];
    char time[SIZE_TEXT_MAX];
    printf(
        "%s: %llu chunks (%s) verified; restored and ready in %s; clock, random numbers, channel "
        "and disk are right\n",
        t->alias, (unsigned long long)report.chunks, print_size(report.size, size),
        print_duration(report.proof.ready_ms, time));
    return EXIT_ALL_READY;
}

const struct command command_verify = {
    .name = "verify",
    .arguments = "[--remote URL] [--tap NAME] ALIAS",
    .summary = "Read and verify every chunk of a template, restore it and prove it right again.",
    .options = verify_rows,
    .run = run_verify,
};
