/* SPDX-License-Identifier: MIT */
/* Many registrations at once, against tests/support/e2b_server.py. Time is the test's own: it moves
 * when all bakers sleep, so nothing here depends on the machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "registry/internal.h"
#include "template_server.h"

#define IMAGE "example/task:1"

enum { BAKERS_MAX = 32, NEVER = INT32_MAX };

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->text);
}

/* ---- Time ---------------------------------------------------------------------------------- */

/* One clock for all bakers and the server. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t now_ms;
    int64_t wakes_ms[BAKERS_MAX]; /* of those that sleep; NEVER: awake, or gone */
    unsigned awake;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

static _Thread_local unsigned self;

/* With the lock held, when nobody is awake: on to the next one who wants to be. */
static void move_on(void)
{
    int64_t next = NEVER;
    for (unsigned i = 0; i < BAKERS_MAX; i++)
        next = world.wakes_ms[i] < next ? world.wakes_ms[i] : next;
    if (next == NEVER)
        return;
    char text[64];
    snprintf(text, sizeof(text), "{\"ms\": %lld}", (long long)next);
    template_server_tell("/_clock", text);
    world.now_ms = next;
    for (unsigned i = 0; i < BAKERS_MAX; i++) {
        if (world.wakes_ms[i] > next)
            continue;
        world.wakes_ms[i] = NEVER;
        world.awake++;
    }
    pthread_cond_broadcast(&world.moved);
}

static int64_t world_now(void *ctx UNUSED)
{
    pthread_mutex_lock(&world.lock);
    int64_t now = world.now_ms;
    pthread_mutex_unlock(&world.lock);
    return now;
}

static int world_sleep(void *ctx UNUSED, int64_t ms, struct err *e UNUSED)
{
    pthread_mutex_lock(&world.lock);
    world.wakes_ms[self] = world.now_ms + (ms > 0 ? ms : 1);
    if (--world.awake == 0)
        move_on();
    while (world.wakes_ms[self] != NEVER)
        pthread_cond_wait(&world.moved, &world.lock);
    pthread_mutex_unlock(&world.lock);
    return 0;
}

static void world_leave(void)
{
    pthread_mutex_lock(&world.lock);
    if (--world.awake == 0)
        move_on();
    pthread_mutex_unlock(&world.lock);
}

static const struct e2b_clock world_clock = {.now_ms = world_now, .sleep_ms = world_sleep};

/* ---- Bakers -------------------------------------------------------------------------------- */

struct crowd {
    struct e2b *shared; /* NULL: each baker has a client of its own, as other machines would */
    unsigned templates; /* aliases t-0 to t-(N-1) */
    bool everyone; /* each baker wants one alias, its number modulo N; else they share the work */
    bool force;
    int (*verify)(void *ctx, const char *alias, struct err *e);
    atomic_uint next;
    atomic_uint built;
    atomic_uint failed;
    char first_error[512];
};

struct baker {
    struct crowd *crowd;
    unsigned number;
};

static int make_client(struct e2b **out, struct err *e)
{
    struct e2b_options options = {
        .api_url = template_server_url(), .api_key = TEMPLATE_SERVER_KEY, .clock = &world_clock};
    return e2b_new(out, &options, e);
}

static void bake(struct crowd *crowd, struct e2b *c, unsigned number)
{
    struct err e = ERR_INIT;
    struct e2b_result result;
    char alias[32];
    snprintf(alias, sizeof(alias), "t-%u", number);
    struct e2b_template t = {.alias = alias,
                             .from_image = IMAGE,
                             .cpus = 2,
                             .memory_mb = 2048,
                             .force = crowd->force,
                             .verify = crowd->verify,
                             .revision = "0123456789"};
    if (e2b_register(c, &t, NULL, NULL, &result, &e) == 0) {
        atomic_fetch_add(&crowd->built, result.built);
        e2b_result_fini(&result);
        return;
    }
    if (atomic_fetch_add(&crowd->failed, 1) == 0)
        snprintf(crowd->first_error, sizeof(crowd->first_error), "%.500s", e.text);
}

static void *baker_main(void *arg)
{
    struct baker *b = arg;
    struct crowd *crowd = b->crowd;
    struct err e = ERR_INIT;
    self = b->number;
    AUTO_E2B struct e2b *own = NULL;
    if (!crowd->shared && make_client(&own, &e) < 0)
        atomic_fetch_add(&crowd->failed, 1);
    struct e2b *c = crowd->shared ? crowd->shared : own;
    if (c && crowd->everyone)
        bake(crowd, c, b->number % crowd->templates);
    for (unsigned n;
         c && !crowd->everyone && (n = atomic_fetch_add(&crowd->next, 1)) < crowd->templates;)
        bake(crowd, c, n);
    world_leave();
    return NULL;
}

/* How long it took, in the world's milliseconds. */
static int64_t run(struct crowd *crowd, unsigned bakers, const char *setup)
{
    pthread_t threads[BAKERS_MAX];
    struct baker each[BAKERS_MAX];
    template_server_tell("/_setup", setup);
    world.now_ms = 0;
    world.awake = bakers;
    for (unsigned i = 0; i < BAKERS_MAX; i++)
        world.wakes_ms[i] = NEVER;
    for (unsigned i = 0; i < bakers; i++) {
        each[i] = (struct baker){.crowd = crowd, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, baker_main, &each[i]), 0);
    }
    for (unsigned i = 0; i < bakers; i++)
        pthread_join(threads[i], NULL);
    return world.now_ms;
}

static uint64_t number(const struct json *report, const char *key)
{
    struct err e = ERR_INIT;
    uint64_t value = 0;
    must(json_get_u64(report, key, &value, &e), &e);
    return value;
}

/* The aliases are those wanted, all ready, and nothing else is there. */
static void check_all_ready(const struct crowd *crowd)
{
    struct err e = ERR_INIT;
    AUTO_E2B struct e2b *c = NULL;
    struct e2b_entry *entries;
    size_t count;
    if (atomic_load(&crowd->failed) > 0)
        fail_msg("%s", crowd->first_error);
    must(make_client(&c, &e), &e);
    must(e2b_list(c, &entries, &count, &e), &e);
    assert_int_equal(count, crowd->templates);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(entries[i].status, "ready");
        assert_memory_equal(entries[i].alias, "t-", 2);
        assert_null(strstr(entries[i].alias, "next"));
    }
    e2b_entries_free(entries, count);
    AUTO_JSON struct json *report = template_server_report();
    assert_int_equal(json_length(json_member(report, "problems")), 0);
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void thirty_bakers_ten_aliases(void **state UNUSED)
{
    static const struct {
        const char *name;
        const char *setup;
        bool force;
        unsigned least, most; /* templates that bakers say they have built */
    } cases[] = {
        {"AgentENV", "{\"manual\": true, \"build_ms\": 60000}", false, 10, 10},
        {"AgentENV, failures at first",
         "{\"manual\": true, \"build_ms\": 60000, \"fail\": {\"message\": \"no capacity on this "
         "node\", "
         "\"times\": 7}}",
         false, 10, 10},
        {"AgentENV, dead builds in the way",
         "{\"manual\": true, \"build_ms\": 60000, \"templates\": [{\"alias\": \"t-0\", \"status\": "
         "\"error\"}, "
         "{\"alias\": \"t-1\", \"status\": \"waiting\", \"age_s\": 60}, {\"alias\": \"t-2\", "
         "\"status\": "
         "\"ready\"}]}",
         false, 9, 9},
        {"AgentENV, forced", "{\"manual\": true, \"build_ms\": 60000}", true, 10, 30},
        {"Cloud", "{\"mode\": \"cloud\", \"manual\": true, \"build_ms\": 60000}", false, 10, 30},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct crowd crowd = {.templates = 10, .everyone = true, .force = cases[i].force};
        int64_t took = run(&crowd, 30, cases[i].setup);
        print_message("%s: %u built, %lld s\n", cases[i].name, atomic_load(&crowd.built),
                      (long long)(took / 1000));
        check_all_ready(&crowd);
        assert_in_range(atomic_load(&crowd.built), cases[i].least, cases[i].most);
    }
}

/* 89 templates of 60 s on a server that builds 16 at once: six rounds. */
static void a_set_in_sixteen_lanes(void **state UNUSED)
{
    struct err e = ERR_INIT;
    enum { TASKS = 89, LANES = 16, BUILD_MS = 60000 };
    const int64_t ideal = (int64_t)((TASKS + LANES - 1) / LANES) * BUILD_MS;
    AUTO_E2B struct e2b *c = NULL;
    must(make_client(&c, &e), &e);
    struct crowd crowd = {.shared = c, .templates = TASKS};
    int64_t took = run(&crowd, LANES, "{\"manual\": true, \"build_ms\": 60000, \"capacity\": 16}");
    AUTO_JSON struct json *report = template_server_report();
    print_message("%lld s, ideal %lld s, ratio %.3f\n", (long long)took / 1000,
                  (long long)ideal / 1000, (double)took / (double)ideal);
    check_all_ready(&crowd);
    assert_int_equal(atomic_load(&crowd.built), TASKS);
    assert_int_equal(number(report, "peak"), LANES);
    assert_true(took * 10 <= ideal * 11);
}

/* More bakers than the server has room for: nobody fails, nothing is left, no room is idle long. */
static void more_bakers_than_room(void **state UNUSED)
{
#define CAPACITY_4 "\"manual\": true, \"build_ms\": 60000, \"capacity\": 4, "
    static const char *const setups[] = {
        "{" CAPACITY_4 "\"capacity_answer\": {\"status\": 429, \"retry_after\": 7}}",
        ("{" CAPACITY_4
         "\"capacity_answer\": {\"status\": 500, \"message\": \"no available resources\"}}"),
        "{" CAPACITY_4 "\"mode\": \"cloud\", \"capacity_at\": \"create\"}",
    };
    for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
        struct err e = ERR_INIT;
        AUTO_E2B struct e2b *c = NULL;
        must(make_client(&c, &e), &e);
        struct crowd crowd = {.shared = c, .templates = 24};
        int64_t took = run(&crowd, 12, setups[i]);
        AUTO_JSON struct json *report = template_server_report();
        print_message("setup %zu: %lld s of at least 360 s\n", i, (long long)took / 1000);
        check_all_ready(&crowd);
        assert_int_equal(number(report, "peak"), 4);
        assert_true(took < 450 * 1000);
    }
}

/* The longest time that an alias had no template it could be started from. */
static int64_t longest_gap(const struct json *report, const char *alias)
{
    int64_t since = -1;
    int64_t longest = 0;
    const struct json *log = json_member(report, "log");
    for (size_t i = 0; i < json_length(log); i++) {
        const struct json *line = json_element(log, i);
        const char *what = json_as_string(json_element(line, 1));
        if (strcmp(json_as_string(json_element(line, 2)), alias) != 0)
            continue;
        int64_t at = json_as_integer(json_element(line, 0));
        if (strcmp(what, "deleted") == 0)
            since = at;
        if (strcmp(what, "ready") == 0 && since >= 0) {
            longest = at - since > longest ? at - since : longest;
            since = -1;
        }
    }
    return since >= 0 ? NEVER : longest;
}

/*
 * A forced bake of what is there: the alias has no template for no longer than the server takes to
 * build from one (3 s here, of 60 for a whole build).
 */
static void forced_without_a_long_gap(void **state UNUSED)
{
    static const char setup[] = "{\"manual\": true, \"build_ms\": 60000, \"resume_ms\": 3000, "
                                "\"templates\": [{\"alias\": \"t-0\", "
                                "\"status\": \"ready\"}, {\"alias\": \"t-1\", \"status\": "
                                "\"ready\"}, {\"alias\": \"t-2\", \"status\": "
                                "\"ready\"}]}";
    struct crowd crowd = {.templates = 3, .everyone = true, .force = true};
    run(&crowd, 3, setup);
    AUTO_JSON struct json *report = template_server_report();
    check_all_ready(&crowd);
    assert_int_equal(atomic_load(&crowd.built), 3);
    for (unsigned i = 0; i < crowd.templates; i++) {
        char alias[16];
        snprintf(alias, sizeof(alias), "t-%u", i);
        assert_int_equal(longest_gap(report, alias), 3000);
    }
}

static int refuse(void *ctx UNUSED, const char *alias, struct err *e)
{
    return err_set(e, ERR_STEP, "%s does not work", alias);
}

static int not_now(void *ctx UNUSED, const char *alias, struct err *e)
{
    return err_set(e, ERR_NET, "%s cannot be tried", alias);
}

/* What does not work is taken back, and the old one stays; what could not be tried stays. */
static void verified(void **state UNUSED)
{
    static const struct {
        const char *name;
        const char *setup;
        int (*verify)(void *ctx, const char *alias, struct err *e);
        bool force;
        const char *left;
    } cases[] = {
        {"new", "{\"manual\": true}", refuse, false, "[]"},
        {"new, cloud", "{\"manual\": true, \"mode\": \"cloud\"}", refuse, false, "[]"},
        {"new, not tried", "{\"manual\": true}", not_now, false, "[\"t-0\"]"},
        {"there before",
         "{\"manual\": true, \"templates\": [{\"alias\": \"t-0\", \"status\": \"ready\"}]}", refuse,
         false, "[\"t-0\"]"},
        {"replaced",
         "{\"manual\": true, \"templates\": [{\"alias\": \"t-0\", \"status\": \"ready\"}]}", refuse,
         true, "[\"t-0\"]"},
        {"replaced, cloud",
         "{\"manual\": true, \"mode\": \"cloud\", \"templates\": [{\"alias\": \"t-0\", \"status\": "
         "\"ready\"}]}",
         refuse, true, "[\"t-0\"]"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err e = ERR_INIT;
        struct crowd crowd = {.templates = 1, .force = cases[i].force, .verify = cases[i].verify};
        print_message("%s\n", cases[i].name);
        run(&crowd, 1, cases[i].setup);
        AUTO_JSON struct json *report = template_server_report();
        AUTO_FREE char *left = NULL;
        must(json_print(json_member(report, "aliases"), 0, &left, &e), &e);
        assert_int_equal(atomic_load(&crowd.failed), 1);
        assert_string_equal(left, cases[i].left);
        if (strstr(cases[i].setup, "templates")) { /* the first build is still what there was */
            const struct json *log = json_member(report, "log");
            for (size_t n = 0; n < json_length(log); n++) {
                const struct json *line = json_element(log, n);
                assert_string_not_equal(json_as_string(json_element(line, 2)), "t-0");
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thirty_bakers_ten_aliases),
        cmocka_unit_test(a_set_in_sixteen_lanes),
        cmocka_unit_test(more_bakers_than_room),
        cmocka_unit_test(forced_without_a_long_gap),
        cmocka_unit_test(verified),
    };
    return cmocka_run_group_tests(tests, template_server_start, template_server_stop);
}
