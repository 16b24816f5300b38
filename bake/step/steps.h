/* SPDX-License-Identifier: MIT */
/* A recipe in a running guest: its steps, its start command, its ready check. One thread, that of the guest. */
#ifndef TB2_BAKE_STEP_STEPS_H
#define TB2_BAKE_STEP_STEPS_H

#include <stddef.h>
#include <stdint.h>

#include "bake/step/context.h"
#include "base/buf.h"
#include "base/err.h"

struct digest;
struct guest;
struct image_room;
struct recipe;
struct recipe_files;
struct recipe_ready;
struct secret_set;

/* Receives what guest commands print. */
struct output_tap {
    void (*line)(void *ctx, const char *line);
    void *ctx;
};

/* Lays files of the host in the guest's tree, as docs/formats/recipe.md says of `copy`; a `to` that is relative
 * starts from `workdir`. ERR_STEP when they are not those of f->content any more. */
int guest_lay_files(struct guest *g, const struct recipe_files *f, const char *workdir,
                    struct err *e) MUST_USE;

/* A recipe's steps in one guest: what they need, and what they leave for each other. */
struct step_run {
    const struct recipe *recipe;
    struct guest_context *context;    /* as the steps so far have left it */
    const struct output_tap *tap;     /* may be NULL */
    const struct secret_set *secrets; /* values; NULL: none was given */
    struct image_room *images;        /* for grafts; NULL: there are none */
    struct buf earlier; /* ends of what earlier steps printed to stderr; zeroed at first */
};
void step_run_fini(struct step_run *run);

/* Runs one step; run->context is updated. Errors name the step and its last output. */
int guest_run_step(struct guest *g, struct step_run *run, size_t index, struct err *e) MUST_USE;
/* For a step whose effects on the guest are there already: updates run->context alone. */
int guest_skip_step(struct step_run *run, size_t index, struct err *e) MUST_USE;
/* Runs all steps. */
int guest_run_steps(struct guest *g, struct step_run *run, struct err *e) MUST_USE;

/* Lays a graft in a running guest; ERR_UNSUPPORTED for what the agent cannot lay: devices, pipes,
 * extended attributes. */
int graft_lay(struct guest *g, struct image_room *room, const struct recipe_files *f,
              struct err *e) MUST_USE;

/* Starts the start command (*process = 0: there is none). */
int guest_start(struct guest *g, const struct recipe *r, const struct guest_context *context,
                uint64_t *process, struct err *e) MUST_USE;

/* Fails when the start command (0: there is none) has ended with a failure; an end with status 0 is
 * fine: it may have left a daemon behind. */
int guest_check_started(struct guest *g, uint64_t process, struct err *e) MUST_USE;

/* Waits for the ready check to pass; fails at once when the start command has ended with a
 * failure. */
int guest_wait_ready(struct guest *g, const struct recipe_ready *ready,
                     const struct guest_context *context, uint64_t process, struct err *e) MUST_USE;

/* The shell that shell text is for: bash if it runs, else sh. ERR_STEP with a hint: neither does. */
int find_shell(struct guest *g, const char **out, struct err *e) MUST_USE;

#endif
