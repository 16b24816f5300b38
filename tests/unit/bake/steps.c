/* SPDX-License-Identifier: MIT */
/* Recipes run through the agent, which here is a process of this machine: when a step counts as
 * done, what a failure says, start command and ready check. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bake/step/steps.h"
#include "base/file.h"
#include "base/mem.h"
#include "steps_world.h"

static void only_exit_0_counts(void **state)
{
    static const struct {
        const char *text;
        const char *parts[4];
    } rows[] = {
        {"steps:\n  - run: exit 0\n", {NULL}},
        {"steps:\n  - run: exit 7\n",
         {"step 1 of 1 (line 3: exit 7): exit status 7", "it printed nothing"}},
        {"steps:\n  - run: 'true'\n  - run: kill -9 $$\n", {"step 2 of 2", "killed by signal 9"}},
        {"steps:\n  - run: echo out; echo err >&2; exit 3\n", {"exit status 3", "out", "err"}},
        {"steps:\n  - run: [no-such-program]\n", {"no-such-program"}},
        {"steps:\n  - run: exit 1\n  - run: touch DIR/after\n", {"step 1 of 2"}},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        expect_steps(f, rows[i].text, rows[i].parts);
    AUTO_FREE char *after = mem_printf("%s/after", f->dir);
    assert_int_equal(access(after, F_OK), -1);
}

/* What a step says last and how it ends race with each other: neither is ever lost. */
static void a_thousand_ends(void **state)
{
    static const struct {
        const char *text;
        const char *parts[4];
    } rows[] = {
        {"steps:\n  - run: exit 7\n", {"exit status 7", "it printed nothing"}},
        {"steps:\n  - run: echo last words; exit 7\n", {"exit status 7", "last words"}},
        {"steps:\n  - run: echo last words >&2; kill -9 $$\n",
         {"killed by signal 9", "last words"}},
    };
    for (size_t i = 0; i < 1000; i++)
        expect_steps(*state, rows[i % ARRAY_LEN(rows)].text, rows[i % ARRAY_LEN(rows)].parts);
}

static void time_limit_ends_the_whole_group(void **state)
{
    struct fixture *f = *state;
    const char *const parts[4] = {"step 1 of 2", "stopped after its time limit of 300 ms",
                                  "half done"};
    expect_steps(f,
                 "steps:\n"
                 "  - run: |\n"
                 "      sleep 1000 & echo $! > DIR/child\n"
                 "      echo half done\n"
                 "      wait\n"
                 "    timeout: 300ms\n"
                 "  - run: touch DIR/after\n",
                 parts);
    struct err e = ERR_INIT;
    struct buf child;
    buf_init(&child, 64);
    AUTO_FREE char *path = mem_printf("%s/child", f->dir);
    must(file_read(AT_FDCWD, path, &child, &e), &e);
    wait_gone((pid_t)strtol(buf_text(&child), NULL, 10));
    buf_fini(&child);
    AUTO_FREE char *after = mem_printf("%s/after", f->dir);
    assert_int_equal(access(after, F_OK), -1);
}

static void pipelines(void **state)
{
    static const struct {
        const char *text;
        const char *parts[4];
    } rows[] = {
        {"steps:\n  - run: 'false | true'\n", {NULL}},
        {"pipefail: true\nsteps:\n  - run: 'false | true'\n", {"exit status 1"}},
        {"steps:\n  - run: yes | head -1\n", {NULL}},
        {"steps:\n  - run: no-such-download | sh\n  - run: cat DIR/result\n",
         {"step 2 of 2", "No such file", "\nstep 1 printed to stderr:\n",
          "no-such-download: command not found"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        expect_steps(*state, rows[i].text, rows[i].parts);
}

static void work_directories(void **state)
{
    const char *const none[4] = {NULL};
    expect_steps(*state,
                 "steps:\n"
                 "  - workdir: DIR/base/deep\n"
                 "  - run: test \"$PWD\" = DIR/base/deep\n"
                 "  - workdir: DIR/base/deep/../app\n"
                 "  - run: test \"$PWD\" = DIR/base/app\n"
                 "  - workdir: DIR/base/app/nested/./more/\n"
                 "  - run: test \"$PWD\" = DIR/base/app/nested/more\n"
                 "  - workdir: /../..\n"
                 "  - run: test \"$PWD\" = /\n",
                 none);
}

static void variables_and_users(void **state)
{
    const char *const none[4] = {NULL};
    const char *const nobody[4] = {"step 1 of 1", "user no-such-user is not in the guest"};
    expect_steps(*state,
                 "steps:\n"
                 "  - env:\n      A: one two\n"
                 "  - run: test \"$A\" = 'one two'\n"
                 "  - run: test \"$A\" = other\n    env:\n      A: other\n"
                 "  - run: test \"$A\" = 'one two'\n",
                 none);
    expect_steps(*state, "steps:\n  - run: id\n    user: no-such-user\n", nobody);
}

/* ---- Start and ready ---- */

static void start_and_ready(void **state)
{
    static const struct {
        const char *text;
        enum err_class class; /* 0: ready */
        const char *part;
    } rows[] = {
        {"start: sleep 1000\nready:\n  command: exit 0\n", 0, NULL},
        {"start: 'true'\nready:\n  command: exit 0\n", 0, NULL},
        {"start: /no/such/program\nready:\n  command: exit 1\n  interval: 10ms\n", ERR_STEP,
         "start command ended before it was ready: exit status 127"},
        {"start: echo going; exit 3\nready:\n  command: exit 1\n  interval: 10ms\n", ERR_STEP,
         "exit status 3; its last output:\ngoing"},
        {"start: sleep 0.2; exit 4\nready:\n  command: sleep 1; exit 0\n", ERR_STEP,
         "exit status 4"},
        {"start: echo log; sleep 1000\nready:\n  command: echo no; exit 1\n  interval: 10ms\n  "
         "timeout: 200ms\n",
         ERR_STEP,
         "has not passed within 200 ms; its last output:\nno\nthe start command printed:\nlog"},
        {"start: sleep 1000\nready:\n  command: sleep 1000\n  try_timeout: 50ms\n  interval: "
         "10ms\n  timeout: 200ms\n",
         ERR_STEP, "has not passed within 200 ms"},
        {"start: sleep 1000\nready:\n  command: echo x >> tries; test $(wc -l < tries) = 3\n  "
         "interval: 10ms\n",
         0, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        uint64_t process = 0;
        open_world(&w, *state, rows[i].text);
        must(guest_start(&w.guest, w.recipe, &w.context, &process, &e), &e);
        int rc = guest_wait_ready(&w.guest, &w.recipe->ready, &w.context, process, &e);
        if (rc != -(int)rows[i].class || (rows[i].part && !strstr(e.text, rows[i].part)))
            fail_msg("%s: %d, \"%s\"", rows[i].text, rc, e.text);
        close_world(&w);
    }
}

static void note_line(void *ctx, const char *line)
{
    struct buf *all = ctx;
    struct err e = ERR_INIT;
    must(buf_printf(all, &e, "%s\n", line), &e);
}

/* As often as the recipe says and no more, each pause twice the last one; nothing of a failed try lives on. */
static void retries(void **state)
{
    static const struct {
        const char *keys;
        unsigned good; /* the try that would pass */
        unsigned tries;
        const char *part; /* of the error; NULL: it passes */
    } rows[] = {
        {"", 2, 1, "exit status 7"},
        {"    retries: 0\n", 2, 1, "exit status 7"},
        {"    retries: 3\n    backoff: 1ms\n", 3, 3, NULL},
        {"    retries: 2\n    backoff: 1ms\n", 9, 3, "exit status 7"},
        {"    retries: 1\n    backoff: 1ms\n    timeout: 200ms\n", 9, 2, "time limit of 200 ms"},
    };
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct world w;
        struct err e = ERR_INIT;
        struct buf lines;
        buf_init(&lines, 1 << 16);
        struct output_tap tap = {note_line, &lines};
        AUTO_FREE char *text = mem_printf(
            "steps:\n"
            "  - run: rm -f tries\n"
            "  - run: |\n"
            "      echo try >> tries\n"
            "      test $(wc -l < tries) != %u || exit 0\n"
            "      sleep 1000 > /dev/null 2>&1 & echo $! > child\n"
            "      %s\n%s",
            rows[i].good, strstr(rows[i].keys, "timeout") ? "wait" : "exit 7", rows[i].keys);
        open_world(&w, f, text);
        w.run.tap = &tap;
        int rc = guest_run_steps(&w.guest, &w.run, &e);
        if ((rc == 0) != !rows[i].part || (rows[i].part && !strstr(e.text, rows[i].part)))
            fail_msg("row %zu: %d, %s", i, rc, e.text);
        AUTO_FREE char *wanted = mem_printf("%u", rows[i].tries);
        AUTO_FREE char *count = mem_printf("steps:\n  - run: test $(wc -l < tries) = %s\n", wanted);
        expect_steps(f, count, (const char *const[4]){NULL});
        assert_int_equal(strstr(buf_text(&lines), "step 2 failed, and is tried again in 1 ms: ") !=
                             NULL,
                         rows[i].tries > 1);
        assert_int_equal(strstr(buf_text(&lines), "tried again in 2 ms") != NULL,
                         rows[i].tries > 2);
        struct buf child;
        buf_init(&child, 64);
        AUTO_FREE char *path = mem_printf("%s/child", f->dir);
        must(file_read(AT_FDCWD, path, &child, &e), &e);
        pid_t pid = (pid_t)strtol(buf_text(&child), NULL, 10);
        if (rows[i].tries == 1) /* not tried again: what it left lives, until here */
            assert_int_equal(kill(pid, SIGKILL), 0);
        wait_gone(pid);
        buf_fini(&child);
        close_world(&w);
        buf_fini(&lines);
    }
}

/* Its own loopback interface, and nothing else. */
static void no_network(void **state)
{
    const char *const none[4] = {NULL};
    if (getuid() != 0)
        skip();
    expect_steps(*state,
                 "steps:\n"
                 "  - run: |\n"
                 "      test \"$(grep -c : /proc/net/dev)\" = 1\n"
                 "      grep -q lo: /proc/net/dev\n"
                 "    network: none\n"
                 "  - run: [sh, -c, 'test \"$(readlink /proc/self/ns/net)\" != "
                 "\"$(readlink /proc/$PPID/ns/net)\"']\n"
                 "    network: none\n",
                 none);
}

/* A web server of one line that answers each request with the same status. */
static void http_ready(void **state)
{
    static const struct {
        const char *server; /* printf format of the answer */
        const char *check;
        const char *part; /* NULL: ready */
    } rows[] = {
        {"HTTP/1.1 200 OK\\r\\n\\r\\n", "{port: PORT}", NULL},
        {"HTTP/1.0 302 Found\\r\\n", "{port: PORT, path: /a?b=c}", NULL},
        {"HTTP/1.1 404 No\\r\\n", "{port: PORT, status: 404}", NULL},
        {"HTTP/1.1 503 Later\\r\\n", "{port: PORT}", "it answers with status 503"},
        {"HTTP/1.1 200 OK\\r\\n", "{port: PORT, status: 204}", "it answers with status 200"},
        {"SSH-2.0-x\\r\\n", "{port: PORT}", "it does not answer"},
        {"HTTP/1.1 2x0 OK\\r\\n", "{port: PORT}", "it does not answer"},
        {"", "{port: PORT}", "it does not answer"},
    };
    static const char server[] = "import socket,sys\n"
                                 "s = socket.create_server(('127.0.0.1', 0))\n"
                                 "open('port.new', 'w').write(str(s.getsockname()[1]))\n"
                                 "import os; os.rename('port.new', 'port')\n"
                                 "while True:\n"
                                 "    c, _ = s.accept()\n"
                                 "    seen = b''\n"
                                 "    while b'\\r\\n\\r\\n' not in seen: seen += c.recv(4096)\n"
                                 "    open('asked', 'wb').write(seen)\n"
                                 "    c.sendall(b'%s')\n"
                                 "    c.close()\n";
    struct fixture *f = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        struct world w;
        char path[128];
        AUTO_FREE char *script = mem_printf(server, rows[i].server);
        put_file(f, "server.py", script, 0644, path);
        open_world(&w, f,
                   "steps:\n  - run: rm -f port\nstart: cd DIR && exec python3 server.py\n"
                   "ready: test -f port\n");
        uint64_t process = 0; /* the agent's end is its end */
        must(guest_run_steps(&w.guest, &w.run, &e), &e);
        must(guest_start(&w.guest, w.recipe, &w.context, &process, &e), &e);
        must(guest_wait_ready(&w.guest, &w.recipe->ready, &w.context, process, &e), &e);
        close_world(&w);
        struct buf port;
        buf_init(&port, 16);
        snprintf(path, sizeof(path), "%s/port", f->dir);
        must(file_read(AT_FDCWD, path, &port, &e), &e);
        AUTO_FREE char *check =
            mem_printf("ready: {timeout: 300ms, interval: 10ms, http: {port: %s%s}\n",
                       buf_text(&port), strstr(rows[i].check, "PORT") + 4);
        open_world(&w, f, check);
        int rc = guest_wait_ready(&w.guest, &w.recipe->ready, &w.context, 0, &e);
        if (rc != (rows[i].part ? -ERR_STEP : 0) || (rows[i].part && !strstr(e.text, rows[i].part)))
            fail_msg("%s: %d, \"%s\"", rows[i].server, rc, e.text);
        close_world(&w);
        buf_fini(&port);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_exit_0_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_thousand_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(time_limit_ends_the_whole_group, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pipelines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(variables_and_users, set_up, tear_down),
        cmocka_unit_test_setup_teardown(work_directories, set_up, tear_down),
        cmocka_unit_test_setup_teardown(start_and_ready, set_up, tear_down),
        cmocka_unit_test_setup_teardown(http_ready, set_up, tear_down),
        cmocka_unit_test_setup_teardown(retries, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_network, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
