/* SPDX-License-Identifier: MIT */
/* Private to the Firecracker driver. */
#ifndef TB2_BAKE_VM_FIRECRACKER_H
#define TB2_BAKE_VM_FIRECRACKER_H

#include "bake/vm/driver.h"
#include "bake/vm/page_server.h"
#include "registry/local.h"

/* ---- Versions (firecracker_version.c) ---- */

/* "firecracker 1.16.1" of the program in PATH, for free(); ERR_UNSUPPORTED for one that is not to be used. */
int firecracker_version(char **out, struct err *e) MUST_USE;

/* ERR_UNSUPPORTED for a version ("1.16.1") that this driver does not know, or that is known to be
 * bad: then what is wrong with it. */
int firecracker_check_version(const char *version, struct err *e) MUST_USE;

bool firecracker_is_older(const char *version, unsigned major, unsigned minor);

#endif
