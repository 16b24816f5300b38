/* SPDX-License-Identifier: MIT */
/*
 * Structure of TOML 1.0.0: the document as a tree, and the rules about what may be said twice.
 *
 * Each table and array remembers how it came to be (enum toml_origin); all redefinition rules are
 * decided on that, in open_table_part, header_table, header_element and dotted_part. Depth is
 * counted per node and bounded, for key parts as for brackets, so that neither parsing nor freeing
 * can run out of stack. Tables get a hash index once they are larger than a few members: a document
 * of a million keys is read in linear time, whatever the keys.
 */
#include "manifests/internal.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/mem.h"

enum { INDEX_FROM = 8 };

struct parser {
    struct toml_scan scan;
    struct toml *root;
    struct toml *current; /* table of the last header */
    size_t value_count;
    struct buf key; /* key part being read */
};

static int parse_value(struct parser *p, struct toml *t, struct err *e);

/* ---- The tree ------------------------------------------------------------------------------ */

void toml_free(struct toml *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++) {
        toml_free(t->items[i]);
        if (t->keys)
            free(t->keys[i].text);
    }
    free(t->items);
    free(t->keys);
    free(t->index);
    free(t->text);
    free(t);
}

static bool key_equal(const struct toml_key *a, const char *key, size_t len)
{
    return a->len == len && memcmp(a->text, key, len) == 0;
}

static struct toml *find(const struct toml *table, const char *key, size_t len)
{
    if (!table->index) {
        for (size_t i = 0; i < table->count; i++) {
            if (key_equal(&table->keys[i], key, len))
                return table->items[i];
        }
        return NULL;
    }
    size_t mask = table->index_capacity - 1;
    for (size_t at = hash_bytes(&table->index_key, 0, key, len) & mask; table->index[at];
         at = (at + 1) & mask) {
        size_t i = table->index[at] - 1;
        if (key_equal(&table->keys[i], key, len))
            return table->items[i];
    }
    return NULL;
}

static void index_add(struct toml *table, size_t position)
{
    size_t mask = table->index_capacity - 1;
    const struct toml_key *key = &table->keys[position];
    size_t at = hash_bytes(&table->index_key, 0, key->text, key->len) & mask;
    while (table->index[at])
        at = (at + 1) & mask;
    table->index[at] = (uint32_t)position + 1;
}

/* Makes room in the index for one more member, keeping it at most half full. */
static int index_reserve(struct toml *table, struct err *e)
{
    if (table->count < INDEX_FROM || (table->count + 1) * 2 <= table->index_capacity)
        return 0;
    size_t capacity = table->index_capacity ? table->index_capacity * 2 : INDEX_FROM * 4;
    uint32_t *index = mem_array(capacity, sizeof(*index));
    if (!index)
        return err_nomem(e, "index of a table");
    int rc = table->index ? 0 : hash_key_draw(&table->index_key, e);
    if (rc < 0) {
        free(index);
        return rc;
    }
    free(table->index);
    table->index = index;
    table->index_capacity = capacity;
    for (size_t i = 0; i < table->count; i++)
        index_add(table, i);
    return 0;
}

/* A new node below `parent`, not linked yet. */
static int new_node(struct parser *p, struct toml **out, const struct toml *parent,
                    struct toml_place place, struct err *e)
{
    unsigned depth = parent ? parent->depth + 1 : 0;
    if (depth > TOML_DEPTH_MAX)
        return toml_scan_fail(&p->scan, place, e, "nested more than %d levels deep",
                              TOML_DEPTH_MAX);
    if (++p->value_count > TOML_VALUE_MAX)
        return toml_scan_fail(&p->scan, place, e, "more than %d values", TOML_VALUE_MAX);
    struct toml *t = mem_zalloc(sizeof(*t));
    if (!t)
        return err_nomem(e, "TOML value");
    t->depth = depth;
    t->place = place;
    *out = t;
    return 0;
}

/* Appends `item`, which is taken over only on success. */
static int append_item(struct toml *t, struct toml *item, struct err *e)
{
    int rc = mem_grow(&t->items, &t->items_capacity, t->count + 1, sizeof(struct toml *), e);
    if (rc < 0)
        return rc;
    t->items[t->count++] = item;
    return 0;
}

/* Adds a member under the key in p->key; `item` is taken over only on success. */
static int add_member(struct parser *p, struct toml *table, struct toml *item, struct err *e)
{
    int rc =
        mem_grow(&table->keys, &table->keys_capacity, table->count + 1, sizeof(struct toml_key), e);
    if (rc == 0)
        rc = index_reserve(table, e);
    if (rc < 0)
        return rc;
    char *text = mem_strndup(buf_text(&p->key), p->key.len);
    if (!text)
        return err_nomem(e, "key");
    table->keys[table->count] = (struct toml_key){.text = text, .len = p->key.len};
    rc = append_item(table, item, e);
    if (rc < 0) {
        free(text);
        return rc;
    }
    if (table->index)
        index_add(table, table->count - 1);
    return 0;
}

static int add_new_member(struct parser *p, struct toml *table, struct toml_place place,
                          struct toml **out, struct err *e)
{
    AUTO_TOML struct toml *item = NULL;
    int rc = new_node(p, &item, table, place, e);
    if (rc == 0)
        rc = add_member(p, table, item, e);
    if (rc < 0)
        return rc;
    *out = MOVE(item);
    return 0;
}

static struct toml *find_key(const struct parser *p, const struct toml *table)
{
    return find(table, buf_text(&p->key), p->key.len);
}

/* ---- Redefinition rules -------------------------------------------------------------------- */

static const char *describe(const struct toml *t)
{
    switch (t->origin) {
    case TOML_ORIGIN_HEADER:
    case TOML_ORIGIN_IMPLICIT:
        return "a table";
    case TOML_ORIGIN_DOTTED:
        return "a table made by a dotted key";
    case TOML_ORIGIN_TABLES:
        return "an array of tables";
    case TOML_ORIGIN_VALUE:
        break;
    }
    if (t->type == TOML_TABLE)
        return "an inline table";
    return t->type == TOML_ARRAY ? "an array" : "a value";
}

static int redefined(const struct parser *p, struct toml_place place, const struct toml *before,
                     const char *wanted, struct err *e)
{
    char shown[TEXT_SHOW_MAX];
    return toml_scan_fail(&p->scan, place, e, "'%s' cannot be %s: it is %s since line %u",
                          text_show(buf_text(&p->key), p->key.len, shown), wanted, describe(before),
                          before->place.line);
}

/* The member under the key in p->key; one of that origin is added when there is none. */
static int member_or_new(struct parser *p, struct toml *table, struct toml_place place,
                         enum toml_origin origin, struct toml **out, struct err *e)
{
    *out = find_key(p, table);
    if (*out)
        return 0;
    int rc = add_new_member(p, table, place, out, e);
    if (rc < 0)
        return rc;
    (*out)->type = origin == TOML_ORIGIN_TABLES ? TOML_ARRAY : TOML_TABLE;
    (*out)->origin = origin;
    return 0;
}

/* A part before the last of a [header]: steps into the table it names. */
static int open_table_part(struct parser *p, struct toml **table, struct toml_place place,
                           struct err *e)
{
    struct toml *next;
    int rc = member_or_new(p, *table, place, TOML_ORIGIN_IMPLICIT, &next, e);
    if (rc < 0)
        return rc;
    if (next->origin == TOML_ORIGIN_TABLES)
        next = next->items[next->count - 1];
    else if (next->origin == TOML_ORIGIN_VALUE)
        return redefined(p, place, next, "extended by a header", e);
    *table = next;
    return 0;
}

/* The last part of [header]. */
static int header_table(struct parser *p, struct toml **table, struct toml_place place,
                        struct err *e)
{
    struct toml *next;
    int rc = member_or_new(p, *table, place, TOML_ORIGIN_IMPLICIT, &next, e);
    if (rc < 0)
        return rc;
    if (next->origin != TOML_ORIGIN_IMPLICIT)
        return redefined(p, place, next, "defined as a table here", e);
    next->origin = TOML_ORIGIN_HEADER;
    next->place = place;
    *table = next;
    return 0;
}

/* The last part of [[header]]: a new element. */
static int header_element(struct parser *p, struct toml **table, struct toml_place place,
                          struct err *e)
{
    struct toml *array;
    int rc = member_or_new(p, *table, place, TOML_ORIGIN_TABLES, &array, e);
    if (rc < 0)
        return rc;
    if (array->origin != TOML_ORIGIN_TABLES)
        return redefined(p, place, array, "an array of tables here", e);
    AUTO_TOML struct toml *element = NULL;
    rc = new_node(p, &element, array, place, e);
    if (rc == 0)
        rc = append_item(array, element, e);
    if (rc < 0)
        return rc;
    element->type = TOML_TABLE;
    element->origin = TOML_ORIGIN_HEADER;
    *table = MOVE(element);
    return 0;
}

/* A part before the last of a dotted key: steps into the table it names. */
static int dotted_part(struct parser *p, struct toml **table, struct toml_place place,
                       struct err *e)
{
    struct toml *next;
    int rc = member_or_new(p, *table, place, TOML_ORIGIN_DOTTED, &next, e);
    if (rc < 0)
        return rc;
    if (next->origin != TOML_ORIGIN_IMPLICIT && next->origin != TOML_ORIGIN_DOTTED)
        return redefined(p, place, next, "extended by a dotted key", e);
    next->origin = TOML_ORIGIN_DOTTED;
    *table = next;
    return 0;
}

/* ---- Keys and values ----------------------------------------------------------------------- */

/*
 * Reads "a . b . c" up to the last part, which is left in p->key (its place in *place); *table goes
 * from the table the key is relative to, to the one that holds the last part.
 */
static int parse_key(struct parser *p, struct toml **table, struct toml_place *place,
                     int (*step)(struct parser *, struct toml **, struct toml_place, struct err *),
                     struct err *e)
{
    for (;;) {
        toml_scan_blank(&p->scan);
        *place = p->scan.place;
        int rc = toml_scan_key_part(&p->scan, &p->key, e);
        if (rc < 0)
            return rc;
        toml_scan_blank(&p->scan);
        if (toml_scan_peek(&p->scan, 0) != '.')
            return 0;
        toml_scan_skip(&p->scan, 1);
        rc = step(p, table, *place, e);
        if (rc < 0)
            return rc;
    }
}

static int expect(struct parser *p, char wanted, const char *where, struct err *e)
{
    if (toml_scan_peek(&p->scan, 0) == wanted) {
        toml_scan_skip(&p->scan, 1);
        return 0;
    }
    char shown[TOML_SHOW_MAX];
    return toml_scan_fail(&p->scan, p->scan.place, e, "'%c' is expected %s, not %s", wanted, where,
                          toml_scan_show(&p->scan, shown));
}

static int parse_key_value(struct parser *p, struct toml *table, struct err *e)
{
    struct toml_place place;
    int rc = parse_key(p, &table, &place, dotted_part, e);
    if (rc < 0)
        return rc;
    struct toml *before = find_key(p, table);
    if (before)
        return redefined(p, place, before, "given a value here", e);
    rc = expect(p, '=', "after a key", e);
    if (rc < 0)
        return rc;
    toml_scan_blank(&p->scan);
    struct toml *value;
    rc = add_new_member(p, table, p->scan.place, &value, e);
    return rc < 0 ? rc : parse_value(p, value, e);
}

static int parse_array(struct parser *p, struct toml *array, struct err *e)
{
    struct toml_scan *s = &p->scan;
    array->type = TOML_ARRAY;
    toml_scan_skip(s, 1);
    toml_scan_space(s);
    while (toml_scan_peek(s, 0) != ']') {
        AUTO_TOML struct toml *item = NULL;
        int rc = new_node(p, &item, array, s->place, e);
        if (rc == 0)
            rc = parse_value(p, item, e);
        if (rc == 0)
            rc = append_item(array, item, e);
        if (rc < 0)
            return rc;
        item = NULL;
        toml_scan_space(s);
        if (toml_scan_peek(s, 0) == ']')
            break;
        rc = expect(p, ',', "between the elements of an array, or ']' after them", e);
        if (rc < 0)
            return rc;
        toml_scan_space(s);
    }
    toml_scan_skip(s, 1);
    return 0;
}

static int parse_inline_table(struct parser *p, struct toml *table, struct err *e)
{
    struct toml_scan *s = &p->scan;
    table->type = TOML_TABLE;
    toml_scan_skip(s, 1);
    toml_scan_blank(s);
    if (toml_scan_peek(s, 0) == '}') {
        toml_scan_skip(s, 1);
        return 0;
    }
    for (;;) {
        int rc = parse_key_value(p, table, e);
        if (rc < 0)
            return rc;
        toml_scan_blank(s);
        if (toml_scan_peek(s, 0) == '}')
            break;
        rc = expect(p, ',', "between the members of an inline table, or '}' after them", e);
        if (rc < 0)
            return rc;
    }
    toml_scan_skip(s, 1);
    return 0;
}

static int parse_string(struct parser *p, struct toml *t, struct err *e)
{
    AUTO_BUF struct buf text;
    buf_init(&text, LIMIT_TASK_TOML);
    int rc = toml_scan_string(&p->scan, &text, true, e);
    if (rc < 0)
        return rc;
    t->type = TOML_STRING;
    t->text_len = text.len;
    t->text = text.len > 0 ? buf_take(&text) : mem_strdup("");
    return t->text ? 0 : err_nomem(e, "string");
}

static int parse_value(struct parser *p, struct toml *t, struct err *e)
{
    switch (toml_scan_peek(&p->scan, 0)) {
    case '"':
    case '\'':
        return parse_string(p, t, e);
    case '[':
        return parse_array(p, t, e);
    case '{':
        return parse_inline_table(p, t, e);
    default:
        return toml_value_word(&p->scan, t, e);
    }
}

/* ---- The document -------------------------------------------------------------------------- */

static int parse_header(struct parser *p, struct err *e)
{
    struct toml_place place;
    struct toml *table = p->root;
    bool element = toml_scan_peek(&p->scan, 1) == '[';
    toml_scan_skip(&p->scan, element ? 2 : 1);
    int rc = parse_key(p, &table, &place, open_table_part, e);
    if (rc == 0)
        rc = expect(p, ']', "after the name of a table", e);
    if (rc == 0 && element)
        rc = expect(p, ']', "right after the first one", e);
    if (rc == 0)
        rc = element ? header_element(p, &table, place, e) : header_table(p, &table, place, e);
    if (rc < 0)
        return rc;
    p->current = table;
    return 0;
}

/* After a header or a value: nothing but a comment up to the end of the line. */
static int end_line(struct parser *p, struct err *e)
{
    toml_scan_blank(&p->scan);
    toml_scan_comment(&p->scan);
    if (toml_scan_at_newline(&p->scan)) {
        toml_scan_newline(&p->scan);
        return 0;
    }
    if (toml_scan_peek(&p->scan, 0) < 0)
        return 0;
    char shown[TOML_SHOW_MAX];
    return toml_scan_fail(&p->scan, p->scan.place, e, "the end of the line is expected, not %s",
                          toml_scan_show(&p->scan, shown));
}

static int parse_document(struct parser *p, struct err *e)
{
    int rc = new_node(p, &p->root, NULL, p->scan.place, e);
    if (rc < 0)
        return rc;
    p->root->type = TOML_TABLE;
    p->root->origin = TOML_ORIGIN_HEADER;
    p->current = p->root;
    for (;;) {
        toml_scan_space(&p->scan);
        int byte = toml_scan_peek(&p->scan, 0);
        if (byte < 0)
            return 0;
        rc = byte == '[' ? parse_header(p, e) : parse_key_value(p, p->current, e);
        if (rc == 0)
            rc = end_line(p, e);
        if (rc < 0)
            return rc;
    }
}

int toml_parse(struct toml **out, const void *text, size_t len, const char *name, struct err *e)
{
    struct parser p = {.root = NULL};
    int rc = toml_scan_init(&p.scan, text, len, name, e);
    if (rc < 0)
        return rc;
    buf_init(&p.key, LIMIT_TASK_TOML);
    rc = parse_document(&p, e);
    buf_fini(&p.key);
    if (rc < 0) {
        toml_free(p.root);
        return rc;
    }
    *out = p.root;
    return 0;
}

/* ---- Looking at values --------------------------------------------------------------------- */

enum toml_type toml_type(const struct toml *t)
{
    return t->type;
}

unsigned toml_line(const struct toml *t)
{
    return t->place.line;
}

unsigned toml_column(const struct toml *t)
{
    return t->place.column;
}

int toml_fail(const struct toml *t, const char *path, enum err_class class, struct err *e,
              const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return err_set(e, class, "%s:%u:%u: %s", path, t->place.line, t->place.column, text);
}

const struct toml *toml_get(const struct toml *table, const char *key)
{
    return table->type == TOML_TABLE ? find(table, key, strlen(key)) : NULL;
}

size_t toml_length(const struct toml *t)
{
    return t->count;
}

const char *toml_key_at(const struct toml *table, size_t index)
{
    return table->keys && index < table->count ? table->keys[index].text : NULL;
}

const struct toml *toml_at(const struct toml *t, size_t index)
{
    return index < t->count ? t->items[index] : NULL;
}

const char *toml_string(const struct toml *t, size_t *len)
{
    if (len)
        *len = t->text_len;
    return t->text;
}

int64_t toml_integer(const struct toml *t)
{
    return t->integer;
}

double toml_float(const struct toml *t)
{
    return t->real;
}

bool toml_bool(const struct toml *t)
{
    return t->boolean;
}
