/* SPDX-License-Identifier: MIT */
/* What of an error is the caller's own. */
#include <errno.h>

#include "bake/common/blame.h"

int blame_input(struct err *e, const char *hint)
{
    if (e->class == ERR_NOTFOUND || e->sys == ENOTDIR || e->sys == EISDIR) {
        e->class = ERR_INPUT;
        err_hint(e, "%s", hint);
    }
    return -(int)e->class;
}
