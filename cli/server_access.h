/* SPDX-License-Identifier: MIT */
/* Private to cli: how the template server is reached, from the environment as its SDKs read it. */
#ifndef TB2_CLI_SERVER_ACCESS_H
#define TB2_CLI_SERVER_ACCESS_H

#include "cli/cmd.h"

struct server_access {
    char *api_url; /* NULL: no server is set */
    char *api_key;
    const char *sandbox_url;
};

/*
 * $E2B_API_URL, else https://api.$E2B_DOMAIN; the key from $E2B_API_KEY, the file $E2B_API_KEY_FILE,
 * or ~/.config/e2b/api_key; $E2B_SANDBOX_URL. No address: success with nothing set, or, where one is
 * `required`, ERR_INPUT.
 */
int server_access_find(struct server_access *a, bool required, struct err *e) MUST_USE;
void server_access_fini(struct server_access *a);
/* The same, opened. */
int server_access_open(struct e2b **out, const struct global_options *g, struct err *e) MUST_USE;

#endif
