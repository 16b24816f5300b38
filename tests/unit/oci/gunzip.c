/* SPDX-License-Identifier: MIT */
/*
 * Both gzip decoders on the same bytes: whole members with every kind of header, cut, changed, and
 * with something behind, in pieces of any size. Where the bytes are as a gzip program wrote them, or
 * only cut, both must say the same; of changed ones, both must give the same bytes if both take them
 * for whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "oci/internal.h"
#include "tarball.h"

#if TB2_ISAL
static const struct oci_gunzip *const decoders[] = {&oci_gunzip_zlib, &oci_gunzip_isal};
#else
static const struct oci_gunzip *const decoders[] = {&oci_gunzip_zlib};
#endif

enum { ROOM = 1 << 18, PLAIN_MAX = 100000 };

/* xorshift64*, so that a failure can be repeated. */
static uint64_t random_state;

static size_t random_below(size_t end)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (size_t)((random_state * 0x2545f4914f6cdd1dU) >> 33) % end;
}

/* What a decoder makes of a member. */
struct outcome {
    int rc;
    bool ended;
    size_t used;
    size_t len;
    uint8_t *out; /* ROOM bytes */
    char text[128];
};

static void decode(struct outcome *o, const struct oci_gunzip *g, const struct buf *in,
                   const size_t piece[2])
{
    struct err e = ERR_INIT;
    void *self = g->open();
    assert_non_null(self);
    o->rc = 0;
    o->ended = false;
    o->used = o->len = 0;
    size_t moved = 1;
    while (o->rc == 0 && !o->ended && (moved > 0 || o->used < in->len)) {
        size_t left = in->len - o->used;
        size_t room = ROOM - o->len;
        struct oci_gunzip_io io = {.in = in->data + o->used,
                                   .in_len = left < piece[0] ? left : piece[0],
                                   .out = o->out + o->len,
                                   .out_len = room < piece[1] ? room : piece[1]};
        size_t given = io.in_len + io.out_len;
        o->rc = g->inflate(self, &io, &o->ended, &e);
        moved = given - io.in_len - io.out_len;
        assert_true(moved > 0 || o->rc < 0 || o->ended || o->used == in->len);
        o->used = (size_t)(io.in - in->data);
        o->len = (size_t)(io.out - o->out);
    }
    snprintf(o->text, sizeof(o->text), "%s", o->rc < 0 ? e.text : "");
    g->close(self);
}

/* A member as zlib writes it. */
static void make_member(struct buf *out, const uint8_t *plain, size_t len)
{
    uint8_t name[] = "name of the file", comment[] = "a comment";
    uint8_t extra[300] = {'A', 'B', 4, 0, 1, 2, 3, 4};
    gz_header header = {.name = random_below(2) ? name : NULL,
                        .comment = random_below(2) ? comment : NULL,
                        .extra = random_below(2) ? extra : NULL,
                        .extra_len = (uInt)random_below(sizeof(extra)),
                        .hcrc = (int)random_below(2)};
    z_stream z = {0};
    uint8_t *copy = mem_dup(plain, len);
    assert_non_null(copy);
    assert_int_equal(deflateInit2(&z, (int)random_below(10), Z_DEFLATED, MAX_WBITS + 16,
                                  1 + (int)random_below(9), (int)random_below(5)),
                     Z_OK);
    if (random_below(2))
        assert_int_equal(deflateSetHeader(&z, &header), Z_OK);
    uint8_t *packed = mem_zalloc(deflateBound(&z, len) + 1000);
    assert_non_null(packed);
    z.next_in = copy;
    z.avail_in = (uInt)len;
    z.next_out = packed;
    z.avail_out = (uInt)(deflateBound(&z, len) + 1000);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    struct err e = ERR_INIT;
    assert_int_equal(buf_add(out, packed, z.total_out, &e), 0);
    deflateEnd(&z);
    free(packed);
    free(copy);
}

static void fill(uint8_t *plain, size_t len)
{
    size_t kind = random_below(4);
    for (size_t i = 0; i < len; i++)
        plain[i] = kind == 0   ? (uint8_t)random_below(256)
                   : kind == 1 ? (uint8_t)("etaoin sh"[random_below(9)])
                   : kind == 2 ? (uint8_t)(i / 97)
                               : 0;
}

enum change { WHOLE, CUT, HEADER, BODY, MORE, CHANGES };

static void change(struct buf *b, enum change how)
{
    struct err e = ERR_INIT;
    if (how == CUT)
        b->len = random_below(b->len);
    for (size_t i = random_below(3) + 1; how == BODY && i > 0; i--)
        b->data[random_below(b->len)] ^= (uint8_t)(1 << random_below(8));
    if (how == HEADER)
        b->data[random_below(12)] = (uint8_t)random_below(256);
    for (size_t i = random_below(40); how == MORE && i > 0; i--)
        assert_int_equal(buf_add_u8(b, (uint8_t)random_below(256), &e), 0);
}

static void compare(const struct outcome *a, const struct outcome *b, enum change how, size_t round)
{
    bool both = a->ended && b->ended;
    if ((how != BODY && how != HEADER && a->ended != b->ended) ||
        (both && (a->len != b->len || a->used != b->used || memcmp(a->out, b->out, a->len) != 0)))
        fail_msg("round %zu, change %d: zlib ended %d after %zu of %zu bytes (%s), ISA-L %d after "
                 "%zu of %zu (%s)",
                 round, (int)how, a->ended, a->used, a->len, a->text, b->ended, b->used, b->len,
                 b->text);
}

static void both_say_the_same(void **state)
{
    (void)state;
    random_state = 20120501;
    struct outcome o[2] = {{.out = mem_zalloc(ROOM)}, {.out = mem_zalloc(ROOM)}};
    uint8_t *plain = mem_zalloc(PLAIN_MAX);
    assert_true(plain && o[0].out && o[1].out);
    for (size_t round = 0; round < 1500; round++) {
        size_t len = random_below(random_below(4) == 0 ? PLAIN_MAX : 500);
        fill(plain, len);
        struct buf member;
        buf_init(&member, ROOM);
        make_member(&member, plain, len);
        enum change how = (enum change)random_below(CHANGES);
        change(&member, how);
        const size_t sizes[] = {1 + random_below(16), 1 + random_below(6000), ROOM};
        const size_t piece[] = {sizes[random_below(3)], sizes[random_below(3)]};
        for (size_t i = 0; i < ARRAY_LEN(decoders); i++) {
            decode(&o[i], decoders[i], &member, piece);
            if (how == WHOLE || how == MORE) {
                assert_true(o[i].ended);
                assert_int_equal(o[i].len, len);
                assert_memory_equal(o[i].out, plain, len);
            }
            if (how == CUT)
                assert_false(o[i].ended);
        }
        if (ARRAY_LEN(decoders) == 2)
            compare(&o[0], &o[1], how, round);
        buf_fini(&member);
    }
    free(plain);
    free(o[0].out);
    free(o[1].out);
}

/* Headers that are refused, and by what. */
static void damaged_headers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t at;
        uint8_t value;
        const char *text;
    } rows[] = {
        {"first byte", 0, 0x1e, "incorrect header check"},
        {"second byte", 1, 0, "incorrect header check"},
        {"method", 2, 7, "unknown compression method"},
        {"reserved flag", 3, 0x20, "unknown header flags set"},
        {"header CRC that is none", 3, 2, "header crc mismatch"},
    };
    struct outcome o = {.out = mem_zalloc(ROOM)};
    const size_t piece[] = {ROOM, ROOM};
    assert_non_null(o.out);
    for (size_t i = 0; i < ARRAY_LEN(rows) * ARRAY_LEN(decoders); i++) {
        size_t row = i / ARRAY_LEN(decoders);
        struct buf member;
        buf_init(&member, ROOM);
        gzip_member(&member, "content", 7);
        member.data[rows[row].at] = rows[row].value;
        decode(&o, decoders[i % ARRAY_LEN(decoders)], &member, piece);
        if (o.rc != -ERR_CORRUPT || strcmp(o.text, rows[row].text) != 0)
            fail_msg("%s, %s: %d '%s'", rows[row].name, decoders[i % ARRAY_LEN(decoders)]->name,
                     o.rc, o.text);
        buf_fini(&member);
    }
    free(o.out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_say_the_same),
        cmocka_unit_test(damaged_headers),
    };
    return cmocka_run_group_tests_name("oci gunzip", tests, NULL, NULL);
}
