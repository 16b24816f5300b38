/* SPDX-License-Identifier: MIT */
/* Private to cli: the options of every command that takes images. */
#ifndef TB2_CLI_IMAGE_ARGUMENTS_H
#define TB2_CLI_IMAGE_ARGUMENTS_H

#include "cli/cmd.h"
#include "cli/options.h"

/* A list of texts that grows; NULL-terminated once it holds any. */
struct text_list {
    const char **items;
    size_t count;
    size_t capacity;
};
/* Borrows the text. */
int text_list_add(struct text_list *list, const char *text, struct err *e) MUST_USE;

/* The first member of a command's arguments, for the rows below. */
struct image_arguments {
    struct image_options options; /* points into the rest */
    struct text_list plain_http_hosts;
    struct registry_network network;
};
/* After the options have been read: what --registries and --ca name. */
int image_arguments_open(struct image_arguments *a, const struct global_options *g,
                         struct err *e) MUST_USE;
void image_arguments_fini(struct image_arguments *a);

int take_plain_http(void *image_arguments, const char *value, struct err *e) MUST_USE;
int take_offline(void *image_arguments, const char *value, struct err *e) MUST_USE;
int take_platform(void *image_arguments, const char *value, struct err *e) MUST_USE;

/* Rows of an option table. */
#define IMAGE_OPTION_ROWS                                                                          \
    {"plain-http", "HOST", "speak plain HTTP to this registry (loopback: always)",                 \
     take_plain_http},                                                                             \
    {                                                                                              \
        "offline", NULL, "make no request: what the store has, and images in files", take_offline  \
    }
/* One more, for commands that boot nothing. */
#define PLATFORM_OPTION_ROW                                                                        \
    {                                                                                              \
        "platform", "PLATFORM",                                                                    \
            "os/architecture[/variant] of the image (default: this machine\'s)", take_platform     \
    }

#endif
