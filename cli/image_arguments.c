/* SPDX-License-Identifier: MIT */
/* The options of every command that takes images. */
#include "cli/image_arguments.h"

#include <stdlib.h>

#include "base/mem.h"

void image_arguments_fini(struct image_arguments *a)
{
    free(a->plain_http_hosts.items);
    registry_network_fini(&a->network);
}

int image_arguments_open(struct image_arguments *a, const struct global_options *g, struct err *e)
{
    a->options.network = &a->network;
    return open_network(&a->network, g, e);
}

int text_list_add(struct text_list *list, const char *text, struct err *e)
{
    int rc = mem_grow(&list->items, &list->capacity, list->count + 2, sizeof(*list->items), e);
    if (rc < 0)
        return rc;
    list->items[list->count++] = text;
    list->items[list->count] = NULL;
    return 0;
}

int take_plain_http(void *image_arguments, const char *value, struct err *e)
{
    struct image_arguments *a = image_arguments;
    int rc = text_list_add(&a->plain_http_hosts, value, e);
    a->options.plain_http_hosts = a->plain_http_hosts.items;
    return rc;
}

int take_offline(void *image_arguments, const char *value UNUSED, struct err *e UNUSED)
{
    struct image_arguments *a = image_arguments;
    a->options.offline = true;
    return 0;
}

int take_platform(void *image_arguments, const char *value, struct err *e UNUSED)
{
    struct image_arguments *a = image_arguments;
    a->options.platform = value;
    return 0;
}
