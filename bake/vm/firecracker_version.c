/* SPDX-License-Identifier: MIT */
/*
 * Which Firecracker is used. Snapshots of one version are not loaded by another here, so what counts
 * is whether a version's own snapshots are right. What is known to be wrong is from Firecracker's
 * CHANGELOG.md and issues.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bake/vm/firecracker.h"
#include "base/mem.h"

enum { VERSION_TIMEOUT_MS = 60000, PARTS = 3 };

struct version {
    unsigned long part[PARTS]; /* major, minor, patch */
};

/* Between the versions, both included. */
static const struct {
    struct version first;
    struct version last;
    const char *fault;
    const char *hint;
} bad[] = {
    {{{0, 0, 0}},
     {{1, 12, 99}},
     "is too old: this program speaks the API of 1.13 and newer",
     "use 1.16.1 or newer"},
    {{{1, 16, 0}},
     {{1, 16, 0}},
     "restores guests whose vsock is silent when data was under way at the snapshot (#5958)",
     "use 1.16.1 or newer"},
    {{{2, 0, 0}},
     {{~0UL, ~0UL, ~0UL}},
     "is not known to this program",
     "use a release of version 1"},
};

static bool parse(const char *text, struct version *out)
{
    for (size_t i = 0; i < PARTS; i++) {
        char *end = NULL;
        if (*text < '0' || *text > '9')
            return false;
        out->part[i] = strtoul(text, &end, 10);
        if (i + 1 < PARTS && *end != '.')
            return false;
        text = end + 1;
    }
    return true;
}

static int compare(const struct version *a, const struct version *b)
{
    for (size_t i = 0; i < PARTS; i++) {
        if (a->part[i] != b->part[i])
            return a->part[i] < b->part[i] ? -1 : 1;
    }
    return 0;
}

int firecracker_check_version(const char *version, struct err *e)
{
    struct version v;
    if (!parse(version, &v))
        return err_set(e, ERR_UNSUPPORTED, "Firecracker says that its version is '%.40s'", version);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        if (compare(&v, &bad[i].first) < 0 || compare(&v, &bad[i].last) > 0)
            continue;
        (void)err_set(e, ERR_UNSUPPORTED, "Firecracker %.40s %s", version, bad[i].fault);
        return err_hint(e, "%s", bad[i].hint);
    }
    return 0;
}

bool firecracker_is_older(const char *version, unsigned major, unsigned minor)
{
    struct version v;
    const struct version least = {{major, minor, 0}};
    return !parse(version, &v) || compare(&v, &least) < 0;
}

int firecracker_version(char **out, struct err *e)
{
    static const char *const argv[] = {"firecracker", "--version", NULL};
    static const char head[] = "Firecracker v";
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TOKEN);
    int status;
    int rc = proc_run(argv, &(struct proc_io){.out = &text, .timeout_ms = VERSION_TIMEOUT_MS},
                      &status, e);
    if (rc < 0)
        return rc;
    const char *at = strstr(buf_text(&text), head);
    if (!at || status != 0)
        return err_set(e, ERR_UNSUPPORTED, "firecracker --version says no version");
    at += strlen(head);
    AUTO_FREE char *version = mem_printf("%.*s", (int)strspn(at, "0123456789."), at);
    if (!version)
        return err_nomem(e, "Firecracker version");
    rc = firecracker_check_version(version, e);
    if (rc < 0)
        return rc;
    *out = mem_printf("firecracker %s", version);
    return *out ? 0 : err_nomem(e, "Firecracker version");
}
