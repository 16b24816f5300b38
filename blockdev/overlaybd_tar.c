/* SPDX-License-Identifier: MIT */
/*
 * The tar wrapper: one member, so that tools which unpack layers have something to unpack. Readers
 * look for the payload at one of two places only: behind a PAX header of one record, or behind a
 * plain ustar header.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "blockdev/overlaybd_internal.h"

enum {
    TAR_BLOCK = 512,
    /* Offsets in a header block: POSIX.1-1988 ustar. */
    TAR_MODE = 100,
    TAR_UID = 108,
    TAR_GID = 116,
    TAR_SIZE = 124,
    TAR_SIZE_LEN = 12,
    TAR_TIME = 136,
    TAR_CHECKSUM = 148,
    TAR_CHECKSUM_LEN = 8,
    TAR_TYPE = 156,
    TAR_MAGIC = 257,
    TAR_OWNER = 265,
    TAR_GROUP = 297,
};

/* A field of octal digits with spaces around them; false if it is anything else. */
static bool octal(const uint8_t *field, size_t len, uint64_t *out)
{
    uint64_t value = 0;
    size_t i = 0;
    while (i < len && field[i] == ' ')
        i++;
    size_t first = i;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    if (i == first || (i < len && field[i] != ' ' && field[i] != '\0'))
        return false;
    *out = value;
    return true;
}

static uint32_t checksum(const uint8_t head[TAR_BLOCK])
{
    uint32_t sum = 0;
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += i - TAR_CHECKSUM < TAR_CHECKSUM_LEN ? ' ' : head[i];
    return sum;
}

static bool is_tar(const uint8_t head[TAR_BLOCK])
{
    uint64_t sum;
    return memcmp(head + TAR_MAGIC, "ustar\00000", 8) == 0 &&
           octal(head + TAR_CHECKSUM, TAR_CHECKSUM_LEN, &sum) && sum == checksum(head);
}

/* The number in the PAX record "LENGTH size=NUMBER\n"; 0 if there is none. */
static uint64_t pax_size(const uint8_t *record, size_t len)
{
    char text[TAR_BLOCK + 1];
    memcpy(text, record, len);
    text[len] = '\0';
    const char *at = strstr(text, " size=");
    if (!at || !isdigit((unsigned char)at[6]))
        return 0;
    char *end;
    unsigned long long value = strtoull(at + 6, &end, 10);
    return *end == '\n' ? value : 0;
}

int overlaybd_tar_find(const struct source *blob, uint64_t *off, uint64_t *size, struct err *e)
{
    uint8_t head[OVERLAYBD_TAR_HEAD];
    *off = 0;
    *size = blob->size;
    if (blob->size < TAR_BLOCK)
        return 0;
    size_t len = blob->size < sizeof(head) ? TAR_BLOCK : sizeof(head);
    int rc = source_read_full(blob, 0, head, len, e);
    if (rc < 0 || !is_tar(head))
        return rc;
    uint64_t payload = 0;
    bool pax = head[TAR_TYPE] == 'x' || head[TAR_TYPE] == 'g';
    uint64_t record = 0;
    if (!octal(head + TAR_SIZE, TAR_SIZE_LEN, pax ? &record : &payload))
        return err_set(e, ERR_CORRUPT, "tar wrapper: its size is no number");
    *off = pax ? OVERLAYBD_TAR_HEAD : TAR_BLOCK;
    if (pax) {
        const uint8_t *second = head + (size_t)2 * TAR_BLOCK;
        if (len < sizeof(head) || record > TAR_BLOCK || !is_tar(second))
            return err_set(e, ERR_UNSUPPORTED,
                           "tar wrapper: not one PAX record and one member, as readers want it");
        payload = pax_size(head + TAR_BLOCK, (size_t)record);
        if (payload == 0 && !octal(second + TAR_SIZE, TAR_SIZE_LEN, &payload))
            return err_set(e, ERR_CORRUPT, "tar wrapper: its member's size is no number");
    }
    if (*off > blob->size || payload > blob->size - *off)
        return err_set(e, ERR_CORRUPT, "tar wrapper: cut short: %llu bytes promised, %llu there",
                       (unsigned long long)payload, (unsigned long long)(blob->size - *off));
    *size = payload;
    return 0;
}

/* Numbers as the reference writer prints them, so that a blob of both differs in nothing here. */
static void put_number(uint8_t *field, int width, uint64_t value)
{
    char text[TAR_SIZE_LEN + 1];
    snprintf(text, sizeof(text), "%*llo ", width - 1, (unsigned long long)value);
    memcpy(field, text, (size_t)width);
}

static void put_text(uint8_t *field, const char *text)
{
    memcpy(field, text, strlen(text)); /* shorter than any field, and the rest is zeros */
}

static void seal_header(uint8_t head[TAR_BLOCK], char type)
{
    head[TAR_TYPE] = (uint8_t)type;
    memcpy(head + TAR_MAGIC, "ustar\00000", 8);
    put_number(head + TAR_CHECKSUM, TAR_CHECKSUM_LEN - 1, checksum(head));
}

/* "15 size=454246\n": the record's length counts its own digits. */
static size_t pax_record(char *out, size_t room, uint64_t size)
{
    char body[40];
    size_t len = (size_t)snprintf(body, sizeof(body), " size=%llu\n", (unsigned long long)size);
    size_t total = len + 1;
    for (size_t digits = 1, ten = 10; total >= ten; digits++, ten *= 10)
        total = len + digits + 1;
    snprintf(out, room, "%zu%s", total, body);
    return total;
}

int overlaybd_tar_write(int fd, uint64_t size, uint64_t *total, struct err *e)
{
    uint8_t head[OVERLAYBD_TAR_HEAD] = {0};
    uint8_t *first = head, *record = head + TAR_BLOCK, *second = record + TAR_BLOCK;
    put_text(first, "overlaybd.pax");
    put_number(first + TAR_SIZE, TAR_SIZE_LEN, pax_record((char *)record, TAR_BLOCK, size));
    seal_header(first, 'x');
    put_text(second, "overlaybd.commit");
    put_number(second + TAR_MODE, 7, 0100644);
    put_number(second + TAR_UID, 7, 0);
    put_number(second + TAR_GID, 7, 0);
    put_number(second + TAR_SIZE, TAR_SIZE_LEN, 0); /* the PAX record has it */
    put_number(second + TAR_TIME, TAR_SIZE_LEN, 0);
    put_text(second + TAR_OWNER, "root");
    put_text(second + TAR_GROUP, "root");
    seal_header(second, '0');
    uint64_t end = mem_round_up(OVERLAYBD_TAR_HEAD + size, TAR_BLOCK) + (uint64_t)2 * TAR_BLOCK;
    int rc = file_pwrite_full(fd, head, sizeof(head), 0, e);
    if (rc == 0 && ftruncate(fd, (off_t)end) < 0)
        rc = err_sys(e, "ending the tar wrapper");
    if (rc == 0)
        *total = end;
    return rc;
}
