/* SPDX-License-Identifier: MIT */
#include "cli/server_access.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

enum { KEY_FILE_MAX = 4096 };

/* The value of a variable; NULL when it is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int read_key(char **out, struct err *e)
{
    const char *file = variable("E2B_API_KEY_FILE");
    const char *home = variable("HOME");
    AUTO_FREE char *path =
        file ? mem_strdup(file) : mem_printf("%s/.config/e2b/api_key", home ? home : "");
    AUTO_BUF struct buf text;
    buf_init(&text, KEY_FILE_MAX);
    int rc = path ? file_read(AT_FDCWD, path, &text, e) : err_nomem(e, "API key");
    if (rc < 0) {
        err_in(e, "API key of the template server");
        return err_hint(e, "set E2B_API_KEY, or E2B_API_KEY_FILE to a file that holds it");
    }
    *out = mem_strndup(buf_text(&text), strcspn(buf_text(&text), " \t\r\n"));
    return *out ? 0 : err_nomem(e, "API key");
}

int server_access_find(struct server_access *a, bool required, struct err *e)
{
    const char *url = variable("E2B_API_URL");
    const char *domain = variable("E2B_DOMAIN");
    const char *key = variable("E2B_API_KEY");
    if (!url && !domain && !required)
        return 0;
    if (!url && !domain) {
        err_set(e, ERR_INPUT, "which template server?");
        return err_hint(e, "set E2B_API_URL, or E2B_DOMAIN for one at https://api.DOMAIN");
    }
    a->api_url = url ? mem_strdup(url) : mem_printf("https://api.%s", domain);
    a->sandbox_url = variable("E2B_SANDBOX_URL");
    if (!a->api_url)
        return err_nomem(e, "template server");
    if (!key)
        return read_key(&a->api_key, e);
    a->api_key = mem_strdup(key);
    return a->api_key ? 0 : err_nomem(e, "API key");
}

void server_access_fini(struct server_access *a)
{
    free(a->api_url);
    free(a->api_key);
}

int server_access_open(struct e2b **out, const struct global_options *g, struct err *e)
{
    struct server_access access = {.api_url = NULL};
    int rc = server_access_find(&access, true, e);
    if (rc == 0) {
        struct e2b_options options = {.api_url = access.api_url,
                                      .api_key = access.api_key,
                                      .sandbox_url = access.sandbox_url,
                                      .cancel = g->cancel};
        rc = e2b_new(out, &options, e);
    }
    server_access_fini(&access);
    return rc;
}
