/* SPDX-License-Identifier: MIT */
/*
 * Golden replay: a task's own solution and tests, run in a copy of its template.
 *
 * A template that cannot be solved by the task's own solution gives a training run nothing but
 * zeros, and looks fine until then. So, for each task: a copy of the template is restored, solution/
 * put into it as /solution and solve.sh run, then tests/ as /tests and test.sh, the way the harness
 * does it (Harbor: tasks, oracle agent, verifier); the reward is read, the copy thrown away. Nothing
 * of it ever reaches the store: what a copy writes is in files of the store's tmp/ that go with it.
 */
#ifndef TB2_BAKE_GOLDEN_H
#define TB2_BAKE_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bake/bake.h"
#include "bake/channel.h"

enum golden_outcome {
    GOLDEN_PASSED,
    GOLDEN_FAILED,   /* the tests ended without a full reward, or were stopped */
    GOLDEN_ERROR,    /* there was no trial: no template, no solve.sh, the guest died */
    GOLDEN_CANCELLED /* the run was told to stop before this one was over */
};

const char *golden_outcome_name(enum golden_outcome outcome);

/* Where the reward is from. */
enum golden_source {
    GOLDEN_NO_REWARD,
    GOLDEN_REWARD_JSON, /* number `reward` in /logs/verifier/reward.json */
    GOLDEN_REWARD_TEXT, /* /logs/verifier/reward.txt */
    GOLDEN_STATUS       /* neither was written: exit status 0 is 1, any other 0 */
};

const char *golden_source_name(enum golden_source source);

/* One of the two scripts. */
struct golden_script {
    bool ran; /* to its end, whatever it was */
    struct agent_result end;
    int64_t wall_ms;
    int64_t limit_ms; /* that it had */
};

/* What became of one task. */
struct golden_result {
    char *task;
    char *alias; /* of its template; NULL: not known */
    enum golden_outcome outcome;
    bool known_to_fail;
    enum golden_source source;
    double reward;
    int64_t restore_ms; /* start of the VMM to a running copy */
    struct golden_script solve, test;
    char *output;   /* directory with solution.txt and tests.txt; NULL: nothing ran */
    struct err err; /* unless it passed: why, with the last output */
};

struct golden_options {
    const char *cache_dir;       /* guest kernel; absolute */
    struct bake_selection tasks; /* of tasks_dir; `only_failed` is not looked at */
    struct remote *remote;    /* gives what the store lacks (bake/remote.h); NULL: nothing does */
    const char *recipe_path;  /* templates that this recipe makes; NULL: the task's only one */
    const char *const *known; /* names and globs of tasks known to fail */
    size_t known_count;
    const char *const *env; /* NAME=value, for ${NAME} in task.toml */
    size_t env_count;
    const char *output_dir; /* a directory per task is made in it */
    struct bake_limits limits;
    unsigned timeout_multiplier; /* of the scripts' time limits; 0: 1 */
    const struct vm_driver *vmm; /* NULL: the one that made the first task's template */
    enum vm_accel accel;
    /* Told of each task that is done, one at a time, from any thread; may be NULL. */
    void (*finished)(void *ctx, const struct golden_result *r);
    void *ctx;
    const struct cancel *drain; /* end what runs, begin nothing new; may be NULL */
    const struct cancel *cancel;
};

struct golden_report {
    struct golden_result *results; /* sorted by task name */
    size_t count;
    int64_t wall_ms;
};

/*
 * Replays. Success means that the run went through, whatever the outcomes. An error concerns all
 * tasks: no such directory or recipe (ERR_INPUT), no QEMU; the report is then empty. Goes on beside a
 * bake.
 */
int golden_run(struct golden_report *out, struct store *s, const struct golden_options *o,
               struct err *e) MUST_USE;
void golden_report_fini(struct golden_report *r);

/* True for a task that says something is wrong: one that failed and is not known to, or an error. */
bool golden_is_bad(const struct golden_result *r);

/* A result as a JSON object (docs/formats/golden.md); NULL when memory is short. */
struct json *golden_result_json(const struct golden_result *r);

#endif
