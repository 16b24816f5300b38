/* SPDX-License-Identifier: MIT */
/* A recipe and a guest for it, whose agent is a process of this machine. */
#ifndef TB2_TESTS_UNIT_BAKE_STEPS_WORLD_H
#define TB2_TESTS_UNIT_BAKE_STEPS_WORLD_H

#include "agent_process.h"
#include "bake/guest/guest.h"
#include "bake/guest/machine_room.h"
#include "bake/step/context.h"
#include "bake/step/steps.h"
#include "manifests/manifest.h"

struct world {
    struct machine_room room;
    struct guest guest;
    struct guest_context context;
    struct recipe *recipe;
    struct step_run run;
};

void must(int rc, const struct err *e);

/* A recipe of this text in the fixture's own directory, for which "DIR" stands in it. */
void open_world(struct world *w, struct fixture *f, const char *text);
void close_world(struct world *w);
/* Runs all steps; with `parts`, the error must hold each of them, else there must be none. */
void expect_steps(struct fixture *f, const char *text, const char *const parts[4]);

#endif
