/* SPDX-License-Identifier: MIT */
/* QMP against a scripted far end: a thread that reads a command for each reply it has. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/vm/qmp.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"

#define GREETING "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n"
#define READY "{\"return\": {}, \"id\": 1}\r\n"

enum { TIMEOUT_MS = 10000, REPLIES_MAX = 8, SHORT_MS = 50 };

struct far_end {
    int fd;
    const char *greeting;
    const char *replies[REPLIES_MAX]; /* one for each command; then the connection closes */
    bool stay;                        /* … but not before our end does */
    char heard[4096];                 /* all commands */
    int passed;                       /* descriptor that came along, -1 */
    pthread_t thread;
};

/* Reads up to the end of a line. */
static bool hear(struct far_end *f)
{
    for (;;) {
        char byte;
        struct iovec part = {.iov_base = &byte, .iov_len = 1};
        union {
            struct cmsghdr align;
            char bytes[CMSG_SPACE(sizeof(int))];
        } control;
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes)};
        if (recvmsg(f->fd, &message, MSG_CMSG_CLOEXEC) != 1)
            return false;
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        if (head && head->cmsg_type == SCM_RIGHTS)
            memcpy(&f->passed, CMSG_DATA(head), sizeof(f->passed));
        size_t len = strlen(f->heard);
        if (len + 1 < sizeof(f->heard))
            f->heard[len] = byte;
        if (byte == '\n')
            return true;
    }
}

static bool say(struct far_end *f, const char *text)
{
    size_t len = strlen(text);
    return send(f->fd, text, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static void *far_main(void *argument)
{
    struct far_end *f = argument;
    bool good = say(f, f->greeting);
    for (size_t i = 0; good && f->replies[i]; i++)
        good = hear(f) && say(f, f->replies[i]);
    while (good && f->stay)
        good = hear(f);
    file_close(&f->fd);
    return NULL;
}

/* Starts the script; the result is our end. */
static int far_start(struct far_end *f)
{
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    f->fd = fds[1];
    f->passed = -1;
    assert_int_equal(pthread_create(&f->thread, NULL, far_main, f), 0);
    return fds[0];
}

static void far_stop(struct far_end *f, struct qmp *q)
{
    qmp_free(q);
    pthread_join(f->thread, NULL);
    file_close(&f->passed);
}

static struct qmp *open_ok(struct far_end *f)
{
    struct err e = ERR_INIT;
    struct qmp *q = NULL;
    if (qmp_open(&q, far_start(f), TIMEOUT_MS, NULL, &e) < 0)
        fail_msg("%s", e.text);
    return q;
}

static void test_command(void **state)
{
    (void)state;
    struct far_end f = {.greeting = GREETING,
                        .replies = {READY, "{\"event\": \"STOP\", \"timestamp\": {}}\n\r\n"
                                           "{\"return\": {\"late\": true}, \"id\": 1}\n"
                                           "{\"return\": {\"status\": \"paused\"}, \"id\": 2}\n"},
                        .stay = true};
    struct qmp *q = open_ok(&f);
    struct err e = ERR_INIT;
    struct json *arguments = json_new_object();
    json_set(arguments, "key", json_new_string("va\"lue"));
    AUTO_JSON struct json *reply = NULL;
    assert_int_equal(qmp_command(q, "query-status", arguments, -1, &reply, &e), 0);
    assert_string_equal(json_as_string(json_member(reply, "status")), "paused");
    assert_true(qmp_events(q)->stopped);
    far_stop(&f, q);
    assert_string_equal(
        f.heard, "{\"execute\":\"qmp_capabilities\",\"id\":1}\n"
                 "{\"arguments\":{\"key\":\"va\\\"lue\"},\"execute\":\"query-status\",\"id\":2}\n");
}

static void test_passes_descriptor(void **state)
{
    (void)state;
    struct far_end f = {
        .greeting = GREETING, .replies = {READY, "{\"return\": {}, \"id\": 2}\n"}, .stay = true};
    struct qmp *q = open_ok(&f);
    struct err e = ERR_INIT;
    AUTO_FD int fd = -1;
    assert_int_equal(file_open(&fd, AT_FDCWD, "/dev/null", O_RDONLY, 0, &e), 0);
    assert_int_equal(qmp_command(q, "getfd", NULL, fd, NULL, &e), 0);
    struct stat ours;
    struct stat theirs;
    assert_int_equal(fstat(fd, &ours), 0);
    assert_int_equal(fstat(f.passed, &theirs), 0);
    assert_int_equal(ours.st_ino, theirs.st_ino);
    far_stop(&f, q);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *reply;
        enum err_class class;
        const char *text;
    } cases[] = {
        {"{\"error\": {\"class\": \"GenericError\", \"desc\": \"no such thing\"}, \"id\": 2}\n",
         ERR_NET, "QEMU command cont: QEMU refused: no such thing"},
        {"{\"id\": 2}\n", ERR_CORRUPT, "neither a result nor an error"},
        {"{\"error\": 7, \"id\": 2}\n", ERR_CORRUPT, "neither a result nor an error"},
        {"{\"return\"\n", ERR_CORRUPT, "QMP message"},
        {"rubbish\n", ERR_CORRUPT, "QMP message"},
        {"", ERR_NET, "QEMU closed the connection"},
        {"{\"return\": {}, \"id\": 2}", ERR_NET, "QEMU closed the connection"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct far_end f = {.greeting = GREETING, .replies = {READY, cases[i].reply}};
        struct qmp *q = open_ok(&f);
        struct err e = ERR_INIT;
        assert_int_equal(qmp_command(q, "cont", NULL, -1, NULL, &e), -(int)cases[i].class);
        if (!strstr(e.text, cases[i].text))
            fail_msg("expected '%s' in: %s", cases[i].text, e.text);
        far_stop(&f, q);
    }
}

static void test_greeting(void **state)
{
    (void)state;
    static const struct {
        const char *greeting;
        enum err_class class;
    } cases[] = {{"{}\n", ERR_CORRUPT}, {"SSH-2.0\n", ERR_CORRUPT}, {"", ERR_NET}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct far_end f = {.greeting = cases[i].greeting};
        struct err e = ERR_INIT;
        struct qmp *q = NULL;
        int rc = qmp_open(&q, far_start(&f), TIMEOUT_MS, NULL, &e);
        assert_int_equal(rc, -(int)cases[i].class);
        far_stop(&f, q);
    }
}

static void test_silence(void **state)
{
    (void)state;
    struct far_end f = {.greeting = "", .stay = true};
    struct err e = ERR_INIT;
    struct qmp *q = NULL;
    assert_int_equal(qmp_open(&q, far_start(&f), SHORT_MS, NULL, &e), -ERR_TIMEOUT);
    far_stop(&f, q);
}

static void test_cancelled(void **state)
{
    (void)state;
    struct far_end f = {.greeting = "", .stay = true};
    struct err e = ERR_INIT;
    struct cancel c;
    struct qmp *q = NULL;
    assert_int_equal(cancel_init(&c, &e), 0);
    cancel_set(&c);
    assert_int_equal(qmp_open(&q, far_start(&f), TIMEOUT_MS, &c, &e), -ERR_CANCELLED);
    far_stop(&f, q);
    cancel_fini(&c);
}

/* A line without an end meets the ceiling, not the end of memory. */
static void test_endless_line(void **state)
{
    (void)state;
    char *line = mem_zalloc(LIMIT_QMP + 2);
    assert_non_null(line);
    memset(line, ' ', LIMIT_QMP + 1);
    struct far_end f = {.greeting = GREETING, .replies = {READY, line}, .stay = true};
    struct qmp *q = open_ok(&f);
    struct err e = ERR_INIT;
    assert_int_equal(qmp_command(q, "cont", NULL, -1, NULL, &e), -ERR_LIMIT);
    far_stop(&f, q);
    free(line);
}

static void test_events(void **state)
{
    (void)state;
    struct far_end f = {
        .greeting = GREETING,
        .replies = {READY "{\"event\": \"STOP\"}\n{\"event\": \"RESUME\"}\n{\"event\": \"NEW\"}\n"
                          "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": "
                          "\"guest-reset\"}}\n{\"event\": \"SHUT"}};
    struct qmp *q = open_ok(&f);
    pthread_join(f.thread, NULL);
    qmp_poll(q);
    assert_false(qmp_events(q)->stopped);
    assert_true(qmp_events(q)->shutdown);
    assert_string_equal(qmp_events(q)->reason, "guest-reset");
    qmp_free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command),      cmocka_unit_test(test_passes_descriptor),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_greeting),
        cmocka_unit_test(test_silence),      cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_endless_line), cmocka_unit_test(test_events)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
