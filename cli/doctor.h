/* SPDX-License-Identifier: MIT */
/* Private to cli: what `doctor` looks at. */
#ifndef TB2_CLI_DOCTOR_H
#define TB2_CLI_DOCTOR_H

#include "cli/cmd.h"
#include "cli/image_arguments.h"

enum doctor_state {
    DOCTOR_GOOD,
    DOCTOR_NOTE, /* baking works without it, at a cost */
    DOCTOR_BAD,  /* nothing is baked until it is there */
};

/* What one look found. Texts are one line each. */
struct doctor_finding {
    enum doctor_state state;
    char found[512];
    char cost[256]; /* what it costs that it is missing; "" when it is good */
    char fix[512];  /* how to get it; "" where there is nothing to do */
};

struct doctor {
    struct image_arguments images; /* first: its options are taken from there */
    const struct global_options *globals;
    bool probe;        /* boot a guest to see whether KVM works */
    const char *image; /* the one to be looked up */
};

struct doctor_check {
    const char *name;
    void (*look)(const struct doctor *d, struct doctor_finding *out);
};
/* Ends with a row of zeros. `image` is looked at for each image of the command line. */
extern const struct doctor_check doctor_checks[];
extern const struct doctor_check doctor_image_check;

#endif
