/* SPDX-License-Identifier: MIT */
/*
 * YAML events to a tree with line and column: the only file that includes libyaml.
 *
 * Recipes need mappings, lists and text. What else YAML has is refused by name rather than half
 * supported: anchors and aliases (a short file could expand to a huge one), tags, several
 * documents, keys that are not scalars. Depth, nodes and keys are bounded; the stack below holds
 * the open collections, so nothing recurses while reading.
 */
#include "manifests/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yaml.h>

#include "base/mem.h"

enum { KEYS_MAX = 1000 };

struct builder {
    const char *name;
    yaml_parser_t parser;
    struct node *root;
    struct node *stack[NODE_DEPTH_MAX]; /* borrowed from the tree */
    size_t depth;
    size_t node_count;
};

void node_free(struct node *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->count; i++)
        node_free(n->items[i]);
    free(n->items);
    free(n->text);
    free(n);
}

static int mark_fail(const struct builder *b, yaml_mark_t mark, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

static int mark_fail(const struct builder *b, yaml_mark_t mark, struct err *e, const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return err_set(e, ERR_INPUT, "%s:%zu:%zu: %s", b->name, mark.line + 1, mark.column + 1, text);
}

static int syntax_fail(const struct builder *b, struct err *e)
{
    const yaml_parser_t *p = &b->parser;
    const char *problem = p->problem ? p->problem : "not YAML";
    if (p->error == YAML_MEMORY_ERROR)
        return err_nomem(e, b->name);
    if (p->error == YAML_READER_ERROR)
        return mark_fail(b, p->mark, e, "byte %zu of the file: %s", p->problem_offset, problem);
    return mark_fail(b, p->problem_mark, e, "%s%s%s", problem, p->context ? ", " : "",
                     p->context ? p->context : "");
}

static const struct node *key_before(const struct node *mapping, const struct node *key)
{
    for (size_t i = 0; i + 1 < mapping->count; i += 2) {
        const struct node *other = mapping->items[i];
        if (other->len == key->len && memcmp(other->text, key->text, key->len) == 0)
            return other;
    }
    return NULL;
}

/* Judges a node that is about to become a key of `mapping`. */
static int check_key(const struct builder *b, const struct node *mapping, const struct node *key,
                     yaml_mark_t mark, struct err *e)
{
    char shown[TEXT_SHOW_MAX];
    if (key->kind != NODE_SCALAR)
        return mark_fail(b, mark, e, "a key must be text");
    if (mapping->count / 2 == KEYS_MAX)
        return mark_fail(b, mark, e, "more than %d keys in one mapping", KEYS_MAX);
    const struct node *before = key_before(mapping, key);
    if (!before)
        return 0;
    return mark_fail(b, mark, e, "the key '%s' is already in line %u",
                     text_show(key->text, key->len, shown), before->line);
}

/* Puts a node, which it takes over, where the document is being read. */
static int attach(struct builder *b, struct node *node, yaml_mark_t mark, struct err *e)
{
    AUTO_NODE struct node *held = node;
    if (++b->node_count > NODE_COUNT_MAX)
        return mark_fail(b, mark, e, "more than %d values", NODE_COUNT_MAX);
    if (b->depth == 0) {
        b->root = MOVE(held);
        return 0;
    }
    struct node *parent = b->stack[b->depth - 1];
    int rc = 0;
    if (parent->kind == NODE_MAPPING && parent->count % 2 == 0)
        rc = check_key(b, parent, node, mark, e);
    if (rc == 0)
        rc = mem_grow(&parent->items, &parent->capacity, parent->count + 1, sizeof(struct node *),
                      e);
    if (rc < 0)
        return rc;
    parent->items[parent->count++] = MOVE(held);
    return 0;
}

/* NULL when memory is short. */
static struct node *new_node(enum node_kind kind, yaml_mark_t mark)
{
    struct node *node = mem_zalloc(sizeof(*node));
    if (node) {
        node->kind = kind;
        node->line = (unsigned)mark.line + 1;
        node->column = (unsigned)mark.column + 1;
    }
    return node;
}

static int check_plain_node(const struct builder *b, const yaml_event_t *event,
                            const yaml_char_t *anchor, const yaml_char_t *tag, struct err *e)
{
    if (anchor)
        return mark_fail(b, event->start_mark, e, "anchors are not supported here");
    if (tag)
        return mark_fail(b, event->start_mark, e, "tags are not supported here");
    return 0;
}

static int add_scalar(struct builder *b, const yaml_event_t *event, struct err *e)
{
    const char *text = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    int rc = check_plain_node(b, event, event->data.scalar.anchor, event->data.scalar.tag, e);
    if (rc < 0)
        return rc;
    if (strlen(text) != len)
        return mark_fail(b, event->start_mark, e, "a NUL character cannot be part of a text");
    AUTO_NODE struct node *node = new_node(NODE_SCALAR, event->start_mark);
    if (!node)
        return err_nomem(e, "YAML value");
    node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->len = len;
    node->text = mem_strndup(text, len);
    if (!node->text)
        return err_nomem(e, "YAML value");
    return attach(b, MOVE(node), event->start_mark, e);
}

static int open_collection(struct builder *b, const yaml_event_t *event, enum node_kind kind,
                           struct err *e)
{
    bool mapping = kind == NODE_MAPPING;
    int rc = check_plain_node(
        b, event, mapping ? event->data.mapping_start.anchor : event->data.sequence_start.anchor,
        mapping ? event->data.mapping_start.tag : event->data.sequence_start.tag, e);
    if (rc < 0)
        return rc;
    if (b->depth == NODE_DEPTH_MAX)
        return mark_fail(b, event->start_mark, e, "nested more than %d levels deep",
                         NODE_DEPTH_MAX);
    struct node *node = new_node(kind, event->start_mark);
    if (!node)
        return err_nomem(e, "YAML value");
    rc = attach(b, node, event->start_mark, e);
    if (rc == 0)
        b->stack[b->depth++] = node;
    return rc;
}

static int handle_event(struct builder *b, const yaml_event_t *event, struct err *e)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return add_scalar(b, event, e);
    case YAML_SEQUENCE_START_EVENT:
        return open_collection(b, event, NODE_SEQUENCE, e);
    case YAML_MAPPING_START_EVENT:
        return open_collection(b, event, NODE_MAPPING, e);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return 0;
    case YAML_ALIAS_EVENT:
        return mark_fail(b, event->start_mark, e, "aliases are not supported here");
    case YAML_DOCUMENT_START_EVENT:
        if (b->root)
            return mark_fail(b, event->start_mark, e, "a second document starts here");
        return 0;
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        break;
    }
    return 0;
}

static int read_events(struct builder *b, struct err *e)
{
    for (bool more = true; more;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&b->parser, &event))
            return syntax_fail(b, e);
        int rc = handle_event(b, &event, e);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        if (rc < 0)
            return rc;
    }
    if (!b->root)
        return err_set(e, ERR_INPUT, "%s: the file is empty", b->name);
    return 0;
}

int node_parse(struct node **out, const void *text, size_t len, const char *name, struct err *e)
{
    if (len > LIMIT_RECIPE)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes are more than the limit of %zu", name, len,
                       LIMIT_RECIPE);
    struct builder b = {.name = name};
    if (!yaml_parser_initialize(&b.parser))
        return err_nomem(e, name);
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&b.parser, len > 0 ? text : (const void *)"", len);
    int rc = read_events(&b, e);
    yaml_parser_delete(&b.parser);
    if (rc < 0) {
        node_free(b.root);
        return rc;
    }
    *out = b.root;
    return 0;
}
