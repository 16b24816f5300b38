/* SPDX-License-Identifier: MIT */
/* tb2-bake push: disks of templates and of images, into a registry. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bake/push.h"
#include "cli/cmd.h"
#include "cli/image_arguments.h"
#include "cli/push_arguments.h"

struct arguments {
    struct image_arguments images;
    struct push_options push;
    char **what; /* aliases or image references */
    int count;
    const char *to;
};

static int take_format(void *arguments, const char *value, struct err *e)
{
    struct arguments *a = arguments;
    return push_format_parse(&a->push.format, value, e);
}

static int take_compression(void *arguments, const char *value, struct err *e)
{
    struct arguments *a = arguments;
    return push_compression_parse(&a->push.compression, value, e);
}

static int take_block_size(void *arguments, const char *value, struct err *e)
{
    struct arguments *a = arguments;
    char *end = NULL;
    unsigned long size = strtoul(value, &end, 10);
    if (*end || (size != 4 && size != 8 && size != 16 && size != 32))
        return err_set(e, ERR_INPUT, "--block-size is 4, 8, 16 or 32 (KiB), not '%s'", value);
    a->push.block_size = (uint32_t)size << 10;
    return 0;
}

static const struct option_row rows[] = {
    PUSH_OPTION_ROWS(take_format, take_compression),
    {"block-size", "KIB", "compressed together: 4, 8, 16 (the default) or 32", take_block_size},
    IMAGE_OPTION_ROWS,
    PLATFORM_OPTION_ROW,
    {NULL, NULL, NULL, NULL},
};

static struct json *report_json(const char *what, const struct push_report *r)
{
    char text[DIGEST_TEXT_MAX];
    struct json *j = json_new_object();
    json_set(j, "pushed", json_new_string(what));
    json_set(j, "reference", json_new_string(r->reference));
    json_set(j, "digest", json_new_string(digest_print(&r->digest, text)));
    json_set(j, "layers", json_new_integer((int64_t)r->layers));
    json_set(j, "converted", json_new_integer((int64_t)r->converted));
    json_set(j, "sent", json_new_integer((int64_t)r->sent));
    json_set(j, "mounted", json_new_integer((int64_t)r->mounted));
    json_set(j, "size", json_new_integer((int64_t)r->size));
    json_set(j, "sent_size", json_new_integer((int64_t)r->sent_size));
    return j;
}

static void show_report(const struct push_report *r)
{
    char size[SIZE_TEXT_MAX];
    char sent[SIZE_TEXT_MAX];
    printf("%s\n", r->reference);
    printf("  %zu layer%s, %s; %zu sent (%s), %zu mounted, %zu there\n", r->layers,
           r->layers == 1 ? "" : "s", print_size(r->size, size), r->sent,
           print_size(r->sent_size, sent), r->mounted, r->layers - r->sent - r->mounted);
}

/* A template's disk when there is such a template, else the image's. */
static int push_one(struct arguments *a, struct push *p, struct store *s, const char *what,
                    struct push_report *report, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, what, e);
    if (rc == 0)
        return push_template(p, t, a->to, report, e);
    if (rc != -ERR_NOTFOUND || !strpbrk(what, "/:"))
        return rc;
    err_clear(e);
    return push_image(p, what, a->to, report, e);
}

static int push_all(struct arguments *a, struct store *s, const struct global_options *g,
                    struct err *e)
{
    AUTO_PUSH struct push *p = NULL;
    AUTO_JSON struct json *list = json_new_array();
    a->push.images = a->images.options;
    a->push.free_size = DISK_FREE_SIZE;
    a->push.cancel = g->cancel;
    int rc = push_open(&p, s, &a->push, e);
    for (int i = 0; rc == 0 && i < a->count; i++) {
        struct push_report report = {.reference = NULL};
        rc = push_one(a, p, s, a->what[i], &report, e);
        if (rc == 0 && g->json)
            json_append(list, report_json(a->what[i], &report));
        else if (rc == 0)
            show_report(&report);
        push_report_fini(&report);
    }
    return rc == 0 && g->json ? print_json(list, e) : rc;
}

/* An exit status, or -1 to go on. */
static int parse(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_push, g, a, argc, argv);
    if (status >= 0)
        return status;
    if (argc - optind < 2)
        return usage_error(&command_push, optind == argc ? "what is to be pushed, and where to?"
                                                         : "where to? A repository is missing");
    a->what = argv + optind;
    a->count = argc - optind - 1;
    a->to = argv[argc - 1];
    const char *slash = strrchr(a->to, '/');
    if (!slash)
        return usage_error(&command_push, "'%s' is not a repository, HOST/NAME", a->to);
    if (a->count > 1 && strchr(slash, ':'))
        return usage_error(&command_push, "several things cannot have the one tag of '%s'", a->to);
    return -1;
}

static int work(struct arguments *a, const struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    int rc = image_arguments_open(&a->images, g, &e);
    if (rc == 0)
        rc = open_store(&s, g, &e);
    if (rc == 0)
        rc = push_all(a, s, g, &e);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    int status = parse(&a, g, argc, argv);
    if (status < 0)
        status = work(&a, g);
    image_arguments_fini(&a.images);
    return status;
}

const struct command command_push = {
    .name = "push",
    .arguments = "(ALIAS | IMAGE)... REPOSITORY[:TAG] [options]",
    .summary =
        "Push disks to a registry, as images of OverlayBD layers that AgentENV hosts load on "
        "demand,\n"
        "or as plain images. Prints the name of each with its digest.\n\n"
        "There is one layer for each layer of the image a disk was made from, and one for all the\n"
        "rest, so that what disks share is there once. Nothing is converted or sent twice. An "
        "IMAGE\n"
        "is pulled and assembled, not booted; with --push-format oci it is copied as it is. "
        "Without a\n"
        "TAG it is the alias, or the image's name and tag.",
    .options = rows,
    .run = run,
};
