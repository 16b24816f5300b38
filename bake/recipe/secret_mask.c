/* SPDX-License-Identifier: MIT */
/*
 * Masking of output. A value may come in pieces: bytes are held back as long as they may be the beginning
 * of one. Values of several lines are masked line by line too, since programs print them so.
 */
#include <string.h>

#include "bake/recipe/secrets.h"

static const char mask_text[] = "***";

void secret_mask_init(struct secret_mask *m, const struct secret_set *set)
{
    m->set = set && set->count > 0 ? set : NULL;
    buf_init(&m->held, (size_t)4 << 20);
}

void secret_mask_fini(struct secret_mask *m)
{
    if (m->held.data)
        explicit_bzero(m->held.data, m->held.capacity);
    buf_fini(&m->held);
}

/* What stands at a place: a whole text to mask, perhaps the beginning of one, or neither. */
struct match {
    size_t len; /* of the longest whole text; 0: none */
    bool begun;
};

static void try_part(struct match *out, const struct secret_part *part, const uint8_t *at,
                     size_t left)
{
    size_t len = part->len < left ? part->len : left;
    if ((uint8_t)part->text[0] != at[0] || memcmp(part->text, at, len) != 0)
        return;
    if (part->len > left)
        out->begun = true;
    else if (part->len > out->len)
        out->len = part->len;
}

static struct match match_at(const struct secret_set *set, const uint8_t *at, size_t left)
{
    struct match out = {.len = 0, .begun = false};
    for (size_t i = 0; i < set->count; i++) {
        for (size_t k = 0; k < set->all[i].part_count; k++)
            try_part(&out, &set->all[i].parts[k], at, left);
    }
    return out;
}

static int mask_held(struct secret_mask *m, bool end, struct buf *out, struct err *e)
{
    size_t at = 0;
    int rc = 0;
    while (rc == 0 && at < m->held.len) {
        struct match match = match_at(m->set, m->held.data + at, m->held.len - at);
        if (match.begun && !end)
            break;
        if (match.begun && m->held.len - at >= SECRET_LEN_MIN) /* cut off by the end */
            match.len = m->held.len - at;
        rc =
            match.len > 0 ? buf_add_text(out, mask_text, e) : buf_add(out, m->held.data + at, 1, e);
        at += match.len > 0 ? match.len : 1;
    }
    buf_drop(&m->held, at);
    return rc;
}

int secret_mask_add(struct secret_mask *m, const void *data, size_t len, bool end, struct buf *out,
                    struct err *e)
{
    if (!m->set)
        return buf_add(out, data, len, e);
    int rc = buf_add(&m->held, data, len, e);
    return rc < 0 ? rc : mask_held(m, end, out, e);
}

int secret_mask_whole(const struct secret_set *set, const void *data, size_t len, struct buf *out,
                      struct err *e)
{
    struct secret_mask m;
    secret_mask_init(&m, set);
    int rc = secret_mask_add(&m, data, len, true, out, e);
    secret_mask_fini(&m);
    return rc;
}

/* A mask is shorter than any secret, so there is always room. */
static void mask_in_place(const struct secret_set *set, char *text)
{
    struct err ignored = ERR_INIT;
    AUTO_BUF struct buf masked;
    size_t len = strlen(text);
    buf_init(&masked, len);
    if (secret_mask_whole(set, text, len, &masked, &ignored) == 0)
        memcpy(text, buf_text(&masked), masked.len + 1);
    else /* rather nothing than a secret */
        text[0] = 0;
}

void secret_mask_error(const struct secret_set *set, struct err *e)
{
    mask_in_place(set, e->text);
    mask_in_place(set, e->hint);
}
