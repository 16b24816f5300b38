/* SPDX-License-Identifier: MIT */
/* tb2-bake store gc|fsck|du: looking after the store. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "bake/upkeep.h"
#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/image_arguments.h"

#define GRACE_DEFAULT_MS ((int64_t)24 * 60 * 60 * 1000)

struct arguments {
    struct image_arguments images;
    struct global_options *global;
    bool dry_run;
    bool repair;
    const char *grace; /* as given; NULL: not */
    const char *max_size;
    int64_t grace_ms;
    uint64_t max_bytes;
    char **words; /* after the subcommand */
    int word_count;
};

/* ---- Options ---- */

static int take_grace(void *arguments, const char *value, struct err *e)
{
    struct arguments *a = arguments;
    a->grace = value;
    return parse_duration(&a->grace_ms, value, e);
}

static int take_max_size(void *arguments, const char *value, struct err *e)
{
    static const struct amount_unit units[] = {
        {"B", 1}, {"K", 1000}, {"M", 1000000}, {"G", 1000000000}, {"T", 1000000000000}};
    struct arguments *a = arguments;
    a->max_size = value;
    int rc = parse_amount(&a->max_bytes, value, units, ARRAY_LEN(units), "size: 500M, 20G", e);
    if (rc == 0 && a->max_bytes == 0)
        rc = err_set(e, ERR_INPUT, "--max-size of nothing");
    return rc;
}

static int take_dry_run(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->dry_run = true;
    return 0;
}

static int take_repair(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    ((struct arguments *)arguments)->repair = true;
    return 0;
}

static const struct option_row rows[] = {
    {NULL, NULL, "gc: remove what neither the catalog needs nor anyone used lately.", NULL},
    {"dry-run", NULL, "only list what would go", take_dry_run},
    {"grace", "TIME", "keep what was used since: 90s, 30m, 12h, 7d (default: 1d)", take_grace},
    {"max-size", "SIZE",
     "then remove layers that could be fetched again, the longest unused\n"
     "first, until the store takes at most SIZE: 500M, 20G",
     take_max_size},
    {NULL, NULL, "fsck: read and check everything; name what a bad object breaks.", NULL},
    {"repair", NULL, "remove bad objects; make or fetch again what can be", take_repair},
    IMAGE_OPTION_ROWS,
    {NULL, NULL, "du: what takes the room, by kind and by template.", NULL},
    {NULL, NULL, NULL, NULL},
};

/* ---- gc ---- */

struct gc_output {
    bool list;
    struct json *removed; /* NULL: text */
};

static void show_removed(void *ctx, enum upkeep_kind kind, const char *path, uint64_t size)
{
    const struct gc_output *o = ctx;
    char text[SIZE_TEXT_MAX];
    if (o->removed) {
        struct json *j = json_new_object();
        json_set(j, "kind", json_new_string(upkeep_kind_name(kind)));
        json_set(j, "path", json_new_string(path));
        json_set(j, "size", json_new_integer((int64_t)size));
        json_append(o->removed, j);
    } else if (o->list) {
        printf("%9s  %s\n", print_size(size, text), path);
    }
}

static struct json *count_json(const struct upkeep_count *c)
{
    struct json *j = json_new_object();
    json_set(j, "count", json_new_integer((int64_t)c->count));
    json_set(j, "size", json_new_integer((int64_t)c->size));
    return j;
}

static int gc_json(const struct arguments *a, const struct gc_report *r, struct json *removed,
                   struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    struct json *by_kind = json_new_object();
    for (enum upkeep_kind kind = 0; kind < UPKEEP_KIND_COUNT; kind++) {
        struct json *both = json_new_object();
        json_set(both, "removed", count_json(&r->removed[kind]));
        json_set(both, "kept", count_json(&r->kept[kind]));
        json_set(by_kind, upkeep_kind_name(kind), both);
    }
    json_set(j, "dry_run", json_new_bool(a->dry_run));
    json_set(j, "kinds", by_kind);
    json_set(j, "kept_size", json_new_integer((int64_t)r->kept_size));
    json_set(j, "removed", json_clone(removed));
    return print_json(j, e);
}

static void gc_text(const struct arguments *a, const struct gc_report *r)
{
    char size[SIZE_TEXT_MAX];
    uint64_t count = 0;
    uint64_t bytes = 0;
    for (enum upkeep_kind kind = 0; kind < UPKEEP_KIND_COUNT; kind++) {
        count += r->removed[kind].count;
        bytes += r->removed[kind].size;
    }
    printf("%s %llu files, %s", a->dry_run ? "would remove" : "removed", (unsigned long long)count,
           print_size(bytes, size));
    const char *between = " (";
    for (enum upkeep_kind kind = 0; kind < UPKEEP_KIND_COUNT; kind++) {
        if (r->removed[kind].count > 0)
            printf("%s%s: %llu", between, upkeep_kind_name(kind),
                   (unsigned long long)r->removed[kind].count);
        between = r->removed[kind].count > 0 ? ", " : between;
    }
    printf("%s; %s kept\n", count > 0 ? ")" : "", print_size(r->kept_size, size));
}

static int run_gc(const struct arguments *a, struct store *s, struct err *e)
{
    AUTO_JSON struct json *removed = a->global->json ? json_new_array() : NULL;
    struct gc_output output = {.list = a->dry_run || a->global->verbose, .removed = removed};
    struct gc_options o = {.dry_run = a->dry_run,
                           .grace_ms = a->grace ? a->grace_ms : GRACE_DEFAULT_MS,
                           .max_size = a->max_bytes,
                           .cache_dir = a->global->cache_dir,
                           .cancel = a->global->cancel,
                           .removed = show_removed,
                           .ctx = &output};
    struct gc_report report;
    int rc = store_gc(&report, s, &o, e);
    if (rc == 0 && a->global->json)
        rc = gc_json(a, &report, removed, e);
    else if (rc == 0)
        gc_text(a, &report);
    if (rc < 0)
        return report_error(e);
    if (!a->max_bytes || report.kept_size <= a->max_bytes)
        return EXIT_ALL_READY;
    char size[SIZE_TEXT_MAX];
    fprintf(stderr, "tb2-bake: the templates and what was used lately take %s\n",
            print_size(report.kept_size, size));
    return EXIT_SOME_FAILED;
}

/* ---- fsck ---- */

static const char *const state_names[] = {
    [FSCK_BAD] = "bad", [FSCK_MENDED] = "mended", [FSCK_REMOVED] = "removed", [FSCK_LOST] = "lost"};

static int fsck_json(const struct fsck_report *r, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    struct json *checked = json_new_object();
    struct json *problems = json_new_array();
    for (enum upkeep_kind kind = 0; kind < UPKEEP_STORE_KINDS; kind++)
        json_set(checked, upkeep_kind_name(kind), count_json(&r->checked[kind]));
    for (size_t i = 0; i < r->count; i++) {
        const struct fsck_problem *p = &r->problems[i];
        struct json *one = json_new_object();
        struct json *affected = json_new_array();
        for (size_t n = 0; n < p->affected_count; n++)
            json_append(affected, json_new_string(p->affected[n]));
        json_set(one, "kind", json_new_string(upkeep_kind_name(p->kind)));
        json_set(one, "path", json_new_string(p->path));
        json_set(one, "reason", json_new_string(p->reason));
        json_set(one, "affected", affected);
        json_set(one, "state", json_new_string(state_names[p->state]));
        json_append(problems, one);
    }
    json_set(j, "checked", checked);
    json_set(j, "problems", problems);
    json_set(j, "left", json_new_integer((int64_t)r->left));
    return print_json(j, e);
}

static void fsck_text(const struct fsck_report *r, bool repair)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct fsck_problem *p = &r->problems[i];
        printf("%s: %s\n", p->path, p->reason);
        for (size_t n = 0; n < p->affected_count; n++)
            printf("  needed by %s\n", p->affected[n]);
        if (repair)
            printf("  %s%s%s\n", state_names[p->state], p->advice ? ": " : "",
                   p->advice ? p->advice : "");
    }
    uint64_t count = 0;
    uint64_t size = 0;
    char text[SIZE_TEXT_MAX];
    for (enum upkeep_kind kind = 0; kind < UPKEEP_STORE_KINDS; kind++) {
        count += r->checked[kind].count;
        size += r->checked[kind].size;
    }
    printf("%llu files, %s checked: ", (unsigned long long)count, print_size(size, text));
    if (r->count == 0)
        puts("all sound");
    else
        printf("%zu bad, %zu of them %s\n", r->count, repair ? r->left : r->count,
               repair ? "lost" : "not touched (--repair mends what it can)");
}

static int run_fsck(const struct arguments *a, struct store *s, struct err *e)
{
    struct fsck_options o = {
        .repair = a->repair, .images = a->images.options, .cancel = a->global->cancel};
    struct fsck_report report;
    int rc = store_fsck(&report, s, &o, e);
    if (rc < 0)
        return report_error(e);
    size_t left = report.left;
    if (a->global->json)
        rc = fsck_json(&report, e);
    else
        fsck_text(&report, a->repair);
    fsck_report_fini(&report);
    if (rc < 0)
        return report_error(e);
    return left > 0 ? EXIT_SOME_FAILED : EXIT_ALL_READY;
}

/* ---- du ---- */

struct du {
    struct template **templates;
    size_t count;
    struct template_sizes *sizes;
    struct du_report report;
};

static void du_fini(struct du *d)
{
    for (size_t i = 0; i < d->count; i++)
        template_free(d->templates[i]);
    free(d->templates);
    free(d->sizes);
}

/* All templates are measured, since that is what "shared" means. */
static int du_load(struct du *d, struct store *s, struct err *e)
{
    char **aliases = NULL;
    size_t count = 0;
    int rc = template_list(&aliases, &count, s, e);
    d->templates = rc == 0 ? mem_array(count, sizeof(struct template *)) : NULL;
    d->sizes = rc == 0 ? mem_array(count, sizeof(*d->sizes)) : NULL;
    if (rc == 0 && count > 0 && (!d->templates || !d->sizes))
        rc = err_nomem(e, "catalog");
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct err why = ERR_INIT;
        if (template_load(&d->templates[d->count], s, aliases[i], &why) == 0)
            d->count++;
        else
            fprintf(stderr, "tb2-bake: %s: %s\n", aliases[i], why.text);
    }
    for (size_t i = 0; i < count; i++)
        free(aliases[i]);
    free(aliases);
    if (rc == 0)
        rc = template_measure(d->sizes, d->templates, d->count, s, e);
    return rc < 0 ? rc : store_du(&d->report, s, e);
}

static bool is_wanted(const struct arguments *a, const struct template *t)
{
    for (int i = 0; i < a->word_count; i++) {
        if (strcmp(a->words[i], t->alias) == 0 || strcmp(a->words[i], t->task) == 0)
            return true;
    }
    return a->word_count == 0;
}

/* Every name that was given must be a template's. */
static int check_words(const struct arguments *a, const struct du *d, struct err *e)
{
    for (int i = 0; i < a->word_count; i++) {
        struct arguments one = {.words = &a->words[i], .word_count = 1};
        bool found = false;
        for (size_t n = 0; n < d->count; n++)
            found |= is_wanted(&one, d->templates[n]);
        if (!found) {
            err_set(e, ERR_NOTFOUND, "no template '%s' in the catalog", a->words[i]);
            return err_hint(e, "'tb2-bake ls' lists what is there");
        }
    }
    return 0;
}

static int du_json(const struct arguments *a, const struct du *d, struct err *e)
{
    AUTO_JSON struct json *j = json_new_object();
    struct json *kinds = json_new_object();
    struct json *templates = json_new_array();
    for (enum du_kind kind = 0; kind < DU_KIND_COUNT; kind++)
        json_set(kinds, du_kind_name(kind), count_json(&d->report.kinds[kind]));
    for (size_t i = 0; i < d->count; i++) {
        if (!is_wanted(a, d->templates[i]))
            continue;
        const struct template_sizes *z = &d->sizes[i];
        struct json *one = json_new_object();
        json_set(one, "alias", json_new_string(d->templates[i]->alias));
        json_set(one, "task", json_new_string(d->templates[i]->task));
        json_set(one, "unique", json_new_integer((int64_t)z->unique));
        json_set(one, "shared", json_new_integer((int64_t)(z->stored - z->unique)));
        json_append(templates, one);
    }
    json_set(j, "kinds", kinds);
    json_set(j, "templates", templates);
    json_set(j, "total", json_new_integer((int64_t)d->report.total));
    return print_json(j, e);
}

static void du_text(const struct arguments *a, const struct du *d)
{
    char unique[SIZE_TEXT_MAX];
    char shared[SIZE_TEXT_MAX];
    printf("%9s  %9s  %s\n", "UNIQUE", "SHARED", "TEMPLATE");
    for (size_t i = 0; i < d->count; i++) {
        const struct template_sizes *z = &d->sizes[i];
        if (is_wanted(a, d->templates[i]))
            printf("%9s  %9s  %s\n", print_size(z->unique, unique),
                   print_size(z->stored - z->unique, shared), d->templates[i]->alias);
    }
    if (a->word_count > 0)
        return;
    printf("\n%9s  %9s  %s\n", "BYTES", "FILES", "KIND");
    for (enum du_kind kind = 0; kind < DU_KIND_COUNT; kind++)
        printf("%9s  %9llu  %s\n", print_size(d->report.kinds[kind].size, unique),
               (unsigned long long)d->report.kinds[kind].count, du_kind_name(kind));
    printf("%9s  %9s  total\n", print_size(d->report.total, unique), "");
}

static int run_du(const struct arguments *a, struct store *s, struct err *e)
{
    struct du d = {0};
    int rc = du_load(&d, s, e);
    if (rc == 0)
        rc = check_words(a, &d, e);
    if (rc == 0 && a->global->json)
        rc = du_json(a, &d, e);
    else if (rc == 0)
        du_text(a, &d);
    du_fini(&d);
    return rc < 0 ? report_error(e) : EXIT_ALL_READY;
}

/* ---- The command ---- */

static const struct subcommand {
    const char *name;
    bool takes_words;
    int (*run)(const struct arguments *a, struct store *s, struct err *e);
} subcommands[] = {{"gc", false, run_gc}, {"fsck", false, run_fsck}, {"du", true, run_du}};

static const struct subcommand *find_subcommand(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(subcommands); i++) {
        if (strcmp(subcommands[i].name, name) == 0)
            return &subcommands[i];
    }
    return NULL;
}

static int check_arguments(const struct arguments *a, const struct subcommand *sub)
{
    if (a->repair && sub->run != run_fsck)
        return usage_error(&command_store, "--repair is for fsck");
    if ((a->dry_run || a->grace || a->max_size) && sub->run != run_gc)
        return usage_error(&command_store, "--dry-run, --grace and --max-size are for gc");
    if (!sub->takes_words && a->word_count > 0)
        return usage_error(&command_store, "'%s' is not expected here", a->words[0]);
    return -1;
}

static int run_arguments(struct arguments *a, int argc, char **argv)
{
    struct global_options *g = a->global;
    int status = options_read(&command_store, g, a, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc)
        return usage_error(&command_store, "what is to be done? gc, fsck or du is missing");
    const struct subcommand *sub = find_subcommand(argv[optind]);
    if (!sub)
        return usage_error(&command_store, "'%s' is none of gc, fsck, du", argv[optind]);
    a->words = argv + optind + 1;
    a->word_count = argc - optind - 1;
    status = check_arguments(a, sub);
    if (status >= 0)
        return status;
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    int rc = image_arguments_open(&a->images, g, &e);
    if (rc == 0)
        rc = open_existing_store(&s, g, &e);
    return rc < 0 ? report_error(&e) : sub->run(a, s, &e);
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {.global = g};
    int status = run_arguments(&a, argc, argv);
    image_arguments_fini(&a.images);
    return status;
}

const struct command command_store = {
    .name = "store",
    .arguments = "(gc | fsck | du [ALIAS...]) [options]",
    .summary = "Look after the store, also while bakes run.",
    .options = rows,
    .notes = "fsck exits with 1 when something bad is left, gc when the store is larger than SIZE.",
    .run = run,
};
