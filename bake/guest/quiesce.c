/* SPDX-License-Identifier: MIT */
/*
 * Before a snapshot: nobody may be at work on the image's packages, and none may have been left half
 * done since the boot (what the image brought along in that state is its own affair, and part of the
 * task). A manager that is at work gets some time to end.
 */

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "base/clock.h"
#include "base/log.h"

enum { QUIET_WAIT_MS = 30000, QUIET_LOOK_MS = 500 };

int guest_note_packages(struct guest *g, struct err *e)
{
    return agent_packages(g->agent, &g->packages, e);
}

bool packages_are_whole(const struct agent_packages *before, const struct agent_packages *now)
{
    if (now->broken_count == before->broken_count)
        return now->broken_sum == before->broken_sum;
    return now->broken_count < before->broken_count;
}

static int check_whole(const struct agent_packages *before, const struct agent_packages *now,
                       struct err *e)
{
    if (packages_are_whole(before, now))
        return 0;
    err_set(e, ERR_STEP, "%u of the image's packages are half installed: %s", now->broken_count,
            now->broken);
    return err_hint(e, "let a step of the recipe finish the work, such as dpkg --configure -a");
}

int guest_quiesce(struct guest *g, struct err *e)
{
    struct agent_packages now = {0};
    int64_t until_ms = clock_ms() + QUIET_WAIT_MS;
    for (bool told = false;; told = true) {
        int rc = agent_packages(g->agent, &now, e);
        if (rc == 0 && !now.busy[0])
            return check_whole(&g->packages, &now, e);
        if (rc == 0 && clock_ms() >= until_ms) {
            err_set(e, ERR_STEP, "packages are being worked on, still after %d s: %s",
                    QUIET_WAIT_MS / 1000, now.busy);
            return err_hint(e, "let a step of the recipe wait for it to end, or end it");
        }
        if (rc == 0 && !told)
            log_event(LOG_INFO, "bake", "waiting before the snapshot: %s", now.busy);
        if (rc == 0)
            rc = cancel_sleep_ms(g->room->cancel, QUIET_LOOK_MS, e);
        if (rc < 0)
            return rc;
    }
}
