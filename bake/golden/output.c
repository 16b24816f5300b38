/* SPDX-License-Identifier: MIT */
/* What the scripts of a trial print, kept within bounds. */

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "bake/golden/internal.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

int golden_output_open(struct golden_output *o, const char *directory, const char *name,
                       struct err *e)
{
    *o = (struct golden_output){.fd = -1};
    buf_init(&o->tail, 2 * GOLDEN_TAIL_MAX);
    AUTO_FREE char *path = mem_printf("%s/%s", directory, name);
    if (!path)
        return err_nomem(e, "output file");
    return file_open(&o->fd, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600, e);
}

static int keep_tail(struct buf *tail, const char *data, size_t len, struct err *e)
{
    if (len > GOLDEN_TAIL_MAX) {
        data += len - GOLDEN_TAIL_MAX;
        len = GOLDEN_TAIL_MAX;
    }
    if (tail->len + len > tail->ceiling)
        buf_drop(tail, tail->len - GOLDEN_TAIL_MAX);
    return buf_add(tail, data, len, e);
}

int golden_output_add(void *output, int stream UNUSED, const void *data, size_t len, struct err *e)
{
    struct golden_output *o = output;
    size_t head = o->written >= GOLDEN_HEAD_MAX ? 0 : GOLDEN_HEAD_MAX - o->written;
    if (head > len)
        head = len;
    int rc = head > 0 ? file_write_full(o->fd, data, head, e) : 0;
    if (rc < 0)
        return err_in(e, "keeping the output");
    o->written += head;
    o->left_out += len - head;
    return keep_tail(&o->tail, data, len, e);
}

int golden_output_end(struct golden_output *o, struct err *e)
{
    if (o->fd < 0 || o->left_out == 0)
        return 0;
    size_t len = o->left_out < o->tail.len ? o->left_out : o->tail.len;
    len = len > GOLDEN_TAIL_MAX ? GOLDEN_TAIL_MAX : len;
    char mark[80];
    snprintf(mark, sizeof(mark), "\n[%llu bytes are left out here]\n",
             (unsigned long long)(o->left_out - len));
    int rc = o->left_out > len ? file_write_full(o->fd, mark, strlen(mark), e) : 0;
    if (rc == 0)
        rc = file_write_full(o->fd, o->tail.data + o->tail.len - len, len, e);
    o->left_out = 0;
    return rc;
}

void golden_output_fini(struct golden_output *o)
{
    file_close(&o->fd);
    buf_fini(&o->tail);
}

void golden_output_show(const struct golden_output *o, char *text, size_t len)
{
    enum { SHOWN_MAX = 1000 };
    size_t end = o->tail.len;
    while (end > 0 && (o->tail.data[end - 1] == '\n' || o->tail.data[end - 1] == '\r'))
        end--;
    size_t from = end > SHOWN_MAX ? end - SHOWN_MAX : 0;
    size_t used = 0;
    for (size_t i = from; i < end && used + 1 < len; i++)
        text[used++] = o->tail.data[i] ? (char)o->tail.data[i] : '?';
    text[used] = 0;
    text_make_harmless(text);
}
