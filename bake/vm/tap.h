/* SPDX-License-Identifier: MIT */
/* A tap device of the host, as a guest's network: recipes with `network: tap`. It is the administrator's: nothing
 * here changes it. Thread-safe. */
#ifndef TB2_BAKE_VM_TAP_H
#define TB2_BAKE_VM_TAP_H

#include "bake/channel.h"

enum { TAP_NAME_MAX = 15 }; /* of an interface (IFNAMSIZ - 1) */

struct tap {
    char name[TAP_NAME_MAX + 1];
    struct agent_address address; /* of the guest */
};

/*
 * From "NAME[,ADDRESS/BITS[,GATEWAY[,NAMESERVER]]]". Without an address the guest gets a neighbour of the
 * device's own address, which is then its gateway. ERR_INPUT when the text is wrong, when there is no such
 * device, or when it has no address and none is given.
 */
int tap_open(struct tap *out, const char *text, struct err *e) MUST_USE;

#endif
