/* SPDX-License-Identifier: MIT */
/* The lock of a run: a file of the store. */
#include "bake/common/run_lock.h"
#include "base/file.h"
#include "blockdev/blockdev.h"

int run_lock(int *fd, struct store *s, struct err *e)
{
    int rc = file_lock(fd, store_dir(s), "run.lock", true, false, e);
    if (rc == -ERR_BUSY) {
        err_set(e, ERR_BUSY, "another bake is using the store %s", store_path(s));
        return err_hint(e, "wait for it to end, or use another store (--store)");
    }
    return rc;
}
