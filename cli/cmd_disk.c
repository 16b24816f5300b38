/* SPDX-License-Identifier: MIT */
/* tb2-bake disk export|map|diff: disks of templates and of images. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cmd.h"
#include "cli/image_arguments.h"

struct arguments {
    struct image_arguments images;
    const char *raw;
    const char *qcow2;
    bool base;
    char **disks; /* aliases or image references */
    int disk_count;
};

static int take_raw(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->raw = value;
    return 0;
}

static int take_qcow2(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->qcow2 = value;
    return 0;
}

static int take_base(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->base = true;
    return 0;
}

static const struct option_row rows[] = {
    {NULL, NULL, "export: write a disk as a file, and print its digest.", NULL},
    {"raw", "FILE", "a sparse raw file, which must not exist", take_raw},
    {"qcow2", "FILE", "a qcow2 file, which must not exist; needs qemu-img", take_qcow2},
    {NULL, NULL,
     "map: which bytes of a disk come from which chunk.\n"
     "diff: the ranges in which two disks differ, and what they share in the store.\n\n"
     "Of all of them:",
     NULL},
    {"base", NULL, "a template's disk as it was before it was booted", take_base},
    {NULL, NULL, "Of an IMAGE:", NULL},
    IMAGE_OPTION_ROWS,
    PLATFORM_OPTION_ROW,
    {NULL, NULL, NULL, NULL},
};

/* A template's disk when there is such a template, else the image's. */
static int find_disk(struct digest *out, struct store *s, struct arguments *a, const char *what,
                     const struct global_options *g, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, what, e);
    if (rc == 0)
        *out = a->base ? t->base_disk : t->disk;
    if (rc != -ERR_NOTFOUND || !strpbrk(what, "/:"))
        return rc;
    err_clear(e);
    struct disk_options options = {
        .free_size = DISK_FREE_SIZE, .images = a->images.options, .cancel = g->cancel};
    return disk_assemble(out, s, what, &options, e);
}

/* ---- export ---- */

static int export(struct arguments *a, struct store *s, const struct digest *maps,
                  const struct global_options *g, struct err *e)
{
    int rc = a->raw ? disk_export(s, &maps[0], a->raw, g->cancel, e)
                    : disk_export_qcow2(s, &maps[0], a->qcow2, g->cancel, e);
    if (rc < 0)
        return rc;
    char text[DIGEST_TEXT_MAX];
    digest_print(&maps[0], text);
    if (!g->json) {
        puts(text);
        return 0;
    }
    AUTO_JSON struct json *j = json_new_object();
    json_set(j, "digest", json_new_string(text));
    return print_json(j, e);
}

/* ---- map ---- */

static struct json *extent_json(const struct map_extent *x, const char *chunk)
{
    struct json *j = json_new_object();
    json_set(j, "offset", json_new_integer((int64_t)x->off));
    json_set(j, "size", json_new_integer((int64_t)x->size));
    json_set(j, "chunk", json_new_string(chunk));
    json_set(j, "chunk_offset", json_new_integer((int64_t)x->chunk_off));
    return j;
}

static int show_map(struct arguments *a UNUSED, struct store *s, const struct digest *maps,
                    const struct global_options *g, struct err *e)
{
    AUTO_BLOCK_MAP struct block_map *m = NULL;
    char text[DIGEST_TEXT_MAX];
    int rc = store_get_map(s, &maps[0], &m, e);
    if (rc < 0)
        return rc;
    AUTO_JSON struct json *j = g->json ? json_new_object() : NULL;
    struct json *extents = g->json ? json_new_array() : NULL;
    if (!g->json)
        printf("%16s  %10s  %12s  %s\n", "OFFSET", "SIZE", "CHUNK OFFSET", "CHUNK");
    for (size_t i = 0; i < block_map_count(m); i++) {
        const struct map_extent *x = block_map_extent(m, i);
        digest_print(&x->chunk, text);
        if (g->json)
            json_append(extents, extent_json(x, text));
        else
            printf("%16" PRIu64 "  %10" PRIu32 "  %12" PRIu32 "  %s\n", x->off, x->size,
                   x->chunk_off, text);
    }
    if (!g->json)
        return 0;
    json_set(j, "digest", json_new_string(digest_print(&maps[0], text)));
    json_set(j, "size", json_new_integer((int64_t)block_map_virtual_size(m)));
    json_set(j, "extents", extents);
    return print_json(j, e);
}

/* ---- diff ---- */

static void show_range(void *ctx, uint64_t off, uint64_t size)
{
    struct json *list = ctx;
    if (!list) {
        printf("%16" PRIu64 "  %12" PRIu64 "\n", off, size);
        return;
    }
    struct json *j = json_new_object();
    json_set(j, "offset", json_new_integer((int64_t)off));
    json_set(j, "size", json_new_integer((int64_t)size));
    json_append(list, j);
}

static int diff(struct arguments *a UNUSED, struct store *s, const struct digest *maps,
                const struct global_options *g, struct err *e)
{
    AUTO_JSON struct json *list = g->json ? json_new_array() : NULL;
    struct disk_compare_options o = {.range = show_range, .ctx = list, .cancel = g->cancel};
    struct disk_difference d;
    if (!g->json)
        printf("%16s  %12s\n", "OFFSET", "SIZE");
    int rc = disk_compare(&d, s, maps, &o, e);
    if (rc < 0)
        return rc;
    if (g->json) {
        AUTO_JSON struct json *j = json_new_object();
        struct json *only = json_new_array();
        json_append(only, json_new_integer((int64_t)d.only_stored[0]));
        json_append(only, json_new_integer((int64_t)d.only_stored[1]));
        json_set(j, "ranges", json_clone(list));
        json_set(j, "different", json_new_integer((int64_t)d.different));
        json_set(j, "shared_stored", json_new_integer((int64_t)d.shared_stored));
        json_set(j, "only_stored", only);
        return print_json(j, e);
    }
    char text[SIZE_TEXT_MAX];
    printf("%s differ, in %" PRIu64 " ranges\n", print_size(d.different, text), d.ranges);
    printf("stored: %s shared", print_size(d.shared_stored, text));
    printf(", %s of the first alone", print_size(d.only_stored[0], text));
    printf(", %s of the second alone\n", print_size(d.only_stored[1], text));
    return 0;
}

/* ---- The command ---- */

static const struct subcommand {
    const char *name;
    int disk_count;
    int (*run)(struct arguments *a, struct store *s, const struct digest *maps,
               const struct global_options *g, struct err *e);
} subcommands[] = {{"export", 1, export}, {"map", 1, show_map}, {"diff", 2, diff}};

/* An exit status, or -1 to go on. */
static int check_arguments(const struct arguments *a, const struct subcommand *sub)
{
    if (a->disk_count < sub->disk_count)
        return usage_error(&command_disk, "which disk? An alias or an image is missing");
    if (a->disk_count > sub->disk_count)
        return usage_error(&command_disk, "'%s' is not expected here", a->disks[sub->disk_count]);
    if (sub->run != export && (a->raw || a->qcow2))
        return usage_error(&command_disk, "--raw and --qcow2 are for export");
    if (sub->run == export && !a->raw && !a->qcow2)
        return usage_error(&command_disk, "--raw or --qcow2 is missing: the file to write");
    if (a->raw && a->qcow2)
        return usage_error(&command_disk, "--raw or --qcow2, not both");
    return -1;
}

static int parse(struct arguments *a, const struct subcommand **sub, struct global_options *g,
                 int argc, char **argv)
{
    int status = options_read(&command_disk, g, a, argc, argv);
    if (status >= 0)
        return status;
    for (size_t i = 0; optind < argc && i < ARRAY_LEN(subcommands); i++) {
        if (strcmp(argv[optind], subcommands[i].name) == 0)
            *sub = &subcommands[i];
    }
    if (!*sub)
        return usage_error(&command_disk, "one of the words export, map, diff is missing");
    a->disks = argv + optind + 1;
    a->disk_count = argc - optind - 1;
    return check_arguments(a, *sub);
}

static int run_subcommand(struct arguments *a, const struct subcommand *sub,
                          const struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    struct digest maps[2];
    int rc = image_arguments_open(&a->images, g, &e);
    if (rc == 0)
        rc = open_store(&s, g, &e);
    for (int i = 0; rc == 0 && i < sub->disk_count; i++)
        rc = find_disk(&maps[i], s, a, a->disks[i], g, &e);
    if (rc == 0)
        rc = sub->run(a, s, maps, g, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    const struct subcommand *sub = NULL;
    int status = parse(&a, &sub, g, argc, argv);
    if (status < 0)
        status = run_subcommand(&a, sub, g);
    image_arguments_fini(&a.images);
    return status;
}

const struct command command_disk = {
    .name = "disk",
    .arguments = "(export DISK (--raw | --qcow2) FILE | map DISK | diff DISK DISK) [options]",
    .summary =
        "Write disks as files, show what they are made of, compare them.\n\n"
        "A DISK is a template's ALIAS, or an IMAGE, which is pulled and assembled, not booted.",
    .options = rows,
    .run = run,
};
