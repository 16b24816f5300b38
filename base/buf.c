/* SPDX-License-Identifier: MIT */
/* Bounded byte buffer and cursor: see buf.h. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t ceiling)
{
    *b = (struct buf){.ceiling = ceiling};
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){.ceiling = b->ceiling};
}

static int buf_reserve(struct buf *b, size_t len, struct err *e)
{
    if (len > b->ceiling || b->len > b->ceiling - len)
        return err_set(e, ERR_LIMIT, "more than %zu bytes", b->ceiling);
    return mem_grow(&b->data, &b->capacity, b->len + len + 1, 1, e);
}

int buf_add(struct buf *b, const void *bytes, size_t len, struct err *e)
{
    int rc = buf_reserve(b, len, e);
    if (rc < 0)
        return rc;
    if (len > 0)
        memcpy(b->data + b->len, bytes, len);
    b->len += len;
    b->data[b->len] = 0;
    return 0;
}

int buf_add_text(struct buf *b, const char *text, struct err *e)
{
    return buf_add(b, text, strlen(text), e);
}

int buf_printf(struct buf *b, struct err *e, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    int rc = len < 0 ? err_set(e, ERR_INPUT, "text cannot be formatted")
                     : buf_reserve(b, (size_t)len, e);
    if (rc == 0) {
        vsnprintf((char *)b->data + b->len, (size_t)len + 1, fmt, again);
        b->len += (size_t)len;
    }
    va_end(again);
    return rc;
}

static int buf_add_little_endian(struct buf *b, uint64_t value, size_t width, struct err *e)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < width; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    return buf_add(b, bytes, width, e);
}

int buf_add_u8(struct buf *b, uint8_t value, struct err *e)
{
    return buf_add_little_endian(b, value, 1, e);
}

int buf_add_u32(struct buf *b, uint32_t value, struct err *e)
{
    return buf_add_little_endian(b, value, 4, e);
}

int buf_add_u64(struct buf *b, uint64_t value, struct err *e)
{
    return buf_add_little_endian(b, value, 8, e);
}

void buf_drop(struct buf *b, size_t len)
{
    if (len > b->len)
        len = b->len;
    if (len == 0)
        return;
    b->len -= len;
    memmove(b->data, b->data + len, b->len + 1);
}

const char *buf_text(const struct buf *b)
{
    return b->data ? (const char *)b->data : "";
}

char *buf_take(struct buf *b)
{
    char *text = b->data ? (char *)MOVE(b->data) : mem_zalloc(1);
    *b = (struct buf){.ceiling = b->ceiling};
    return text;
}

int cursor_bytes(struct cursor *c, const uint8_t **out, size_t len, struct err *e)
{
    if (len > c->left)
        return err_set(e, ERR_CORRUPT, "%zu bytes wanted, %zu left", len, c->left);
    *out = c->at;
    c->at += len;
    c->left -= len;
    return 0;
}

static int cursor_little_endian(struct cursor *c, size_t width, uint64_t *out, struct err *e)
{
    const uint8_t *bytes;
    int rc = cursor_bytes(c, &bytes, width, e);
    if (rc < 0)
        return rc;
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    *out = value;
    return 0;
}

int cursor_u8(struct cursor *c, uint8_t *out, struct err *e)
{
    uint64_t value;
    int rc = cursor_little_endian(c, 1, &value, e);
    if (rc == 0)
        *out = (uint8_t)value;
    return rc;
}

int cursor_u32(struct cursor *c, uint32_t *out, struct err *e)
{
    uint64_t value;
    int rc = cursor_little_endian(c, 4, &value, e);
    if (rc == 0)
        *out = (uint32_t)value;
    return rc;
}

int cursor_u64(struct cursor *c, uint64_t *out, struct err *e)
{
    return cursor_little_endian(c, 8, out, e);
}
