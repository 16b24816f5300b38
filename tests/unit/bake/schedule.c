/* SPDX-License-Identifier: MIT */
/* The scheduler with stages that do nothing real: limits, order, budgets, ends, ten thousand tasks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "bake/run/schedule.h"
#include "base/mem.h"

enum { LANES = 4, ITEMS_MAX = 10000 };

struct fake_item {
    unsigned stage;
    unsigned fails_at;  /* stage; LANES: nowhere */
    unsigned again;     /* tries that are still to be put off */
    uint64_t memory_mb; /* in lane 2 */
    int64_t ahead_ms;
    enum { FAKE_OPEN, FAKE_READY, FAKE_FAILED, FAKE_DROPPED } end;
    unsigned ended_at;
};

struct fake_run {
    struct fake_item *items;
    atomic_uint running[LANES];
    atomic_uint most[LANES];
    atomic_uint_fast64_t running_mb;
    atomic_uint_fast64_t most_mb;
    atomic_size_t begun;       /* how many works began */
    size_t order[64];          /* items in the order in which lane 0 took them */
    struct cancel *when_begun; /* set when ... */
    size_t begun_limit;        /* ... so many works have begun */
    uint64_t disk_mb;
};

static void raise_most(atomic_uint *most, unsigned now)
{
    unsigned seen = atomic_load(most);
    while (now > seen && !atomic_compare_exchange_weak(most, &seen, now))
        ;
}

static struct schedule_next next_of(const struct fake_item *item, int64_t delay_ms)
{
    return (struct schedule_next){.lane = item->stage,
                                  .ahead_ms = item->ahead_ms,
                                  .memory_mb = item->stage == 2 ? item->memory_mb : 0,
                                  .delay_ms = delay_ms};
}

static struct schedule_next fake_first(void *ctx, size_t index)
{
    struct fake_run *run = ctx;
    return next_of(&run->items[index], 0);
}

static void enter(struct fake_run *run, const struct fake_item *item, size_t index)
{
    size_t begun = atomic_fetch_add(&run->begun, 1);
    if (item->stage == 0 && begun < ARRAY_LEN(run->order))
        run->order[begun] = index;
    raise_most(&run->most[item->stage], atomic_fetch_add(&run->running[item->stage], 1) + 1);
    if (item->stage == 2) {
        uint64_t mb = atomic_fetch_add(&run->running_mb, item->memory_mb) + item->memory_mb;
        uint_fast64_t seen = atomic_load(&run->most_mb);
        while (mb > seen && !atomic_compare_exchange_weak(&run->most_mb, &seen, mb))
            ;
    }
    if (run->when_begun && begun + 1 == run->begun_limit)
        cancel_set(run->when_begun);
}

static void leave(struct fake_run *run, const struct fake_item *item)
{
    atomic_fetch_sub(&run->running[item->stage], 1);
    if (item->stage == 2)
        atomic_fetch_sub(&run->running_mb, item->memory_mb);
}

static struct schedule_next fake_work(void *ctx, size_t index)
{
    struct fake_run *run = ctx;
    struct fake_item *item = &run->items[index];
    enter(run, item, index);
    leave(run, item);
    if (item->again > 0) {
        item->again--;
        return next_of(item, 1);
    }
    item->ended_at = item->stage;
    if (item->stage == item->fails_at) {
        item->end = FAKE_FAILED;
        return (struct schedule_next){.finished = true};
    }
    if (++item->stage == LANES) {
        item->end = FAKE_READY;
        return (struct schedule_next){.finished = true};
    }
    return next_of(item, 0);
}

static void fake_drop(void *ctx, size_t index)
{
    struct fake_run *run = ctx;
    assert_int_equal(run->items[index].end, FAKE_OPEN);
    run->items[index].end = FAKE_DROPPED;
}

static uint64_t fake_room(void *ctx)
{
    const struct fake_run *run = ctx;
    return run->disk_mb;
}

static const struct schedule_lane fake_lanes[LANES] = {{.workers = 16},
                                                       {.workers = 4},
                                                       {.workers = 3, .memory_mb = 100},
                                                       {.workers = 2, .goes_on = true}};

static void run_fake(struct fake_run *run, const struct schedule_lane *lanes, size_t count,
                     const struct cancel *drain, const struct cancel *stop)
{
    struct err e = ERR_INIT;
    const struct schedule_options options = {.ops = {fake_work, fake_drop},
                                             .ctx = run,
                                             .lanes = lanes,
                                             .lane_count = LANES,
                                             .drain = drain,
                                             .stop = stop};
    assert_int_equal(schedule_run(&options, count, fake_first, &e), 0);
    for (unsigned i = 0; i < LANES; i++) {
        assert_int_equal(run->running[i], 0);
        assert_true(run->most[i] <= lanes[i].workers);
    }
}

static struct fake_item *make_items(size_t count)
{
    struct fake_item *items = mem_array(count, sizeof(*items));
    assert_non_null(items);
    for (size_t i = 0; i < count; i++)
        items[i] = (struct fake_item){.fails_at = LANES, .memory_mb = 30};
    return items;
}

static size_t count_ends(const struct fake_run *run, size_t count, unsigned end)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += run->items[i].end == end;
    return found;
}

static void lanes_are_limited(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    AUTO_FREE struct fake_item *items = make_items(COUNT);
    struct fake_run run = {.items = items};
    for (size_t i = 0; i < COUNT; i++)
        items[i].memory_mb = i % 7 == 0 ? 100 : 20 + i % 50;
    run_fake(&run, fake_lanes, COUNT, NULL, NULL);
    assert_int_equal(count_ends(&run, COUNT, FAKE_READY), COUNT);
    assert_int_equal(run.begun, COUNT * LANES);
    assert_in_range(run.most_mb, 1, 100);
}

/* What is bigger than the whole budget, of memory or disk, runs alone; nothing waits for ever. */
static void the_too_big_run_alone(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    struct schedule_lane lanes[LANES];
    memcpy(lanes, fake_lanes, sizeof(lanes));
    lanes[2].room = fake_room;
    for (int disk = 0; disk < 2; disk++) {
        AUTO_FREE struct fake_item *items = make_items(COUNT);
        struct fake_run run = {.items = items, .disk_mb = disk ? 60 : 1000};
        for (size_t i = 0; i < COUNT; i++)
            items[i].memory_mb = i % 10 == 0 ? 500 : 30;
        run_fake(&run, lanes, COUNT, NULL, NULL);
        assert_int_equal(count_ends(&run, COUNT, FAKE_READY), COUNT);
        assert_int_equal(run.most_mb, 500);
    }
}

static void the_longest_begin_first(void **state)
{
    (void)state;
    static const int64_t ahead_ms[] = {5, 100, 7, 100, 0, 99};
    static const size_t order[] = {1, 3, 5, 2, 0, 4};
    struct schedule_lane lanes[LANES] = {
        {.workers = 1}, {.workers = 1}, {.workers = 1}, {.workers = 1}};
    AUTO_FREE struct fake_item *items = make_items(ARRAY_LEN(order));
    struct fake_run run = {.items = items};
    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        items[i].ahead_ms = ahead_ms[i];
        items[i].fails_at = 0; /* the order in lane 0 alone */
    }
    run_fake(&run, lanes, ARRAY_LEN(order), NULL, NULL);
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        assert_int_equal(run.order[i], order[i]);
}

static void what_is_put_off_comes_back(void **state)
{
    (void)state;
    enum { COUNT = 50 };
    AUTO_FREE struct fake_item *items = make_items(COUNT);
    struct fake_run run = {.items = items};
    for (size_t i = 0; i < COUNT; i++)
        items[i].again = (unsigned)(i % 3);
    run_fake(&run, fake_lanes, COUNT, NULL, NULL);
    assert_int_equal(count_ends(&run, COUNT, FAKE_READY), COUNT);
    assert_int_equal(run.begun, COUNT * LANES + 49);
}

/* A request to drain lets lanes that go on end what reaches them; a request to stop nothing. */
static void ends_are_clean(void **state)
{
    (void)state;
    enum { COUNT = 400 };
    static const struct {
        const char *name;
        bool stop;
        unsigned stage; /* where the items are at the start */
        bool all_ready;
    } rows[] = {
        {"drain, nothing is nearly done", false, 0, false},
        {"drain, all in the lane that goes on", false, 3, true},
        {"stop", true, 0, false},
        {"stop, all in the lane that goes on", true, 3, false},
    };
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        struct err e = ERR_INIT;
        struct cancel request;
        assert_int_equal(cancel_init(&request, &e), 0);
        AUTO_FREE struct fake_item *items = make_items(COUNT);
        struct fake_run run = {.items = items};
        for (size_t i = 0; i < COUNT; i++)
            items[i].stage = rows[r].stage;
        cancel_set(
            &request); /* before anything begins: how many got through is no matter of luck */
        run_fake(&run, fake_lanes, COUNT, rows[r].stop ? NULL : &request,
                 rows[r].stop ? &request : NULL);
        size_t ready = count_ends(&run, COUNT, FAKE_READY);
        if (ready + count_ends(&run, COUNT, FAKE_DROPPED) != COUNT ||
            (rows[r].all_ready && ready != COUNT))
            fail_msg("%s: %zu ready", rows[r].name, ready);
        cancel_fini(&request);
    }
}

/* In the middle: everything has an end, and what had begun is not cut off. */
static void a_drain_in_the_middle(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    struct err e = ERR_INIT;
    struct cancel request;
    assert_int_equal(cancel_init(&request, &e), 0);
    AUTO_FREE struct fake_item *items = make_items(COUNT);
    struct fake_run run = {.items = items, .when_begun = &request, .begun_limit = 900};
    run_fake(&run, fake_lanes, COUNT, &request, NULL);
    assert_int_equal(count_ends(&run, COUNT, FAKE_READY) + count_ends(&run, COUNT, FAKE_DROPPED),
                     COUNT);
    assert_int_equal(count_ends(&run, COUNT, FAKE_OPEN), 0);
    cancel_fini(&request);
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(*state >> 33);
}

/* One in a hundred fails at a random stage: just these fail, there; a run of these alone is the next. */
static void ten_thousand_tasks(void **state)
{
    (void)state;
    uint64_t seed = 20251031;
    AUTO_FREE struct fake_item *items = make_items(ITEMS_MAX);
    AUTO_FREE unsigned *expected = mem_array(ITEMS_MAX, sizeof(*expected));
    assert_non_null(expected);
    struct fake_run run = {.items = items};
    size_t bad = 0;
    for (size_t i = 0; i < ITEMS_MAX; i++) {
        items[i].ahead_ms = (int64_t)(draw(&seed) % 1000);
        items[i].memory_mb = 10 + draw(&seed) % 90;
        if (draw(&seed) % 100 == 0) {
            items[i].fails_at = draw(&seed) % LANES;
            bad++;
        }
        expected[i] = items[i].fails_at;
    }
    run_fake(&run, fake_lanes, ITEMS_MAX, NULL, NULL);
    size_t failed = 0;
    for (size_t i = 0; i < ITEMS_MAX; i++) {
        bool is_bad = expected[i] < LANES;
        assert_int_equal(items[i].end, is_bad ? FAKE_FAILED : FAKE_READY);
        assert_int_equal(items[i].ended_at, is_bad ? expected[i] : LANES - 1);
        failed += is_bad;
    }
    assert_int_equal(failed, bad);
    assert_in_range(run.most_mb, 1, 100);
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(usage.ru_maxrss < 64 << 10);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_are_limited),       cmocka_unit_test(the_too_big_run_alone),
        cmocka_unit_test(the_longest_begin_first), cmocka_unit_test(what_is_put_off_comes_back),
        cmocka_unit_test(ends_are_clean),          cmocka_unit_test(a_drain_in_the_middle),
        cmocka_unit_test(ten_thousand_tasks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
