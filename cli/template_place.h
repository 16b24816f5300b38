/* SPDX-License-Identifier: MIT */
/* Private to cli: where a command takes its template from. */
#ifndef TB2_CLI_TEMPLATE_PLACE_H
#define TB2_CLI_TEMPLATE_PLACE_H

#include "cli/cmd.h"

struct template_place {
    struct global_options *g;
    const char *remote; /* --remote; NULL: not given */
    const char *tap;    /* --tap; NULL: not given */
    const char *alias;
};

/* Take --remote and --tap into a struct that begins with a template_place. */
int take_template_remote(void *arguments, const char *value, struct err *e);
int take_template_tap(void *arguments, const char *value, struct err *e);

#define REMOTE_ROW                                                                                 \
    {                                                                                              \
        "remote", "URL",                                                                           \
            "take the template, or chunks of it that are missing, from a remote\n"                 \
            "store (default: $TB2_BAKE_REMOTE)",                                                   \
            take_template_remote                                                                   \
    }

#define TAP_ROW                                                                                    \
    {                                                                                              \
        "tap", "NAME",                                                                             \
            "the template's network card is on this tap device, as with bake; without, it\n"       \
            "is on a user-mode network, which Firecracker has not",                                \
            take_template_tap                                                                      \
    }

/* Opens the store and, if one is named, the remote store, which gives what the former lacks. Declared
 * in this order by the caller, so that the store is closed last. */
int open_template(struct template **out, struct store **s, struct remote **remote,
                  const struct template_place *p, struct err *e) MUST_USE;

/* How templates are used, as far as the options of every such command say it. */
struct template_use template_use_of(const struct template_place *p);

#endif
