/* SPDX-License-Identifier: MIT */
/* What journals tell: the last run's failures, the times of the last bake, and no trust in any line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bake/bake.h"
#include "bake/run/history.h"
#include "base/file.h"
#include "base/mem.h"

struct journal {
    const char *name;
    long seconds; /* its time */
    const char *text;
};

#define LINE(task, outcome, stages)                                                                \
    "{\"event\":\"task_finished\",\"outcome\":\"" outcome "\",\"stage_ms\":{" stages               \
    "},\"task\":\"" task "\"}\n"

static const struct journal journals[] = {
    {"b.jsonl", 300,
     LINE("a", "unchanged", "") LINE("b", "failed", "\"pull\":9") LINE("c", "cancelled", "")},
    {"z.jsonl", 200,
     LINE("a", "ready", "\"plan\":1,\"pull\":10,\"boot\":20") LINE("d", "failed", "")},
    {"a.jsonl", 100,
     LINE("a", "ready", "\"boot\":7000") LINE("b", "ready", "\"boot\":400,\"prove\":-3")},
    {"damaged.jsonl", 50,
     "{\"event\":\"task_finished\",\"outcome\":\"ready\"\n"
     "{\"event\":\"task_finished\",\"outcome\":\"ready\",\"task\":7}\n"
     "[\"outcome\":\"ready\"]\n\n"
     "{\"event\":\"task_finished\",\"outcome\":\"ready\",\"stage_ms\":[],\"task\":\"e\"}\n"
     "{\"event\":\"task_finished\",\"outcome\":\"ready\",\"stage_ms\":{\"boot\":\"x\"},\"task\":"},
    {"lock", 400, LINE("a", "failed", "")},
};

static void the_newest_run_counts(void **state)
{
    (void)state;
    struct err e = ERR_INIT;
    char path[] = "/tmp/tb2-history-XXXXXX";
    assert_non_null(mkdtemp(path));
    AUTO_STORE struct store *s = NULL;
    AUTO_HISTORY struct history *none = NULL;
    assert_int_equal(store_open(&s, path, &e), 0);
    assert_int_equal(history_load(&none, s, &e), 0);
    assert_int_equal(none->count, 0);
    assert_int_equal(file_make_dirs(store_dir(s), "runs", &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(journals); i++) {
        AUTO_FREE char *name = mem_printf("runs/%s", journals[i].name);
        assert_int_equal(file_put(store_tmp_dir(s), store_dir(s), name, journals[i].text,
                                  strlen(journals[i].text), &e),
                         0);
        const struct timespec times[2] = {{.tv_sec = journals[i].seconds},
                                          {.tv_sec = journals[i].seconds}};
        assert_int_equal(utimensat(store_dir(s), name, times, 0), 0);
    }
    AUTO_HISTORY struct history *h = NULL;
    assert_int_equal(history_load(&h, s, &e), 0);
    static const struct {
        const char *task;
        bool last_failed; /* in the last run */
        int64_t ms;
    } rows[] = {{"a", false, 30}, {"b", true, 400}, {"c", true, 0}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct past_task *t = history_find(h, rows[i].task);
        assert_non_null(t);
        assert_int_equal(t->age == 0 && t->failed, rows[i].last_failed);
        assert_int_equal(history_ms(t, STAGE_PULL), rows[i].ms);
    }
    assert_null(history_find(h, "d")); /* a failure of a run that is not the last one */
    assert_int_equal(history_ms(history_find(h, "a"), STAGE_BOOT), 20);
    assert_int_equal(h->typical_ms, 30); /* of 0, 30 and 400 */
    store_close(MOVE(s));
    assert_int_equal(file_remove_tree(AT_FDCWD, path, &e), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_newest_run_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
