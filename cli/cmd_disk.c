/* SPDX-License-Identifier: MIT */
/* tb2-bake disk export: a disk as a raw file. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd.h"
#include "cli/image_arguments.h"

/* Room on the disk of an image that is exported without a task: the suite's default. */
#define DEFAULT_FREE_SIZE ((uint64_t)10240 << 20)

struct arguments {
    struct image_arguments images;
    const char *what; /* alias or image reference */
    const char *raw;
    bool base;
};

static int take_raw(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->raw = value;
    return 0;
}

static int take_base(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->base = true;
    return 0;
}

static const struct option_row rows[] = {
    {"raw", "FILE", "the file, which must not exist", take_raw},
    {"base", NULL, "a template's disk as it was before it was booted", take_base},
    {NULL, NULL, "Of an IMAGE:", NULL},
    IMAGE_OPTION_ROWS,
    PLATFORM_OPTION_ROW,
    {NULL, NULL, NULL, NULL},
};

/* An exit status, or -1 to go on. */
static int parse(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    struct err e = ERR_INIT;
    struct parsing p = {.command = &command_disk, .globals = g};
    if (options_parse(&p, a, argc, argv, &e) < 0)
        return report_error(&e);
    if (p.status >= 0)
        return p.status;
    if (optind == argc || strcmp(argv[optind], "export") != 0)
        return usage_error(&command_disk, "the word 'export' is missing");
    if (optind + 1 == argc)
        return usage_error(&command_disk, "which disk? An alias or an image is missing");
    if (optind + 2 < argc)
        return usage_error(&command_disk, "'%s' is not expected here", argv[optind + 2]);
    if (!a->raw)
        return usage_error(&command_disk, "--raw is missing: the file to write");
    a->what = argv[optind + 1];
    return -1;
}

/* A template's disk when there is such a template, else the image's. */
static int find_disk(struct digest *out, struct store *s, struct arguments *a,
                     const struct global_options *g, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, a->what, e);
    if (rc == 0)
        *out = a->base ? t->base_disk : t->disk;
    if (rc != -ERR_NOTFOUND || !strpbrk(a->what, "/:"))
        return rc;
    rc = image_arguments_open(&a->images, g, e);
    if (rc < 0)
        return rc;
    struct disk_options options = {
        .free_size = DEFAULT_FREE_SIZE, .images = a->images.options, .cancel = g->cancel};
    return disk_assemble(out, s, a->what, &options, e);
}

static int export(struct arguments *a, const struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct digest map;
    int rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = find_disk(&map, s, a, g, &e);
    if (rc == 0)
        rc = disk_export(s, &map, a->raw, g->cancel, &e);
    if (rc < 0)
        return report_error(&e);
    char text[DIGEST_TEXT_MAX];
    digest_print(&map, text);
    if (!g->json) {
        puts(text);
        return EXIT_ALL_READY;
    }
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "digest", json_new_string(text));
    rc = print_json(j, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    int status = parse(&a, g, argc, argv);
    if (status < 0)
        status = export(&a, g);
    image_arguments_fini(&a.images);
    return status;
}

const struct command command_disk = {
    .name = "disk",
    .arguments = "export (ALIAS | IMAGE) --raw FILE [--base]",
    .summary = "Write a disk as a sparse raw file, and print its digest.",
    .options = rows,
    .notes = "An IMAGE is pulled and assembled, not booted.",
    .run = run,
};
