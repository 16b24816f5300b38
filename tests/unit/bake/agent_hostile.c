/* SPDX-License-Identifier: MIT */
/* The host end against a scripted guest that breaks the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/channel.h"
#include "bake/channel/internal.h"
#include "bake/channel/link.h"
#include "bake/channel/protocol.h"
#include "bake/guest/guest.h"
#include "base/file.h"

/*
 * A guest that is a byte string: everything it will ever say is in the socket before the host
 * asks. The hello's nonce is not known then, so the link is put together by hand, as after a hello.
 */
static struct agent *scripted(const struct buf *script, int *guest)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    int room = 4 << 20;
    setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    if (script->len)
        assert_int_equal(send(ends[1], script->data, script->len, MSG_DONTWAIT), script->len);
    struct agent *a = calloc(1, sizeof(*a));
    a->fd = ends[0];
    a->in = calloc(1, AGENT_FRAME_MAX);
    buf_init(&a->out, 4 * AGENT_FRAME_MAX);
    *guest = ends[1];
    return a;
}

static void add_frame(struct buf *b, uint32_t type, uint32_t stream, const char *payload,
                      size_t len)
{
    struct err e = ERR_INIT;
    uint8_t header[AGENT_HEADER_LEN];
    agent_put_header(header, type, stream, (const uint8_t *)payload, len);
    assert_int_equal(buf_add(b, header, sizeof(header), &e), 0);
    if (len)
        assert_int_equal(buf_add(b, payload, len, &e), 0);
}

#define STARTED "\1\0\0\0\0\0\0\0"
#define EXIT_0 "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define RUNNING "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define BAD_STATUS "\1\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0"
#define BAD_END "\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
#define FAULT "\x08\0\0\0\2\0\0\0sh"
#define INPUT_OUTPUT_ERROR "\1\0\0\0\5\0\0\0"
#define EVIL_FAULT "\x63\0\0\0\xff\xff\xff\xff\x1b[2J%s%n"

struct step {
    uint32_t type;
    uint32_t stream;
    const char *payload;
    size_t len;
};

#define TEXT(text) (text), sizeof(text) - 1

static void test_runs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct step steps[4];
        int result;
    } cases[] = {
        {"as it should be",
         {{AGENT_STARTED, 1, TEXT(STARTED)},
          {AGENT_STDOUT, 1, TEXT("x")},
          {AGENT_EXIT, 1, TEXT(EXIT_0)}},
         0},
        {"late pong",
         {{AGENT_OK, 0, NULL, 0}, {AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 1, TEXT(EXIT_0)}},
         0},
        {"not started, named program", {{AGENT_ERROR, 1, TEXT(FAULT)}}, -ERR_STEP},
        {"unknown stage, terminal codes", {{AGENT_ERROR, 1, TEXT(EVIL_FAULT)}}, -ERR_STEP},
        {"error too short", {{AGENT_ERROR, 1, TEXT("\1\0\0")}}, -ERR_CORRUPT},
        {"end of another stream",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 2, TEXT(EXIT_0)}},
         -ERR_CORRUPT},
        {"output of another stream",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_STDOUT, 9, TEXT("x")}},
         -ERR_CORRUPT},
        {"end before the start", {{AGENT_EXIT, 1, TEXT(EXIT_0)}}, -ERR_CORRUPT},
        {"an OK is no end",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_OK, 1, NULL, 0}},
         -ERR_CORRUPT},
        {"an end that is none",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 1, TEXT(RUNNING)}},
         -ERR_CORRUPT},
        {"an impossible status",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 1, TEXT(BAD_STATUS)}},
         -ERR_CORRUPT},
        {"an unknown end",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 1, TEXT(BAD_END)}},
         -ERR_CORRUPT},
        {"a short end",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_EXIT, 1, TEXT("\1")}},
         -ERR_CORRUPT},
        {"started twice",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_STARTED, 1, TEXT(STARTED)}},
         -ERR_CORRUPT},
        {"error after the start",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_ERROR, 1, TEXT(FAULT)}},
         -ERR_CORRUPT},
        {"empty output",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_STDOUT, 1, NULL, 0}},
         -ERR_CORRUPT},
        {"credit never asked for",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_CREDIT, 1, TEXT("\xff\xff\xff\xff")}},
         -ERR_CORRUPT},
        {"a request", {{AGENT_EXEC, 1, NULL, 0}}, -ERR_CORRUPT},
        {"an unknown type", {{12345, 1, NULL, 0}}, -ERR_CORRUPT},
        {"gone before the start", {{0, 0, NULL, 0}}, -ERR_NET},
        {"gone before the end",
         {{AGENT_STARTED, 1, TEXT(STARTED)}, {AGENT_STDOUT, 1, TEXT("all is well")}},
         -ERR_NET},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_BUF struct buf script;
        buf_init(&script, 1 << 20);
        for (const struct step *s = cases[i].steps; s->type; s++)
            add_frame(&script, s->type, s->stream, s->payload, s->len);
        int guest = -1;
        AUTO_AGENT struct agent *a = scripted(&script, &guest);
        shutdown(guest, SHUT_WR);
        static const char *const argv[] = {"sh", NULL};
        struct agent_exec exec = {.argv = argv};
        struct agent_result r = {.status = 99};
        struct err e = ERR_INIT;
        int rc = agent_run(a, &exec, NULL, NULL, &r, &e);
        close(guest);
        if (rc != cases[i].result)
            fail_msg("%s: %d %s", cases[i].name, rc, e.text);
        assert_int_equal(r.status, rc == 0 ? 0 : 99);
        assert_null(strchr(e.text, 0x1b));
        if (rc == -ERR_CORRUPT && e.text[0] && !strstr(e.text, "malformed"))
            assert_int_equal(a->fd, -1);
    }
}

static void test_bad_bytes(void **state)
{
    (void)state;
    for (int damage = 0; damage < 4; damage++) {
        AUTO_BUF struct buf script;
        buf_init(&script, 1 << 20);
        add_frame(&script, AGENT_OK, 1, TEXT("12345678"));
        if (damage == 0)
            script.data[0] ^= 1; /* magic */
        else if (damage == 1)
            script.data[AGENT_HEADER_LEN] ^= 1; /* payload */
        else if (damage == 2)
            script.data[8] ^= 1; /* stream */
        else
            agent_put_u32(script.data + 12, AGENT_PAYLOAD_MAX + 1);
        int guest = -1;
        AUTO_AGENT struct agent *a = scripted(&script, &guest);
        struct err e = ERR_INIT;
        int64_t now_ns = 5;
        assert_int_equal(agent_clock(a, &now_ns, &e), -ERR_CORRUPT);
        assert_int_equal(now_ns, 5);
        assert_int_equal(agent_clock(a, &now_ns, &e), -ERR_NET);
        close(guest);
    }
}

static void test_wrong_replies(void **state)
{
    (void)state;
    static const struct step cases[] = {
        {AGENT_OK, 2, TEXT("12345678")},
        {AGENT_OK, 1, TEXT("1234567")},
        {AGENT_OK, 1, NULL, 0},
        {AGENT_STDOUT, 1, TEXT("12345678")},
        {AGENT_ERROR, 7, TEXT(FAULT)},
        {AGENT_EXIT, 1, TEXT(EXIT_0)},
        {AGENT_CREDIT, 1, TEXT("\1\0\0\0")},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_BUF struct buf script;
        buf_init(&script, 1 << 20);
        add_frame(&script, cases[i].type, cases[i].stream, cases[i].payload, cases[i].len);
        int guest = -1;
        AUTO_AGENT struct agent *a = scripted(&script, &guest);
        struct err e = ERR_INIT;
        int64_t now_ns;
        assert_int_equal(agent_clock(a, &now_ns, &e), -ERR_CORRUPT);
        close(guest);
    }
}

/* More file than was announced does not pass the buffer's ceiling. */
static void test_endless_file(void **state)
{
    (void)state;
    static char chunk[AGENT_CHUNK_MAX];
    AUTO_BUF struct buf script;
    buf_init(&script, 8 << 20);
    add_frame(&script, AGENT_OK, 1, TEXT("\1\0\0\0\0\0\0\0"));
    for (uint32_t i = 2; i < 5; i++)
        add_frame(&script, AGENT_OK, i, chunk, 1000);
    int guest = -1;
    AUTO_AGENT struct agent *a = scripted(&script, &guest);
    AUTO_BUF struct buf out;
    buf_init(&out, 2500);
    struct err e = ERR_INIT;
    assert_int_equal(agent_get(a, "/x", &out, &e), -ERR_LIMIT);
    assert_int_equal(out.len, 0);
    close(guest);
}

static int open_over(int fd, int64_t timeout_ms, const struct cancel *cancel, struct err *e)
{
    struct agent *a = NULL;
    struct agent_peer peer = {.fd = fd, .timeout_ms = timeout_ms, .cancel = cancel};
    int rc = agent_open_fd(&a, &peer, e);
    agent_free(a);
    return rc;
}

static void test_no_answer(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(open_over(ends[0], 50, NULL, &e), -ERR_TIMEOUT);
    close(ends[1]);

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    close(ends[1]);
    assert_int_equal(open_over(ends[0], 10000, NULL, &e), -ERR_NET);

    struct cancel cancel;
    assert_int_equal(cancel_init(&cancel, &e), 0);
    cancel_set(&cancel);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(open_over(ends[0], 10000, &cancel, &e), -ERR_CANCELLED);
    close(ends[1]);
    cancel_fini(&cancel);
}

/* A reply to somebody else's hello is not ours. */
static void test_stale_reply(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    int ends[2];
    static const char stale[AGENT_HELLO_REPLY_MIN];
    AUTO_BUF struct buf script;
    buf_init(&script, 1 << 20);
    add_frame(&script, AGENT_HELLO_REPLY, 0, stale, sizeof(stale));
    add_frame(&script, AGENT_STDOUT, 4, TEXT("output of a life before"));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(write(ends[1], script.data, script.len), script.len);
    assert_int_equal(open_over(ends[0], 50, NULL, &e), -ERR_TIMEOUT);
    close(ends[1]);
}

/* A disk that is not written and frozen is not snapshotted: there is no machine here that could be. */
static void test_freeze_fails(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        struct step steps[3];
        int result;
    } cases[] = {
        {"writing back fails", {{AGENT_ERROR, 1, TEXT(INPUT_OUTPUT_ERROR)}}, -ERR_STEP},
        {"freezing fails",
         {{AGENT_OK, 1, NULL, 0}, {AGENT_ERROR, 2, TEXT(INPUT_OUTPUT_ERROR)}},
         -ERR_STEP},
        {"gone instead of frozen", {{AGENT_OK, 1, NULL, 0}}, -ERR_NET},
        {"another answer", {{AGENT_OK, 1, NULL, 0}, {AGENT_EXIT, 2, TEXT(EXIT_0)}}, -ERR_CORRUPT},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_BUF struct buf script;
        buf_init(&script, 1 << 20);
        for (const struct step *s = cases[i].steps; s->type; s++)
            add_frame(&script, s->type, s->stream, s->payload, s->len);
        int fd = -1;
        char dir[] = "/tmp";
        struct guest guest = {.agent = scripted(&script, &fd), .dir = dir};
        AUTO_JSON struct json *document = json_new_object();
        struct err e = ERR_INIT;
        shutdown(fd, SHUT_WR);
        int rc = guest_snapshot(&guest, NULL, NULL, document, &e);
        if (rc != cases[i].result)
            fail_msg("%s: %d %s", cases[i].name, rc, e.text);
        assert_null(guest.agent);
        assert_null(json_member(document, "disk"));
        close(fd);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),          cmocka_unit_test(test_bad_bytes),
        cmocka_unit_test(test_wrong_replies), cmocka_unit_test(test_endless_file),
        cmocka_unit_test(test_no_answer),     cmocka_unit_test(test_stale_reply),
        cmocka_unit_test(test_freeze_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
