/* SPDX-License-Identifier: MIT */
/* Values of secrets: where they come from, and where they must not be found. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bake/recipe/secrets.h"
#include "base/file.h"
#include "base/mem.h"

enum { READ_LEN = 1 << 20 };

static void secret_fini(struct secret *s)
{
    if (s->value)
        explicit_bzero(s->value, s->len);
    free(s->parts);
    free(s->value);
    free(s->name);
}

void secrets_free(struct secret_set *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++)
        secret_fini(&s->all[i]);
    free(s->all);
    free(s);
}

const struct secret *secrets_find(const struct secret_set *s, const char *name)
{
    for (size_t i = 0; s && i < s->count; i++) {
        if (strcmp(s->all[i].name, name) == 0)
            return &s->all[i];
    }
    return NULL;
}

/* ---- Reading ---- */

static int bad_spec(const char *spec, struct err *e)
{
    /* What is behind the '=', or all of it where nothing is, may be a value that was typed in by
     * mistake; the end of one in base64 may be '='. */
    size_t len = strcspn(spec, "=");
    bool named = spec[len] && spec[len + 1] && spec[len + 1] != '=';
    err_set(e, ERR_INPUT, "--secret %.*s...: NAME=env:VARIABLE or NAME=file:PATH is expected",
            named ? (int)len : 0, spec);
    return err_hint(e, "a value itself does not belong on a command line, which others can see");
}

static int read_file(struct secret *s, const char *path, struct err *e)
{
    struct buf bytes;
    buf_init(&bytes, SECRET_LEN_MAX);
    int rc = file_read(AT_FDCWD, path, &bytes, e);
    if (rc == 0) {
        s->len = bytes.len;
        s->value = mem_strndup(buf_text(&bytes), bytes.len);
        rc = s->value ? 0 : err_nomem(e, "secret");
    }
    if (bytes.data)
        explicit_bzero(bytes.data, bytes.len);
    buf_fini(&bytes);
    return rc;
}

static int read_variable(struct secret *s, const char *variable, struct err *e)
{
    const char *value = getenv(variable);
    if (!value)
        return err_set(e, ERR_INPUT, "the environment has no variable %s", variable);
    s->len = strlen(value);
    s->value = mem_strdup(value);
    return s->value ? 0 : err_nomem(e, "secret");
}

static int check_value(struct secret *s, struct err *e)
{
    s->essence = s->len;
    while (s->essence > 0 && strchr("\r\n", s->value[s->essence - 1]))
        s->essence--;
    if (s->essence < SECRET_LEN_MIN || s->len > SECRET_LEN_MAX)
        return err_set(e, ERR_INPUT, "its value has %zu bytes, and must have %d to %d", s->essence,
                       SECRET_LEN_MIN, SECRET_LEN_MAX);
    if (memchr(s->value, 0, s->len))
        return err_set(e, ERR_INPUT, "its value holds a NUL byte");
    return 0;
}

static int add_part(struct secret *s, const char *text, size_t len, struct err *e)
{
    if (len < SECRET_LEN_MIN)
        return 0;
    int rc = mem_grow(&s->parts, &s->part_capacity, s->part_count + 1, sizeof(*s->parts), e);
    if (rc == 0)
        s->parts[s->part_count++] = (struct secret_part){text, len};
    return rc;
}

/* The whole, then its lines. */
static int cut_parts(struct secret *s, struct err *e)
{
    int rc = add_part(s, s->value, s->essence, e);
    size_t len = strcspn(s->value, "\r\n");
    for (size_t at = 0; rc == 0 && len < s->essence && at < s->essence; at += len + 1) {
        len = strcspn(s->value + at, "\r\n");
        rc = add_part(s, s->value + at, at + len < s->essence ? len : s->essence - at, e);
    }
    return rc;
}

static int read_secret(struct secret *s, const char *spec, struct err *e)
{
    const char *equals = strchr(spec, '=');
    const char *from = equals ? equals + 1 : "";
    int rc = 0;
    s->name = equals ? mem_strndup(spec, (size_t)(equals - spec)) : NULL;
    if (equals && !s->name)
        return err_nomem(e, "secret");
    if (!equals || !recipe_secret_name_is_valid(s->name))
        return bad_spec(spec, e);
    if (strncmp(from, "env:", 4) == 0 && from[4])
        rc = read_variable(s, from + 4, e);
    else if (strncmp(from, "file:", 5) == 0 && from[5])
        rc = read_file(s, from + 5, e);
    else
        return bad_spec(spec, e);
    if (rc == 0)
        rc = check_value(s, e);
    if (rc == 0)
        rc = cut_parts(s, e);
    if (rc < 0 && rc != -ERR_NOMEM && rc != -ERR_CANCELLED)
        e->class = ERR_INPUT;
    return rc < 0 ? err_in(e, "secret %s", s->name) : 0;
}

int secrets_open(struct secret_set **out, const char *const *specs, size_t count, struct err *e)
{
    AUTO_SECRETS struct secret_set *s = mem_zalloc(sizeof(*s));
    if (count > SECRETS_COUNT_MAX)
        return err_set(e, ERR_INPUT, "more than %d secrets", SECRETS_COUNT_MAX);
    if (s)
        s->all = mem_array(count, sizeof(*s->all));
    if (!s || !s->all)
        return err_nomem(e, "secrets");
    for (size_t i = 0; i < count; i++) {
        struct secret one = {0};
        int rc = read_secret(&one, specs[i], e);
        if (rc == 0 && secrets_find(s, one.name))
            rc = err_set(e, ERR_INPUT, "--secret %s is there twice", one.name);
        if (rc < 0) {
            secret_fini(&one);
            return rc;
        }
        s->all[s->count++] = one;
    }
    *out = MOVE(s);
    return 0;
}

int secrets_check(const struct secret_set *s, const struct recipe *r, struct err *e)
{
    for (size_t i = 0; i < r->step_count; i++) {
        const struct recipe_step *step = &r->steps[i];
        for (size_t k = 0; k < step->secret_count; k++) {
            if (secrets_find(s, step->secrets[k].name))
                continue;
            err_set(e, ERR_INPUT, "the step in line %u of the recipe needs the secret %s",
                    step->line, step->secrets[k].name);
            return err_hint(e, "give it with --secret %s=env:VARIABLE or --secret %s=file:PATH",
                            step->secrets[k].name, step->secrets[k].name);
        }
    }
    return 0;
}

/* ---- Searching ---- */

void secret_search_init(struct secret_search *s, const struct secret_set *set)
{
    *s = (struct secret_search){.set = set};
    buf_init(&s->kept, (size_t)READ_LEN + 2 * SECRET_LEN_MAX);
}

void secret_search_part(struct secret_search *s)
{
    if (s->kept.data)
        explicit_bzero(s->kept.data, s->kept.capacity);
    buf_drop(&s->kept, s->kept.len);
}

void secret_search_fini(struct secret_search *s)
{
    secret_search_part(s);
    buf_fini(&s->kept);
}

static size_t longest(const struct secret_set *set)
{
    size_t most = 0;
    for (size_t i = 0; set && i < set->count; i++) {
        if (set->all[i].essence > most)
            most = set->all[i].essence;
    }
    return most;
}

static int search_piece(struct secret_search *s, const void *data, size_t len, struct err *e)
{
    int rc = buf_add(&s->kept, data, len, e);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < s->set->count && !s->found; i++) {
        const struct secret *one = &s->set->all[i];
        if (memmem(s->kept.data, s->kept.len, one->value, one->essence))
            s->found = one->name;
    }
    size_t keep = longest(s->set) - 1;
    if (s->kept.len > keep)
        buf_drop(&s->kept, s->kept.len - keep);
    return 0;
}

int secret_search_add(struct secret_search *s, const void *data, size_t len, struct err *e)
{
    const uint8_t *at = data;
    int rc = 0;
    if (!s->set || s->set->count == 0)
        return 0;
    for (size_t part; rc == 0 && len > 0 && !s->found; at += part, len -= part) {
        part = len < READ_LEN ? len : READ_LEN;
        rc = search_piece(s, at, part, e);
    }
    return rc;
}

static int search_data(struct secret_search *s, int fd, uint8_t *bytes, off_t from, off_t to,
                       struct err *e)
{
    int rc = 0;
    secret_search_part(s);
    while (rc == 0 && from < to && !s->found) {
        size_t want = to - from < READ_LEN ? (size_t)(to - from) : READ_LEN;
        rc = file_pread_full(fd, bytes, want, (uint64_t)from, e);
        if (rc == 0)
            rc = secret_search_add(s, bytes, want, e);
        from += (off_t)want;
    }
    return rc;
}

int secret_search_file(struct secret_search *s, int fd, struct err *e)
{
    if (!s->set || s->set->count == 0)
        return 0;
    AUTO_FREE uint8_t *bytes = mem_zalloc(READ_LEN);
    if (!bytes)
        return err_nomem(e, "searching for secrets");
    int rc = 0;
    off_t to = 0;
    while (rc == 0 && !s->found) {
        off_t from = lseek(fd, to, SEEK_DATA);
        if (from < 0)
            return errno == ENXIO ? 0 : err_sys(e, "searching for secrets");
        to = lseek(fd, from, SEEK_HOLE);
        if (to < 0)
            return err_sys(e, "searching for secrets");
        rc = search_data(s, fd, bytes, from, to, e);
    }
    return rc;
}
