/* SPDX-License-Identifier: MIT */
/* What the template server has, and taking things off it. */
#include "registry/e2b_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { PAGES_MAX = 1000, TEXT_MAX_LEN = 200 };

void e2b_entries_free(struct e2b_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(entries[i].alias);
        free(entries[i].template_id);
        free(entries[i].build_id);
        free(entries[i].status);
        free(entries[i].created);
    }
    free(entries);
}

struct entries {
    struct e2b_entry *items;
    size_t count;
    size_t capacity;
};

/* The first of a list of texts; NULL when there is none. */
static const char *first_text(const struct json *item, const char *key)
{
    const struct json *list = json_member(item, key);
    const struct json *first = list ? json_element(list, 0) : NULL;
    return first ? json_as_string(first) : NULL;
}

/* E2B Cloud puts a namespace in front of names. */
static const char *name_of(const struct json *item)
{
    const char *name = first_text(item, "names");
    const char *alias = first_text(item, "aliases");
    const char *slash = name ? strrchr(name, '/') : NULL;
    if (slash)
        return slash[1] ? slash + 1 : alias;
    return name ? name : alias;
}

static char *optional_text(const struct json *item, const char *key)
{
    const struct json *member = json_member(item, key);
    const char *text = member ? json_as_string(member) : NULL;
    return text ? e2b_clean(text, TEXT_MAX_LEN, false) : NULL;
}

static uint64_t optional_number(const struct json *item, const char *key)
{
    const struct json *member = json_member(item, key);
    int64_t value = member ? json_as_integer(member) : 0;
    return value > 0 ? (uint64_t)value : 0;
}

static int add_entry(struct entries *out, const struct e2b *c, const struct json *item,
                     const char *doing, struct err *e)
{
    int rc = mem_grow(&out->items, &out->capacity, out->count + 1, sizeof(*out->items), e);
    if (rc < 0)
        return rc;
    struct e2b_entry *entry = &out->items[out->count];
    *entry = (struct e2b_entry){.cpus = 0};
    rc = e2b_take_id(&entry->template_id, c, item, "templateID", doing, e);
    if (rc < 0)
        return rc;
    out->count++;
    const char *name = name_of(item);
    entry->alias = e2b_clean(name ? name : entry->template_id, TEXT_MAX_LEN, false);
    entry->build_id = optional_text(item, "buildID");
    entry->status = optional_text(item, "buildStatus");
    entry->created = optional_text(item, "createdAt");
    entry->cpus = optional_number(item, "cpuCount");
    entry->memory_mb = optional_number(item, "memoryMB");
    entry->disk_mb = optional_number(item, "diskSizeMB");
    if (!entry->status)
        entry->status = mem_strdup("unknown");
    return entry->alias && entry->status ? 0 : err_nomem(e, "list of templates");
}

/* One page; *token is where the next one begins, NULL after the last. */
static int list_page(struct e2b *c, struct entries *out, char **token, struct err *e)
{
    static const char doing[] = "listing the templates";
    AUTO_FREE char *escaped = *token ? http_escape(*token) : NULL;
    AUTO_FREE char *path = mem_printf("/v2/templates?limit=100%s%s", escaped ? "&nextToken=" : "",
                                      escaped ? escaped : "");
    AUTO_E2B_REPLY struct e2b_reply reply = {.retry_after_ms = -1};
    if (!path || (*token && !escaped))
        return err_nomem(e, "list of templates");
    free(MOVE(*token));
    struct e2b_call call = {.method = "GET", .path = path, .doing = doing};
    int rc = e2b_send(c, &call, &reply, e);
    if (rc < 0)
        return rc;
    if (!e2b_is_ok(&reply))
        return e2b_refused(c, &reply, doing, e);
    if (!reply.json || json_kind(reply.json) != JSON_KIND_ARRAY)
        return e2b_malformed(c, doing, "no list", e);
    for (size_t i = 0; rc == 0 && i < json_length(reply.json); i++)
        rc = add_entry(out, c, json_element(reply.json, i), doing, e);
    *token = MOVE(reply.next_token);
    return rc;
}

static int compare_entries(const void *a, const void *b)
{
    const struct e2b_entry *left = a;
    const struct e2b_entry *right = b;
    int order = strcmp(left->alias, right->alias);
    return order != 0 ? order : strcmp(left->template_id, right->template_id);
}

int e2b_list(struct e2b *c, struct e2b_entry **out, size_t *count, struct err *e)
{
    struct entries found = {0};
    AUTO_FREE char *token = NULL;
    int rc = 0;
    unsigned pages = 0;
    do {
        rc = list_page(c, &found, &token, e);
    } while (rc == 0 && token && ++pages < PAGES_MAX);
    if (rc == 0 && token)
        rc = err_set(e, ERR_LIMIT, "%s: the list of templates does not end", c->name);
    if (rc < 0) {
        e2b_entries_free(found.items, found.count);
        return rc;
    }
    if (found.count > 0)
        qsort(found.items, found.count, sizeof(*found.items), compare_entries);
    *out = found.items;
    *count = found.count;
    return 0;
}

int e2b_remove(struct e2b *c, const char *alias, struct err *e)
{
    struct e2b_template named = {.alias = alias};
    struct e2b_session s = {.client = c, .wanted = &named};
    AUTO_E2B_BUILD struct e2b_build found = {.age_ms = -1};
    int rc = e2b_check_alias(alias, e);
    if (rc == 0)
        rc = e2b_look_up(&s, &found, e);
    if (rc < 0)
        return rc;
    if (!found.template_id)
        return err_set(e, ERR_NOTFOUND, "%s: no template %s", c->name, alias);
    return e2b_delete(&s, found.template_id, false, e);
}
