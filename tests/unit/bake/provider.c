/* SPDX-License-Identifier: MIT */
/* Recipe providers: what an answer becomes, and which answers are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bake/run/provider.h"
#include "bake/run/run.h"
#include "base/mem.h"

static int apply(const char *answer, char **canonical, struct err *e)
{
    static const char toml[] = "[environment]\ndocker_image = \"x\"\n";
    AUTO_FREE char *command = mem_printf("cat <<'END'\n%s\nEND\n: {}", answer);
    AUTO_PROVIDER struct provider *p = NULL;
    AUTO_TASK struct task *task = NULL;
    assert_int_equal(task_parse(&task, "t", "t/task.toml", toml, strlen(toml), e), 0);
    struct bake_options options = {0};
    struct run run = {.options = &options, .plan_only = true};
    struct baking b = {.run = &run, .task = task};
    const struct provider_options o = {.command = command};
    int rc = provider_open(&p, &o, e);
    if (rc == 0)
        rc = provider_apply(p, &b, e);
    if (rc == 0)
        rc = json_print(b.own_recipe_json, 0, canonical, e);
    json_free(b.own_recipe_json);
    recipe_free(b.own_recipe);
    free(b.given_alias);
    return rc;
}

static void answers(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        const char *canonical; /* NULL: it is refused */
        const char *part;      /* of the error */
    } rows[] = {
        {"{\"commands\":[\"a\",\"b\"]}",
         "{\"network\":\"user\",\"pipefail\":false,\"steps\":[{\"run\":\"a\"},{\"run\":\"b\"}]}",
         NULL},
        {"{\"steps\":[{\"run\":[\"a\"],\"network\":\"none\",\"secrets\":[\"S\"],\"retries\":2}],"
         "\"network\":\"none\",\"pipefail\":true,\"user\":\"u\",\"start\":\"s\",\"ready\":{"
         "\"http\":{\"port\":80}}}",
         "{\"network\":\"none\",\"pipefail\":true,\"ready\":{\"http\":{\"path\":\"/"
         "\",\"port\":80}},\"start\":\"s\","
         "\"steps\":[{\"user\":\"u\"},{\"network\":\"none\",\"run\":[\"a\"],\"secrets\":[{\"name\":"
         "\"S\"}]}]}",
         NULL},
        {"{\"commands\":[],\"ready\":\"r\",\"start\":null}",
         "{\"network\":\"user\",\"pipefail\":false,\"ready\":{\"command\":\"r\"},\"steps\":[]}",
         NULL},
        {"{ }", NULL, "'commands' is missing"},
        {"{\"steps\":[],\"commands\":[]}", NULL, "an answer has either 'commands' or 'steps'"},
        {"{\"steps\":[{\"run\":\"a\",\"shell\":\"b\"}]}", NULL, "a run step has no key 'shell'"},
        {"{\"steps\":[{\"copy\":{\"from\":\"/no/such\",\"to\":\"/\"}}]}", NULL,
         "/no/such does not exist"},
        {"{\"commands\":[],\"ready\":5.5}",
         "{\"network\":\"user\",\"pipefail\":false,\"ready\":{\"command\":\"5.5\"},"
         "\"steps\":[]}",
         NULL},
        {"{\"commands\":[],\"network\":\"host\"}", NULL, "network must be none, user or tap"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct err e = ERR_INIT;
        AUTO_FREE char *canonical = NULL;
        int rc = apply(rows[i].answer, &canonical, &e);
        if (rows[i].canonical && (rc < 0 || strcmp(canonical, rows[i].canonical) != 0))
            fail_msg("%s: %s", rows[i].answer, rc < 0 ? e.text : canonical);
        if (!rows[i].canonical && (rc >= 0 || !strstr(e.text, rows[i].part)))
            fail_msg("%s: %d, %s", rows[i].answer, rc, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers)};
    return cmocka_run_group_tests_name("provider", tests, NULL, NULL);
}
