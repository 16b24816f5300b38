/* SPDX-License-Identifier: MIT */
/* Private to the QEMU driver. */
#ifndef TB2_BAKE_VM_QEMU_H
#define TB2_BAKE_VM_QEMU_H

#include "bake/vm/driver.h"

/* Names in the run directory. */
#define QEMU_CONTROL_SOCKET "qmp.sock"
#define QEMU_AGENT_SOCKET "agent.sock"

/* The whole argument list (qemu_arguments.c). */
int qemu_arguments(char ***out, const struct vm_launch *launch, struct err *e) MUST_USE;

#endif
