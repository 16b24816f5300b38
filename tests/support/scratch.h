/* SPDX-License-Identifier: MIT */
/* A temporary directory of one test's own. Failures end the test program. */
#ifndef TB2_TESTS_SCRATCH_H
#define TB2_TESTS_SCRATCH_H

struct scratch {
    char path[64];
    int fd;
};

void scratch_init(struct scratch *s);
void scratch_fini(struct scratch *s); /* removes it with all it holds */

#endif
