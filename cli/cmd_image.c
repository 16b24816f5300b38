/* SPDX-License-Identifier: MIT */
/* tb2-bake image inspect, tree, diff: what an image is, before it is baked. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli/cmd.h"
#include "cli/image_arguments.h"

enum { EXIT_DIFFERENT = 1, DIGEST_SHOWN = 12, LINE_MAX_SHOWN = 1024 };

struct arguments {
    struct image_arguments images;
    const char *word; /* what to do */
    char **references;
    size_t count;
};

static const struct option_row rows[] = {
    IMAGE_OPTION_ROWS,
    PLATFORM_OPTION_ROW,
    {NULL, NULL, NULL, NULL},
};

/* An exit status, or -1 to go on. */
static int parse(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_image, g, a, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc)
        return usage_error(&command_image, "inspect, tree or diff?");
    a->word = argv[optind];
    a->references = argv + optind + 1;
    a->count = (size_t)(argc - optind - 1);
    bool is_diff = strcmp(a->word, "diff") == 0;
    if (!is_diff && strcmp(a->word, "tree") != 0 && strcmp(a->word, "inspect") != 0)
        return usage_error(&command_image, "'%s' is none of inspect, tree and diff", a->word);
    if (is_diff && a->count != 2)
        return usage_error(&command_image, "diff compares two images, not %zu", a->count);
    if (a->count == 0)
        return usage_error(&command_image, "which image?");
    return -1;
}

/* ---- inspect ---- */

static void show_text(const char *label, const char *text)
{
    if (!text || !*text)
        return;
    char shown[LINE_MAX_SHOWN];
    text_harmless(shown, sizeof(shown), text);
    printf("%-12s%s\n", label, shown);
}

static const char *text_of(const struct json *j, const char *key)
{
    const struct json *value = j && json_kind(j) == JSON_KIND_OBJECT ? json_member(j, key) : NULL;
    return value ? json_as_string(value) : NULL;
}

/* Of a member that image_inspect always writes. */
static const char *word_of(const struct json *j, const char *key)
{
    const char *text = text_of(j, key);
    return text ? text : "";
}

static uint64_t number_of(const struct json *j, const char *key)
{
    const struct json *value = json_member(j, key);
    return value ? (uint64_t)json_as_integer(value) : 0;
}

/* A list on one line, as JSON: its words may hold spaces. */
static void show_list(const char *label, const struct json *settings, const char *key)
{
    struct err e = ERR_INIT;
    AUTO_FREE char *text = NULL;
    const struct json *list = json_member(settings, key);
    if (list && json_length(list) > 0 && json_print(list, 0, &text, &e) == 0)
        show_text(label, text);
}

static void show_each(const char *label, const struct json *settings, const char *key)
{
    const struct json *list = json_member(settings, key);
    for (size_t i = 0; list && i < json_length(list); i++)
        show_text(i == 0 ? label : "", json_as_string(json_element(list, i)));
}

static int show_label(void *ctx, const char *key, struct json *value, struct err *e UNUSED)
{
    bool *first = ctx;
    AUTO_FREE char *text =
        mem_printf("%s=%s", key, json_as_string(value) ? json_as_string(value) : "");
    show_text(*first ? "labels" : "", text);
    *first = false;
    return 0;
}

static void show_settings(const struct json *settings)
{
    struct err e = ERR_INIT;
    if (!settings || json_kind(settings) != JSON_KIND_OBJECT)
        return;
    show_text("user", text_of(settings, "User"));
    show_text("workdir", text_of(settings, "WorkingDir"));
    show_list("entrypoint", settings, "Entrypoint");
    show_list("command", settings, "Cmd");
    show_each("environment", settings, "Env");
    const struct json *labels = json_member(settings, "Labels");
    bool first = true;
    if (labels && json_kind(labels) == JSON_KIND_OBJECT &&
        json_each(labels, show_label, &first, &e) < 0)
        return;
}

/* The compression that the media type names. */
static const char *packing(const char *type)
{
    if (strstr(type, "gzip"))
        return "gzip";
    if (strstr(type, "zstd"))
        return "zstd";
    return strstr(type, "tar") ? "tar" : "?";
}

/* The first digits, without the algorithm. */
static void short_digest(char out[DIGEST_SHOWN + 1], const char *text)
{
    const char *colon = strchr(text, ':');
    snprintf(out, DIGEST_SHOWN + 1, "%s", colon ? colon + 1 : text);
}

static void show_layers(const struct json *image)
{
    const struct json *layers = json_member(image, "layers");
    char size[SIZE_TEXT_MAX];
    printf("%-12s%zu, %s as they are pulled\n", "layers", json_length(layers),
           print_size(number_of(image, "size"), size));
    if (json_length(layers) > 0)
        printf("\n  %3s %10s  %-5s %-*s  %-*s  %s\n", "#", "SIZE", "FORM", DIGEST_SHOWN, "DIGEST",
               DIGEST_SHOWN, "DIFF_ID", "CREATED BY");
    for (size_t i = 0; i < json_length(layers); i++) {
        const struct json *layer = json_element(layers, i);
        const char *step = text_of(layer, "created_by");
        char digest[DIGEST_SHOWN + 1];
        char diff_id[DIGEST_SHOWN + 1];
        char shown[LINE_MAX_SHOWN];
        short_digest(digest, word_of(layer, "digest"));
        short_digest(diff_id, word_of(layer, "diff_id"));
        text_harmless(shown, sizeof(shown), step ? step : "");
        size_t width = 0;
        size_t len = text_fit(shown, 60, &width);
        printf("  %3zu %10s  %-5s %s  %s  %.*s\n", i + 1,
               print_size(number_of(layer, "size"), size), packing(word_of(layer, "media_type")),
               digest, diff_id, (int)len, shown);
    }
}

static void show_image(const struct json *image)
{
    const char *variant = text_of(image, "variant");
    AUTO_FREE char *platform =
        mem_printf("%s/%s%s%s", word_of(image, "os"), word_of(image, "architecture"),
                   variant ? "/" : "", variant ? variant : "");
    show_text("image", text_of(image, "reference"));
    show_text("digest", word_of(image, "digest"));
    show_text("config", text_of(image, "config_digest"));
    show_text("platform", platform);
    show_text("created", text_of(image, "created"));
    show_text("author", text_of(image, "author"));
    show_settings(json_member(image, "config"));
    show_layers(image);
}

static int inspect(const struct arguments *a, const struct image_look *look,
                   const struct global_options *g, struct store *s, struct err *e)
{
    for (size_t i = 0; i < a->count; i++) {
        AUTO_JSON struct json *image = NULL;
        int rc = image_inspect(&image, s, a->references[i], look, e);
        if (rc == 0 && g->json)
            rc = print_json(image, e);
        if (rc < 0)
            return rc;
        if (!g->json) {
            printf("%s", i > 0 ? "\n" : "");
            show_image(image);
        }
    }
    return EXIT_ALL_READY;
}

/* ---- tree ---- */

static int write_line(void *self UNUSED, const void *data, size_t len, struct err *e)
{
    return fwrite(data, 1, len, stdout) == len ? 0 : err_sys(e, "writing the result");
}

static int tree(const struct arguments *a, const struct image_look *look, struct store *s,
                struct err *e)
{
    const struct sink out = {.write = write_line};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->count; i++)
        rc = image_tree(s, a->references[i], look, &out, e);
    return rc;
}

/* ---- diff ---- */

struct differing {
    struct json *list; /* NULL: lines are printed */
    size_t count;
};

static const char *change_name(enum oci_change change)
{
    switch (change) {
    case OCI_REMOVED:
        return "removed";
    case OCI_ADDED:
        return "added";
    case OCI_CHANGED:
        break;
    }
    return "changed";
}

static int on_difference(void *ctx, const struct oci_difference *d, struct err *e)
{
    struct differing *all = ctx;
    all->count++;
    if (!all->list)
        return write_line(NULL, d->line, strlen(d->line), e);
    struct json *j = json_new_object();
    json_set(j, "change", json_new_string(change_name(d->change)));
    json_set(j, "path", json_new_string(d->path));
    if (*d->fields)
        json_set(j, "fields", json_new_string(d->fields));
    AUTO_FREE char *line = mem_strndup(d->line, strcspn(d->line, "\n"));
    json_set(j, "line", line ? json_new_string(line) : NULL);
    json_append(all->list, j);
    return 0;
}

static int diff(const struct arguments *a, const struct image_look *look,
                const struct global_options *g, struct store *s, struct err *e)
{
    const char *const references[2] = {a->references[0], a->references[1]};
    AUTO_JSON struct json *list = g->json ? json_new_array() : NULL;
    struct differing all = {.list = list};
    int rc = image_diff(s, references, look, on_difference, &all, e);
    if (rc == 0 && list)
        rc = print_json(list, e);
    if (rc < 0)
        return rc;
    return all.count > 0 ? EXIT_DIFFERENT : EXIT_ALL_READY;
}

/* ---- The command ---- */

static int look_at(struct arguments *a, const struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    int rc = image_arguments_open(&a->images, g, &e);
    const struct image_look look = {.images = a->images.options, .cancel = g->cancel};
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0 && strcmp(a->word, "inspect") == 0)
        rc = inspect(a, &look, g, s, &e);
    else if (rc == 0 && strcmp(a->word, "tree") == 0)
        rc = tree(a, &look, s, &e);
    else if (rc == 0)
        rc = diff(a, &look, g, s, &e);
    return rc < 0 ? report_error(&e) : rc;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    int status = parse(&a, g, argc, argv);
    if (status < 0)
        status = look_at(&a, g);
    image_arguments_fini(&a.images);
    return status;
}

const struct command command_image = {
    .name = "image",
    .arguments = "(inspect IMAGE... | tree IMAGE... | diff IMAGE IMAGE)",
    .summary = "Look at images without baking them.",
    .options = rows,
    .notes =
        "inspect  what the image says of itself, and its layers; --json has all of it\n"
        "tree     the files that its layers make, a line each (docs/formats/tree.md)\n"
        "diff     where two such trees differ, content included; exit status 0: nowhere, 1: "
        "somewhere\n"
        "\n"
        "An IMAGE is a name with a registry's meaning, or one of\n"
        "  oci:DIR[:TAG]  oci-archive:FILE[:TAG]  docker-archive:FILE[:NAME[:TAG]]\n"
        "with :@N in place of the name for the one with that number, from 0. inspect fetches only\n"
        "documents. tree and diff pull layers that the store lacks, but store nothing of them "
        "else.",
    .run = run,
};
