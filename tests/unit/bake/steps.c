/* SPDX-License-Identifier: MIT */
/* Recipes run through the agent, which here is a process of this machine: when a step counts as
 * done, what a failure says, start command and ready check. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_process.h"
#include "bake/pipeline.h"
#include "base/file.h"
#include "base/mem.h"

struct world {
    struct machine_room room;
    struct guest guest;
    struct guest_context context;
    struct recipe *recipe;
};

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

/* A recipe of this text; "DIR" in it becomes the fixture's own directory. */
static void open_world(struct world *w, struct fixture *f, const char *text)
{
    struct err e = ERR_INIT;
    struct buf all;
    buf_init(&all, LIMIT_RECIPE);
    must(buf_add_text(&all, "name: test\n", &e), &e);
    for (const char *at = text; *at != 0;) {
        const char *dir = strstr(at, "DIR");
        size_t len = dir ? (size_t)(dir - at) : strlen(at);
        must(buf_add(&all, at, len, &e), &e);
        must(buf_add_text(&all, dir ? f->dir : "", &e), &e);
        at += dir ? len + 3 : len;
    }
    *w = (struct world){.room = {.cancel = &f->cancel}, .guest = {.agent = f->agent}};
    w->guest.room = &w->room;
    w->context.workdir = mem_strdup(f->dir);
    w->context.user = mem_printf("%u", (unsigned)getuid());
    must(guest_context_set(&w->context, "PATH", "/usr/bin:/bin", &e), &e);
    must(recipe_parse(&w->recipe, "recipe.yaml", buf_text(&all), all.len, &e), &e);
    buf_fini(&all);
}

static void close_world(struct world *w)
{
    guest_context_fini(&w->context);
    recipe_free(w->recipe);
}

/* Runs steps; an error must hold each of the parts. */
static void expect_steps(struct fixture *f, const char *text, const char *const parts[4])
{
    struct world w;
    struct err e = ERR_INIT;
    open_world(&w, f, text);
    struct step_run run = {.recipe = w.recipe, .context = &w.context};
    int rc = guest_run_steps(&w.guest, &run, &e);
    step_run_fini(&run);
    if (!parts[0])
        must(rc, &e);
    else
        assert_int_equal(rc, -ERR_STEP);
    for (size_t i = 0; i < 4 && parts[i]; i++)
        if (!strstr(e.text, parts[i]))
            fail_msg("\"%s\" does not say \"%s\"", e.text, parts[i]);
    close_world(&w);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_exit_0_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(time_limit_ends_the_whole_group, set_up, tear_down),
        cmocka_unit_test_setup_teardown(pipelines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(variables_and_users, set_up, tear_down),
        cmocka_unit_test_setup_teardown(work_directories, set_up, tear_down),
        cmocka_unit_test_setup_teardown(start_and_ready, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("steps", tests, NULL, NULL);
}
