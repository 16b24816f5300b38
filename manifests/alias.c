/* SPDX-License-Identifier: MIT */
/*
 * The alias under which a trainer looks a template up. The rule is the trainer's, not ours, and is
 * written in Python: slugs go through its str.lower, resources appear as it prints a list. What it
 * hashes is the image's tag text, so an image moved under its tag keeps its alias; template keys do
 * not rely on it.
 */
#include "manifests/internal.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/digest.h"
#include "base/mem.h"

enum { ALIAS_DIGITS = 10 };

static bool add_slug_byte(struct buf *out, char c, struct err *e)
{
    bool kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    return buf_add(out, kept ? &c : "-", 1, e) == 0;
}

/*
 * One character per code point, and per byte that is not UTF-8. Two characters outside ASCII become
 * something else in lower case that shows: U+212A KELVIN SIGN is 'k', U+0130 is 'i' and a dot.
 */
static int add_slug(struct buf *out, const char *name, struct err *e)
{
    size_t left = strlen(name);
    bool ok = true;
    while (ok && left > 0) {
        size_t len = utf8_sequence((const uint8_t *)name, left);
        char c = len == 1 ? name[0] : '\0';
        if (len == 3 && memcmp(name, "\xE2\x84\xAA", len) == 0)
            c = 'k';
        if (len == 2 && memcmp(name, "\xC4\xB0", len) == 0)
            ok = add_slug_byte(out, 'i', e);
        if (c >= 'A' && c <= 'Z')
            c = (char)(c - 'A' + 'a');
        ok = ok && add_slug_byte(out, c, e);
        name += len > 0 ? len : 1;
        left -= len > 0 ? len : 1;
    }
    return ok ? 0 : -(int)e->class;
}

static void hash_line(struct hasher *h, const char *text)
{
    hasher_add(h, text, strlen(text));
    hasher_add(h, "\n", 1);
}

static int alias_digest(struct digest *out, const struct task *t, const char *user,
                        const char *const *commands, size_t command_count, struct err *e)
{
    AUTO_HASHER struct hasher *h = NULL;
    int rc = hasher_new(&h, DIGEST_SHA256, e);
    if (rc < 0)
        return rc;
    AUTO_FREE char *resources =
        mem_printf("[('cpu_count', %" PRIu64 "), ('memory_mb', %" PRIu64 ")]", t->alias_cpus,
                   t->alias_memory_mb);
    if (!resources)
        return err_nomem(e, "alias");
    hash_line(h, t->image);
    hash_line(h, user);
    for (size_t i = 0; i < command_count; i++)
        hash_line(h, commands[i]);
    hasher_add(h, resources, strlen(resources));
    hasher_finish(h, out);
    return 0;
}

int template_alias(char **out, const struct task *t, const char *user, const char *const *commands,
                   size_t command_count, struct err *e)
{
    struct digest digest;
    char hex[DIGEST_TEXT_MAX];
    int rc = alias_digest(&digest, t, user, commands, command_count, e);
    if (rc < 0)
        return rc;
    AUTO_BUF struct buf alias;
    buf_init(&alias, LIMIT_PATH);
    rc = buf_add_text(&alias, "tb2-", e);
    if (rc == 0)
        rc = add_slug(&alias, t->name, e);
    if (rc == 0)
        rc = buf_printf(&alias, e, "-%.*s", ALIAS_DIGITS, digest_hex(&digest, hex));
    if (rc < 0)
        return err_in(e, "alias of task %s", t->name);
    *out = buf_take(&alias);
    return *out ? 0 : err_nomem(e, "alias");
}

int recipe_alias(char **out, const struct recipe *r, const struct task *t, struct err *e)
{
    AUTO_FREE const char **commands = mem_array(r->step_count + 1, sizeof(*commands));
    if (!commands)
        return err_nomem(e, "commands of a recipe");
    size_t count = 0;
    for (size_t i = 0; i < r->step_count; i++) {
        if (r->steps[i].kind == RECIPE_RUN && r->steps[i].text)
            commands[count++] = r->steps[i].text;
    }
    return template_alias(out, t, t->user ? t->user : "root", commands, count, e);
}
