/* SPDX-License-Identifier: MIT */
/* What programs of a recipe print: line by line to whoever looks on, the end of it for reports. */
#include <stdio.h>
#include <string.h>

#include "bake/recipe/secrets.h"
#include "bake/step/internal.h"
#include "base/text.h"

enum { ERRORS_KEPT = 4096, MASKED_MAX = 8 << 20 };

void capture_init(struct capture *c, const struct output_tap *tap, const struct secret_set *secrets)
{
    c->tap = tap;
    buf_init(&c->tail, LIMIT_OUTPUT_TAIL);
    buf_init(&c->errors, ERRORS_KEPT);
    buf_init(&c->line, 4096);
    buf_init(&c->masked, MASKED_MAX);
    for (size_t i = 0; i < ARRAY_LEN(c->masks); i++)
        secret_mask_init(&c->masks[i], secrets);
}

void capture_fini(struct capture *c)
{
    buf_fini(&c->tail);
    buf_fini(&c->errors);
    buf_fini(&c->line);
    buf_fini(&c->masked);
    for (size_t i = 0; i < ARRAY_LEN(c->masks); i++)
        secret_mask_fini(&c->masks[i]);
}

static void emit_line(struct capture *c)
{
    if (c->tap && c->tap->line)
        c->tap->line(c->tap->ctx, buf_text(&c->line));
    buf_drop(&c->line, c->line.len);
}

int keep_tail(struct buf *tail, const char *data, size_t len, struct err *e)
{
    if (len > tail->ceiling / 2) {
        data += len - tail->ceiling / 2;
        len = tail->ceiling / 2;
    }
    if (tail->len + len > tail->ceiling)
        buf_drop(tail, tail->ceiling / 2);
    return buf_add(tail, data, len, e);
}

static int take_output(struct capture *c, int stream, const char *at, size_t len, struct err *e)
{
    int rc = keep_tail(&c->tail, at, len, e);
    if (rc == 0 && stream == 2)
        rc = keep_tail(&c->errors, at, len, e);
    for (size_t i = 0; rc == 0 && i < len; i++) {
        if (at[i] == '\n' || c->line.len + 1 >= c->line.ceiling)
            emit_line(c);
        if (at[i] != '\n')
            rc = buf_add(&c->line, at + i, 1, e);
    }
    return rc;
}

static int mask_output(struct capture *c, int stream, const void *data, size_t len, bool end,
                       struct err *e)
{
    struct secret_mask *mask = &c->masks[stream == 2];
    int rc = secret_mask_add(mask, data, len, end, &c->masked, e);
    if (rc == 0)
        rc = take_output(c, stream, buf_text(&c->masked), c->masked.len, e);
    buf_drop(&c->masked, c->masked.len);
    return rc;
}

int capture_output(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    return mask_output(ctx, stream, data, len, false, e);
}

int capture_end(struct capture *c, struct err *e)
{
    int rc = mask_output(c, 1, "", 0, true, e);
    if (rc == 0)
        rc = mask_output(c, 2, "", 0, true, e);
    if (rc == 0 && c->line.len > 0)
        emit_line(c);
    return rc;
}

void show_tail(const struct buf *tail, char *out, size_t out_len)
{
    size_t from = tail->len > TAIL_SHOWN_MAX ? tail->len - TAIL_SHOWN_MAX : 0;
    size_t len = 0;
    for (size_t i = from; i < tail->len && len + 1 < out_len; i++)
        out[len++] = tail->data[i] ? (char)tail->data[i] : '?';
    while (len > 0 && out[len - 1] == '\n')
        len--;
    out[len] = 0;
    text_make_harmless(out);
}

void show_command(const char *text, char *out, size_t out_len)
{
    size_t len = strcspn(text, "\n");
    bool cut = text[len] != 0 || len > COMMAND_SHOWN_MAX;
    if (len > COMMAND_SHOWN_MAX)
        len = COMMAND_SHOWN_MAX;
    snprintf(out, out_len, "%.*s%s", (int)len, text, cut ? " ..." : "");
}
