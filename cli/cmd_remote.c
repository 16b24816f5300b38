/* SPDX-License-Identifier: MIT */
/* tb2-bake remote push, pull: templates between hosts. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cmd.h"
#include "cli/options.h"

const char *remote_url(const char *given)
{
    const char *url = given ? given : getenv("TB2_BAKE_REMOTE");
    return url && *url ? url : NULL;
}

int remote_lease(int64_t *lease_ms, struct err *e)
{
    const char *text = getenv("TB2_BAKE_REMOTE_LEASE");
    *lease_ms = 0;
    if (!text || !*text)
        return 0;
    char *end;
    errno = 0;
    long seconds = strtol(text, &end, 10);
    if (errno || *end || seconds < 1 || seconds > 600)
        return err_set(e, ERR_INPUT, "TB2_BAKE_REMOTE_LEASE is seconds, 1 to 600, not '%s'", text);
    *lease_ms = seconds * 1000;
    return 0;
}

int open_remote(struct remote **out, struct store **s, const struct global_options *g,
                const char *url, struct err *e)
{
    struct remote_options o = {.url = remote_url(url), .cancel = g->cancel};
    if (!o.url)
        return 0;
    int rc = remote_lease(&o.lease_ms, e);
    if (rc == 0)
        rc = open_store(s, g, e);
    return rc < 0 ? rc : remote_open(out, *s, &o, e);
}

struct arguments {
    bool push;
    bool all;
    const char *url;
    char **aliases; /* given, or (all) those of the catalog, which are owned */
    size_t count;
};

static int take_remote(void *arguments, const char *value, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->url = value;
    return 0;
}

static int take_all(void *arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct arguments *a = arguments;
    a->all = true;
    return 0;
}

static const struct option_row rows[] = {
    {NULL, NULL,
     "push: send templates of this store, and what they need.\n"
     "pull: bring templates here, every chunk of them.\n\n"
     "Of both:",
     NULL},
    {"remote", "URL", "the remote store (default: $TB2_BAKE_REMOTE)", take_remote},
    {"all", NULL, "push every template of the catalog", take_all},
    {NULL, NULL, NULL, NULL},
};

/* An exit status, or -1 to go on. */
static int parse(struct arguments *a, struct global_options *g, int argc, char **argv)
{
    int status = options_read(&command_remote, g, a, argc, argv);
    if (status >= 0)
        return status;
    if (optind == argc)
        return usage_error(&command_remote, "push or pull?");
    a->push = strcmp(argv[optind], "push") == 0;
    if (!a->push && strcmp(argv[optind], "pull") != 0)
        return usage_error(&command_remote, "it is push or pull, not '%s'", argv[optind]);
    a->aliases = argv + optind + 1;
    a->count = (size_t)(argc - optind - 1);
    if (!remote_url(a->url))
        return usage_error(&command_remote, "which remote store? --remote is missing");
    if (a->all && (!a->push || a->count > 0))
        return usage_error(&command_remote, "--all is for push, and stands for all aliases");
    if (!a->all && a->count == 0)
        return usage_error(&command_remote, "which templates? Their aliases are missing");
    return -1;
}

static int push(struct store *s, struct remote *r, const char *alias, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = template_load(&t, s, alias, e);
    return rc < 0 ? rc : remote_push_template(r, t, e);
}

static int pull(struct store *s, struct remote *r, const char *alias, struct err *e)
{
    AUTO_TEMPLATE struct template *t = NULL;
    int rc = remote_pull_template(r, alias, e);
    if (rc == 0)
        rc = template_load(&t, s, alias, e);
    return rc < 0 ? rc : remote_complete_template(r, t, e);
}

static void report(const struct arguments *a, const struct remote *r)
{
    struct remote_stats stats = remote_stats(r);
    uint64_t chunks = a->push ? stats.chunks_sent : stats.chunks_fetched;
    char size[SIZE_TEXT_MAX];
    print_size(a->push ? stats.chunk_bytes_sent : stats.chunk_bytes_fetched, size);
    printf("%zu template%s %s %s: %llu chunks (%s) were new\n", a->count, a->count == 1 ? "" : "s",
           a->push ? "pushed to" : "pulled from", remote_name(r), (unsigned long long)chunks, size);
}

static int work(struct arguments *a, struct global_options *g)
{
    struct err e = ERR_INIT;
    AUTO_STORE struct store *s = NULL;
    AUTO_REMOTE struct remote *r = NULL;
    char **listed = NULL;
    int rc = open_remote(&r, &s, g, a->url, &e);
    if (rc == 0 && a->all) {
        rc = template_list(&listed, &a->count, s, &e);
        a->aliases = listed;
    }
    for (size_t i = 0; rc == 0 && i < a->count; i++)
        rc = a->push ? push(s, r, a->aliases[i], &e) : pull(s, r, a->aliases[i], &e);
    if (rc == 0)
        report(a, r);
    for (size_t i = 0; listed && i < a->count; i++)
        free(listed[i]);
    free(listed);
    return rc < 0 ? report_error(&e) : EXIT_ALL_READY;
}

static int run(struct global_options *g, int argc, char **argv)
{
    struct arguments a = {0};
    int status = parse(&a, g, argc, argv);
    return status >= 0 ? status : work(&a, g);
}

const struct command command_remote = {
    .name = "remote",
    .arguments = "push|pull [--remote URL] (ALIAS... | --all)",
    .summary = "Copy templates to a remote store, or from one.",
    .options = rows,
    .notes =
        "A remote store is one of\n"
        "  https://HOST/PATH    a store's directory behind a web server; only read\n"
        "  s3://BUCKET/PREFIX   an S3 bucket; ?endpoint=URL&region=NAME&style=path may follow. "
        "Keys\n"
        "                       are those of Amazon's tools: AWS_ACCESS_KEY_ID and so on, or a\n"
        "                       profile in ~/.aws\n"
        "  oci://HOST/NAME      a repository of an OCI registry; logins as for images\n\n"
        "With 'bake --remote', bakers share the work: what one has done the others take over, and\n"
        "what one is at the others leave (through S3; a registry cannot tell who is first). Who\n"
        "stops renewing a claim for a minute ($TB2_BAKE_REMOTE_LEASE seconds) has lost it. 'run'\n"
        "and 'verify' take what they need from --remote.",
    .run = run,
};
