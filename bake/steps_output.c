/* SPDX-License-Identifier: MIT */
/* What programs of a recipe print: line by line to whoever looks on, the end of it for reports. */
#include <stdio.h>
#include <string.h>

#include "bake/steps_internal.h"
#include "base/text.h"

enum { ERRORS_KEPT = 4096 };

void capture_init(struct capture *c, const struct output_tap *tap)
{
    c->tap = tap;
    buf_init(&c->tail, LIMIT_OUTPUT_TAIL);
    buf_init(&c->errors, ERRORS_KEPT);
    buf_init(&c->line, 4096);
}

void capture_fini(struct capture *c)
{
    buf_fini(&c->tail);
    buf_fini(&c->errors);
    buf_fini(&c->line);
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

int capture_output(void *ctx, int stream, const void *data, size_t len, struct err *e)
{
    struct capture *c = ctx;
    const char *at = data;
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

void capture_end(struct capture *c)
{
    if (c->line.len > 0)
        emit_line(c);
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
