/* SPDX-License-Identifier: MIT */
/* Registration against tests/support/e2b_server.py: what is asked in which order, what is left
 * behind, what a person is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "registry/internal.h"
#include "template_server.h"

#define KEY TEMPLATE_SERVER_KEY
#define ALIAS "tb2-fix-git-0123456789"
#define LOOK "GET /templates/aliases/" ALIAS "\n"

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

static void setup(const char *text)
{
    template_server_tell("/_setup", text);
}

/* The calls since the setup, a line each; repeated status calls count as one. */
static void read_calls(const struct json *report, struct buf *out)
{
    struct err e = ERR_INIT;
    const char *before = "";
    struct json *calls;
    must(json_get_array(report, "calls", &calls, &e), &e);
    for (size_t i = 0; i < json_length(calls); i++) {
        const char *call = json_as_string(json_element(calls, i));
        if (strcmp(call, before) != 0 || !strstr(call, "/status"))
            must(buf_printf(out, &e, "%s\n", call), &e);
        before = call;
    }
}

/* ---- The client ---------------------------------------------------------------------------- */

static const char *const run_args[] = {"mkdir -p /logs", NULL};
static const char *const user_args[] = {"root", NULL};
static const char *const env_args[] = {"A", "b c", NULL};
static const char *const workdir_args[] = {"/app", NULL};
static const struct e2b_step steps[] = {
    {"USER", user_args}, {"ENV", env_args}, {"WORKDIR", workdir_args}, {"RUN", run_args}};

static struct e2b_template wanted(void)
{
    return (struct e2b_template){.alias = ALIAS,
                                 .from_image = "example/fix-git:20251031",
                                 .steps = steps,
                                 .step_count = ARRAY_LEN(steps),
                                 .ready_command = "test -d /logs",
                                 .cpus = 2,
                                 .memory_mb = 4096};
}

static void add_line(void *ctx, const char *line)
{
    struct err e = ERR_INIT;
    struct buf *lines = ctx;
    must(buf_printf(lines, &e, "%s\n", line), &e);
}

static int register_at(const struct e2b_options *options, const struct e2b_template *t,
                       struct buf *lines, struct e2b_result *out, struct err *e)
{
    AUTO_E2B struct e2b *c = NULL;
    must(e2b_new(&c, options, e), e);
    return e2b_register(c, t, add_line, lines, out, e);
}

struct row {
    const char *name;
    const char *setup;
    const char *revision; /* NULL: not known */
    bool force;
    enum err_class class; /* ERR_NONE: success */
    const char *before;   /* what stands in front of the URL; NULL: nothing */
    const char *error;    /* what stands after "URL: " */
    const char *hint;
    const char *calls;
    bool built;
    const char *left; /* aliases on the server afterwards, as JSON */
    const char *said;
};

#define CREATE "POST /v3/templates\n"
#define BUILD(id)                                                                                  \
    "POST /v2/templates/" id "/builds/" id "\nGET /templates/" id "/builds/" id "/status\n"
#define OURS "[\"" ALIAS "\"]"

/* Ids of the first and second record that the server makes. */
#define A1 "01890000-0000-7000-8000-000000000001"
#define A2 "01890000-0000-7000-8000-000000000002"
#define A3 "01890000-0000-7000-8000-000000000003"
#define A4 "01890000-0000-7000-8000-000000000004"
#define DEL2 "DELETE /templates/" A2 "\n"
#define NEXT "GET /templates/aliases/" ALIAS "-next\n"
#define SHOW1 "GET /templates/" A1 "\n"
#define SHOW2 "GET /templates/" A2 "\n"
#define REVISION "0123456789abcdef"
#define NEXT_ALIAS ALIAS "-next-01234567"
#define NEXT_OURS "GET /templates/aliases/" NEXT_ALIAS "\n"
#define PAIR(age, next_age, next_status)                                                           \
    "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"ready\", \"age_s\": " #age "}, "    \
    "{\"alias\": \"" NEXT_ALIAS "\", \"status\": \"" next_status "\", \"age_s\": " #next_age       \
    ", \"memoryMB\": 4096}]}"
#define DEL1 "DELETE /templates/" A1 "\n"
#define HAS(status) "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"" status "\"}]}"

static const struct row rows[] = {
    {.name = "new",
     .setup = "{\"polls\": 3}",
     .calls = LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS,
     .said = "building\nready\n"},
    {.name = "there already", .setup = HAS("ready"), .calls = LOOK SHOW1, .left = OURS, .said = ""},
    {.name = "forced",
     .setup = HAS("ready"),
     .force = true,
     .calls = LOOK SHOW1 NEXT CREATE BUILD(A2) DEL1 CREATE BUILD(A3) DEL2,
     .built = true,
     .left = OURS,
     .said = "building the new template beside the old one\nready\nready\n"},
    {.name = "forced, and it fails",
     .setup = "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"ready\"}], \"fail\": "
              "{\"message\": \"no\"}}",
     .force = true,
     .class = ERR_STEP,
     .error = "the build failed: no",
     .before = "the template of " ALIAS " stays as it is: " ALIAS "-next: ",
     .calls = LOOK SHOW1 NEXT CREATE BUILD(A2) DEL2,
     .left = OURS},
    {.name = "forced, and the server does not build from templates",
     .setup = "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"ready\"}], \"answers\": "
              "[{\"on\": \"POST /v2/templates/" A3 "\", \"status\": 400, \"body\": {\"code\": 400, "
              "\"message\": \"no base\"}}]}",
     .force = true,
     .calls = LOOK SHOW1 NEXT CREATE BUILD(A2) DEL1 CREATE
     "POST /v2/templates/" A3 "/builds/" A3 "\nDELETE /templates/" A3 "\n" CREATE BUILD(A4) DEL2,
     .built = true,
     .left = OURS},
    {.name = "another one's replacement is left over",
     .setup =
         "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"ready\"}, {\"alias\": \"" ALIAS
         "-next\", \"status\": \"ready\"}]}",
     .force = true,
     .calls = LOOK SHOW1 NEXT "GET /templates/" A2 "\n" DEL2 CREATE BUILD(A3)
         DEL1 CREATE BUILD(A4) "DELETE /templates/" A3 "\n",
     .built = true,
     .left = OURS},
    {.name = "killed when the old one was gone",
     .setup = "{\"templates\": [{\"alias\": \"" NEXT_ALIAS
              "\", \"status\": \"ready\", \"age_s\": 90, \"memoryMB\": 4096}]}",
     .revision = REVISION,
     .calls = LOOK NEXT_OURS SHOW1 CREATE BUILD(A2) DEL1,
     .built = true,
     .left = OURS,
     .said = "finishing what a killed run began\nready\nremoving what a killed run left over\n"},
    {.name = "what was left cannot be built from",
     .setup = "{\"templates\": [{\"alias\": \"" NEXT_ALIAS
              "\", \"status\": \"ready\", \"age_s\": 90, \"memoryMB\": 512}]}",
     .revision = REVISION,
     .calls = LOOK NEXT_OURS SHOW1 CREATE "POST /v2/templates/" A2 "/builds/" A2
                                          "\n" DEL2 DEL1 CREATE BUILD(A3),
     .built = true,
     .left = OURS},
    {.name = "killed when the new one was in its place",
     .setup = PAIR(60, 90, "ready"),
     .revision = REVISION,
     .calls = LOOK SHOW1 NEXT_OURS SHOW2 DEL2,
     .left = OURS},
    {.name = "killed long ago, before the old one was gone",
     .setup = PAIR(90000, 80000, "ready"),
     .revision = REVISION,
     .calls = LOOK SHOW1 NEXT_OURS SHOW2 DEL2,
     .left = OURS},
    {.name = "a replacement that failed",
     .setup = PAIR(900, 60, "error"),
     .revision = REVISION,
     .calls = LOOK SHOW1 NEXT_OURS SHOW2 DEL2,
     .left = OURS},
    {.name = "another baker is about to replace it",
     .setup = PAIR(900, 60, "ready"),
     .revision = REVISION,
     .calls = LOOK SHOW1 NEXT_OURS SHOW2,
     .left = "[\"" ALIAS "\",\"" NEXT_ALIAS "\"]"},
    {.name = "a failed build before",
     .setup = HAS("error"),
     .calls = LOOK SHOW1 DEL1 CREATE BUILD(A2),
     .built = true,
     .left = OURS},
    {.name = "another baker's build",
     .setup =
         "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"building\", \"polls\": 2}]}",
     .calls = LOOK SHOW1 "GET /templates/" A1 "/builds/" A1 "/status\n",
     .left = OURS,
     .said = "waiting for a build of this alias that is under way\nready\n"},
    {.name = "another baker's build, forced",
     .setup =
         "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"building\", \"polls\": 2}]}",
     .force = true,
     .calls = LOOK SHOW1 "GET /templates/" A1 "/builds/" A1 "/status\n",
     .left = OURS},
    {.name = "a stuck build",
     .setup = "{\"templates\": [{\"alias\": \"" ALIAS
              "\", \"status\": \"building\", \"age_s\": 7200, \"polls\": 9}]}",
     .calls = LOOK SHOW1 "GET /templates/" A1 "/builds/" A1 "/status\n" DEL1 CREATE BUILD(A2),
     .built = true,
     .left = OURS},
    {.name = "a claim that was never started",
     .setup =
         "{\"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"waiting\", \"age_s\": 60}]}",
     .calls = LOOK SHOW1 "GET /templates/" A1 "/builds/" A1 "/status\n" DEL1 CREATE BUILD(A2),
     .built = true,
     .left = OURS},
    {.name = "another baker is faster",
     .setup = "{\"race\": \"" ALIAS "\"}",
     .calls = LOOK CREATE LOOK SHOW1 LOOK SHOW1,
     .left = OURS},
    {.name = "a failing step",
     .setup = "{\"polls\": 1, \"fail\": {\"step\": \"RUN mkdir -p /logs\", \"message\": "
              "\"mkdir: no\\nspace\\u001b[0m\\n\"}}",
     .class = ERR_STEP,
     .error = "the build failed at step RUN mkdir -p /logs: mkdir: no\nspace?[0m",
     .calls = LOOK CREATE BUILD(A1) DEL1,
     .left = "[]"},
    {.name = "a failure without a reason",
     .setup = "{\"fail\": {\"message\": null}}",
     .class = ERR_STEP,
     .error = "the build failed: the server gives no reason",
     .calls = LOOK CREATE BUILD(A1) DEL1,
     .left = "[]",
     .said = "failed\n"},
    {.name = "a wrong key",
     .setup = "{\"key\": \"e2b_ffff\"}",
     .class = ERR_DENIED,
     .error = "looking the alias up: access denied, status 401",
     .hint = "set E2B_API_KEY to a key that this server knows",
     .calls = LOOK,
     .left = "[]"},
    {.name = "a 500 that is a 404",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 500, \"body\": "
              "{\"code\": 404, \"message\": \"x\"}}]}",
     .calls = LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a 500 that is a 400",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 500, \"body\": "
              "{\"code\": 400, \"message\": \"malformed alias\"}}]}",
     .class = ERR_UNSUPPORTED,
     .error = "looking the alias up: status 400 (malformed alias)",
     .calls = LOOK,
     .left = "[]"},
    {.name = "a passing 503 is tried again",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 503, \"type\": "
              "\"text/plain\", \"body\": \"busy\"}]}",
     .calls = LOOK LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a refusal in plain text",
     .setup = "{\"answers\": [{\"on\": \"POST /v2\", \"status\": 422, \"type\": \"text/plain\", "
              "\"body\": \"Failed to deserialize\\nsteps[0]\"}]}",
     .class = ERR_UNSUPPORTED,
     .error = "starting the build: status 422 (Failed to deserialize steps[0])",
     .calls = LOOK CREATE "POST /v2/templates/" A1 "/builds/" A1 "\n" DEL1,
     .left = "[]"},
    {.name = "a refusal of the name",
     .setup = "{\"answers\": [{\"on\": \"POST /v3\", \"status\": 400, \"body\": {\"code\": 400, "
              "\"message\": \"memoryMB is too odd\"}}]}",
     .class = ERR_UNSUPPORTED,
     .error = "creating the template: status 400 (memoryMB is too odd)",
     .calls = LOOK CREATE LOOK,
     .left = "[]"},
    {.name = "too many builds",
     .setup =
         "{\"answers\": [{\"on\": \"POST /v3\", \"status\": 429, \"headers\": {\"Retry-After\": "
         "\"0\"}, \"body\": {\"code\": 429, \"message\": \"x\"}}]}",
     .calls = LOOK CREATE CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a full server, in words",
     .setup =
         "{\"answers\": [{\"on\": \"POST /v2\", \"status\": 503, \"headers\": {\"Retry-After\": "
         "\"0\"}, \"body\": {\"code\": 503, \"message\": \"No capacity left on any node\"}}]}",
     .calls = LOOK CREATE "POST /v2/templates/" A1 "/builds/" A1 "\n" BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a duplicate told as 500",
     .setup = "{\"race\": \"" ALIAS
              "\", \"conflict\": {\"status\": 500, \"message\": \"duplicate key value "
              "violates unique constraint\"}}",
     .calls = LOOK CREATE LOOK SHOW1 LOOK SHOW1,
     .left = OURS},
    {.name = "a duplicate told as 409",
     .setup = "{\"race\": \"" ALIAS "\", \"conflict\": {\"status\": 409, \"message\": \"x\"}}",
     .calls = LOOK CREATE LOOK SHOW1 LOOK SHOW1,
     .left = OURS},
    {.name = "a server that calls it alias",
     .setup = "{\"name_field\": \"alias\"}",
     .calls = LOOK CREATE LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a server that takes both",
     .setup = "{\"name_field\": \"both\"}",
     .calls = LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "no answer while it builds",
     .setup =
         "{\"polls\": 2, \"answers\": [{\"on\": \"GET /templates/" A1 "/builds\", \"status\": 502, "
         "\"type\": \"text/html\", \"body\": \"<html>\"}, {\"on\": \"GET /templates/" A1
         "/builds\", \"status\": 502}, {\"on\": \"GET /templates/" A1 "/builds\", \"status\": 502},"
         "{\"on\": \"GET /templates/" A1
         "/builds\", \"status\": 502}, {\"on\": \"GET /templates/" A1
         "/builds\", \"status\": 502}, {\"on\": \"GET /templates/" A1
         "/builds\", \"status\": 502}]}",
     .calls = LOOK CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a redirect gets no key",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 302, \"headers\": "
              "{\"Location\": \"http://localhost:1/x\"}}]}",
     .class = ERR_UNSUPPORTED,
     .error = "looking the alias up: status 302",
     .calls = LOOK,
     .left = "[]"},
    {.name = "not a template server",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 200, \"type\": "
              "\"text/html\", \"body\": \"<html>\"}]}",
     .class = ERR_CORRUPT,
     .error = "looking the alias up: the answer is not what the E2B API says: templateID",
     .hint = "check that E2B_API_URL is the address of a template server",
     .calls = LOOK,
     .left = "[]"},
    {.name = "an id that would leave its path",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 200, \"body\": "
              "{\"templateID\": \"../../x\"}}]}",
     .class = ERR_CORRUPT,
     .error = "looking the alias up: the answer is not what the E2B API says: templateID",
     .hint = "check that E2B_API_URL is the address of a template server",
     .calls = LOOK,
     .left = "[]"},
    {.name = "deleted between two calls",
     .setup = "{\"answers\": [{\"on\": \"GET /templates/aliases\", \"status\": 200, \"body\": "
              "{\"templateID\": \"" A1 "\"}}]}",
     .calls = LOOK SHOW1 CREATE BUILD(A1),
     .built = true,
     .left = OURS},
    {.name = "a claim that cannot be taken back",
     .setup =
         "{\"fail\": {\"message\": \"no\"}, \"answers\": [{\"on\": \"DELETE\", \"status\": 500, "
         "\"body\": {\"code\": 500, \"message\": \"no\"}}]}",
     .class = ERR_STEP,
     .error = "the build failed: no",
     .hint = "template " A1 " on the server still has the alias " ALIAS ": delete it there",
     .calls = LOOK CREATE BUILD(A1) DEL1,
     .left = OURS},
};

static void check_row(const struct row *row)
{
    struct err e = ERR_INIT;
    AUTO_BUF struct buf calls;
    AUTO_BUF struct buf said;
    struct e2b_result result = {.built = false};
    struct e2b_template t = wanted();
    struct e2b_options options = {
        .api_url = template_server_url(), .api_key = KEY, .poll_interval_ms = 1};
    buf_init(&calls, LIMIT_TOKEN);
    buf_init(&said, LIMIT_TOKEN);
    print_message("%s\n", row->name);
    setup(row->setup);
    t.force = row->force;
    t.revision = row->revision;
    int rc = register_at(&options, &t, &said, &result, &e);
    AUTO_JSON struct json *report = template_server_report();
    AUTO_FREE char *aliases = NULL;
    must(json_print(json_member(report, "aliases"), 0, &aliases, &e), &e);
    if (row->class == ERR_NONE && rc < 0)
        fail_msg("%s", e.text);
    read_calls(report, &calls);
    assert_string_equal(buf_text(&calls), row->calls);
    assert_int_equal(json_length(json_member(report, "problems")), 0);
    assert_string_equal(aliases, row->left);
    assert_int_equal(rc, -(int)row->class);
    if (row->class != ERR_NONE) {
        AUTO_FREE char *whole = mem_printf("%s%s: %s", row->before ? row->before : "",
                                           template_server_url(), row->error);
        assert_string_equal(e.text, whole);
        assert_string_equal(e.hint, row->hint ? row->hint : "");
    } else {
        assert_int_equal(result.built, row->built);
        assert_string_equal(result.template_id, result.build_id);
    }
    if (row->said)
        assert_string_equal(buf_text(&said), row->said);
    e2b_result_fini(&result);
}

static void sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        check_row(&rows[i]);
}

static void bodies(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf said;
    struct e2b_result result;
    struct e2b_template t = wanted();
    struct e2b_options options = {
        .api_url = template_server_url(), .api_key = KEY, .poll_interval_ms = 1};
    buf_init(&said, LIMIT_TOKEN);
    setup("{}");
    t.start_command = "exec server --port 8000";
    t.force = true;
    must(register_at(&options, &t, &said, &result, &e), &e);
    e2b_result_fini(&result);
    AUTO_JSON struct json *report = template_server_report();
    AUTO_FREE char *text = NULL;
    must(json_print(json_member(report, "bodies"), 0, &text, &e), &e);
    assert_string_equal(
        text,
        "[{\"cpuCount\":2,\"memoryMB\":4096,\"name\":\"" ALIAS "\"},"
        "{\"force\":true,\"fromImage\":\"example/fix-git:20251031\",\"readyCmd\":\"test -d /logs\","
        "\"startCmd\":\"exec server --port 8000\",\"steps\":["
        "{\"args\":[\"root\"],\"force\":false,\"type\":\"USER\"},"
        "{\"args\":[\"A\",\"b c\"],\"force\":false,\"type\":\"ENV\"},"
        "{\"args\":[\"/app\"],\"force\":false,\"type\":\"WORKDIR\"},"
        "{\"args\":[\"mkdir -p /logs\"],\"force\":false,\"type\":\"RUN\"}]}]");
}

/* E2B Cloud: other ids, several builds of a template, log lines, owners. */
static void cloud(void **state)
{
    (void)state;
    static const struct {
        const char *setup;
        bool force;
        enum err_class class;
        const char *text; /* error, or the lines said */
        bool kept;        /* the template is there afterwards */
    } cases[] = {
        {"{\"mode\": \"cloud\", \"polls\": 2}", false, ERR_NONE,
         "building\nline 0?[0m\nline 1?[0m\nline 2?[0m\nready\n", true},
        {"{\"mode\": \"cloud\", \"templates\": [{\"alias\": \"" ALIAS
         "\", \"status\": \"ready\"}]}",
         false, ERR_NONE, "", true},
        {"{\"mode\": \"cloud\", \"templates\": [{\"alias\": \"" ALIAS
         "\", \"status\": \"ready\"}]}",
         true, ERR_NONE, "line 0?[0m\nready\n", true},
        {"{\"mode\": \"cloud\", \"templates\": [{\"alias\": \"" ALIAS "\", \"status\": \"ready\"},"
         "{\"alias\": \"" ALIAS "\", \"status\": \"error\"}]}",
         false, ERR_NONE, "", true},
        /* a forgotten cursor: each page begins again */
        {"{\"mode\": \"cloud\", \"polls\": 2, \"forgets_offset\": true}", false, ERR_NONE,
         "building\nline 0?[0m\nline 1?[0m\nline 2?[0m\nready\n", true},
        {"{\"mode\": \"cloud\", \"taken\": \"" ALIAS "\"}", false, ERR_DENIED,
         "alias " ALIAS " belongs to another team", false},
        {"{\"mode\": \"cloud\", \"fail\": {\"step\": \"3\", \"message\": \"exit 1\"}}", false,
         ERR_STEP, "the build failed at step 3: exit 1\nline 0?[0m", false},
        /* The template was there before: its other builds must survive our failure. */
        {"{\"mode\": \"cloud\", \"fail\": {\"step\": \"base\", \"message\": \"no\"}, "
         "\"templates\": "
         "[{\"alias\": \"" ALIAS "\", \"status\": \"ready\"}]}",
         true, ERR_STEP, "the build failed at step base: no\nline 0?[0m", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        AUTO_BUF struct buf said;
        struct e2b_result result = {.built = false};
        struct e2b_template t = wanted();
        struct e2b_options options = {
            .api_url = template_server_url(), .api_key = KEY, .poll_interval_ms = 1};
        buf_init(&said, LIMIT_TOKEN);
        setup(cases[i].setup);
        t.force = cases[i].force;
        int rc = register_at(&options, &t, &said, &result, &e);
        print_message("case %zu: %s\n", i, e.text);
        assert_int_equal(rc, -(int)cases[i].class);
        if (rc < 0)
            assert_string_equal(e.text + strlen(template_server_url()) + 2, cases[i].text);
        else
            assert_string_equal(buf_text(&said), cases[i].text);
        AUTO_JSON struct json *report = template_server_report();
        assert_int_equal(json_length(json_member(report, "aliases")), cases[i].kept ? 1 : 0);
        assert_int_equal(json_length(json_member(report, "problems")), 0);
        e2b_result_fini(&result);
    }
}

static void gives_up_in_time(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf said;
    struct e2b_result result;
    struct e2b_template t = wanted();
    struct e2b_options options = {.api_url = template_server_url(),
                                  .api_key = KEY,
                                  .poll_interval_ms = 1,
                                  .build_timeout_ms = 50};
    buf_init(&said, LIMIT_TOKEN);
    setup("{\"hang\": true}");
    assert_int_equal(register_at(&options, &t, &said, &result, &e), -ERR_TIMEOUT);
    AUTO_JSON struct json *report = template_server_report();
    assert_int_equal(json_length(json_member(report, "aliases")), 0);
}

/* A 429 that asks for no wait is not answered by a request at once. */
static void limited_without_a_wait(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf said;
    struct e2b_result result;
    struct e2b_template t = wanted();
    struct e2b_options options = {.api_url = template_server_url(),
                                  .api_key = KEY,
                                  .poll_interval_ms = 3600 * 1000,
                                  .build_timeout_ms = 1800 * 1000};
    buf_init(&said, LIMIT_TOKEN);
    setup("{\"answers\": [{\"on\": \"POST /v3\", \"status\": 429, \"headers\": {\"Retry-After\": "
          "\"0\"}, \"body\": {\"code\": 429, \"message\": \"x\"}}]}");
    assert_int_equal(register_at(&options, &t, &said, &result, &e), -ERR_RATE);
}

static void cancel_when_building(void *ctx, const char *line)
{
    if (strcmp(line, "building") == 0)
        cancel_set(ctx);
}

/* Ctrl-C in the middle of a build: the claim is taken back all the same. */
static void cancelled(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    struct cancel cancel;
    must(cancel_init(&cancel, &e), &e);
    struct e2b_result result;
    struct e2b_template t = wanted();
    struct e2b_options options = {.api_url = template_server_url(),
                                  .api_key = KEY,
                                  .poll_interval_ms = 600 * 1000,
                                  .cancel = &cancel};
    setup("{\"hang\": true}");
    AUTO_E2B struct e2b *c = NULL;
    must(e2b_new(&c, &options, &e), &e);
    assert_int_equal(e2b_register(c, &t, cancel_when_building, &cancel, &result, &e),
                     -ERR_CANCELLED);
    AUTO_JSON struct json *report = template_server_report();
    assert_int_equal(json_length(json_member(report, "aliases")), 0);
    cancel_fini(&cancel);
}

static void unreachable(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    AUTO_BUF struct buf said;
    struct e2b_result result;
    struct e2b_template t = wanted();
    struct e2b_options options = {
        .api_url = "http://127.0.0.1:1/", .api_key = KEY, .poll_interval_ms = 1};
    buf_init(&said, LIMIT_TOKEN);
    assert_int_equal(register_at(&options, &t, &said, &result, &e), -ERR_NET);
    assert_memory_equal(e.text, "http://127.0.0.1:1: looking the alias up: ", 42);
    assert_null(strstr(e.text, KEY));
}

static void refused_options(void **state)
{
    (void)state;
    static const struct {
        const char *url;
        const char *key;
    } cases[] = {
        {NULL, KEY},        {"", KEY},        {"127.0.0.1:8000", KEY},      {"ftp://x", KEY},
        {"http://x", NULL}, {"http://x", ""}, {"http://x", "a\r\nHost: y"}, {"http://x", "a b"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        struct e2b *c = NULL;
        struct e2b_options options = {.api_url = cases[i].url, .api_key = cases[i].key};
        assert_int_equal(e2b_new(&c, &options, &e), -ERR_INPUT);
        assert_true(e.hint[0] != '\0');
        assert_null(c);
    }
}

/* What cannot work is refused without a single call. */
static void refused_templates(void **state)
{
    (void)state;
    static const char *const less_than[] = {"cat <file", NULL};
    static const char *const blank[] = {"  ", NULL};
    static const char *const none[] = {NULL};
    static const char *const odd[] = {"A", "b", "C", NULL};
    static const char *const value[] = {"A", "<b>", NULL};
    static const char *const two[] = {"/a", "/b", NULL};
    static const struct {
        struct e2b_step step;
        enum err_class class;
        const char *error;
    } cases[] = {
        {{"RUN", less_than},
         ERR_UNSUPPORTED,
         "step 1 (RUN) contains '<', which template servers refuse as markup"},
        {{"ENV", value},
         ERR_UNSUPPORTED,
         "step 1 (ENV) contains '<', which template servers refuse as markup"},
        {{"RUN", blank}, ERR_INPUT, "step 1 (RUN): its arguments are missing, blank or too many"},
        {{"RUN", none}, ERR_INPUT, "step 1 (RUN): its arguments are missing, blank or too many"},
        {{"RUN", odd}, ERR_INPUT, "step 1 (RUN): its arguments are missing, blank or too many"},
        {{"ENV", odd}, ERR_INPUT, "step 1 (ENV): its arguments are missing, blank or too many"},
        {{"WORKDIR", two},
         ERR_INPUT,
         "step 1 (WORKDIR): its arguments are missing, blank or too many"},
        {{"COPY", two}, ERR_UNSUPPORTED, "step 1: template servers have no COPY steps"},
    };
    struct e2b_options options = {
        .api_url = template_server_url(), .api_key = KEY, .poll_interval_ms = 1};
    AUTO_BUF struct buf said;
    buf_init(&said, LIMIT_TOKEN);
    setup("{}");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        struct e2b_result result;
        struct e2b_template t = wanted();
        t.steps = &cases[i].step;
        t.step_count = 1;
        assert_int_equal(register_at(&options, &t, &said, &result, &e), -(int)cases[i].class);
        assert_string_equal(e.text, cases[i].error);
    }
    struct e2b_template bad[6];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        bad[i] = wanted();
    bad[0].alias = "a/b";
    bad[1].alias = "";
    bad[2].from_image = " ";
    bad[3].cpus = 0;
    bad[4].memory_mb = 64;
    bad[5].start_command = "server </dev/null";
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err e = ERR_INIT;
        struct e2b_result result;
        assert_true(register_at(&options, &bad[i], &said, &result, &e) < 0);
    }
    AUTO_JSON struct json *report = template_server_report();
    assert_int_equal(json_length(json_member(report, "calls")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences),
        cmocka_unit_test(bodies),
        cmocka_unit_test(cloud),
        cmocka_unit_test(gives_up_in_time),
        cmocka_unit_test(limited_without_a_wait),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(unreachable),
        cmocka_unit_test(refused_options),
        cmocka_unit_test(refused_templates),
    };
    return cmocka_run_group_tests(tests, template_server_start, template_server_stop);
}
