/* SPDX-License-Identifier: MIT */
/* Whose fault an error is. */
#ifndef TB2_BAKE_COMMON_BLAME_H
#define TB2_BAKE_COMMON_BLAME_H

#include "base/err.h"

/* What a person named and is not there becomes ERR_INPUT with the hint; others stay. */
int blame_input(struct err *e, const char *hint);

#endif
