/* SPDX-License-Identifier: MIT */
#include "bake/remote_internal.h"
int remote_oci_open(struct remote *r, const struct remote_options *o, struct err *e)
{
    (void)r;
    (void)o;
    return err_set(e, ERR_UNSUPPORTED, "oci");
}
