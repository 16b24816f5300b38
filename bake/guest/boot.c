/* SPDX-License-Identifier: MIT */
/*
 * From nothing to a guest whose agent answers and whose disk is mounted: by a boot image where there
 * can be one, else by a boot. What comes out is the same: a boot image is such a boot, stopped before
 * anything looked at the disk (docs/decisions/0030-boot-images.md).
 */

#include <stdlib.h>

#include "bake/channel.h"
#include "bake/guest/guest.h"
#include "bake/guest/internal.h"
#include "bake/vm.h"
#include "base/log.h"
#include "base/mem.h"

enum { BOOT_TRIES = 3 };

/* The agent has answered: what a guest needs before its disk is looked at, then the disk. */
static int settle(struct guest *g, const struct guest_options *o, struct err *e)
{
    int rc = guest_set_clock(g, e);
    if (rc == 0)
        rc = agent_reseed(g->agent, e);
    if (rc == 0)
        rc = agent_mount(g->agent, e);
    if (rc == 0 && o->network)
        rc = guest_connect_network(g, o, e);
    return rc;
}

static int boot_once(struct guest **out, const struct machine_room *r,
                     const struct guest_options *o, bool mounted, struct err *e)
{
    AUTO_GUEST struct guest *g = NULL;
    int rc = guest_new(&g, r, o, e);
    if (rc < 0)
        return rc;
    struct vm_options options = guest_vm_options(g, o);
    options.track_pages = !o->cold && vm_driver_can(r->driver)->memory_diff;
    rc = vm_boot(&g->vm, &options, e);
    if (rc == 0)
        rc = agent_connect(&g->agent, g->vm, GUEST_BOOT_TIMEOUT_MS, r->cancel, e);
    if (rc == 0 && mounted)
        rc = settle(g, o, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}

/*
 * Nothing of the task has run before the agent answers, so a boot that ended badly is tried again,
 * with a fresh disk: a kernel that is emulated on a busy host does panic now and then while it boots.
 */
int guest_boot_cold(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                    bool mounted, struct err *e)
{
    for (int left = BOOT_TRIES - 1;; left--) {
        int rc = boot_once(out, r, o, mounted, e);
        if (left == 0 || (rc != -ERR_STEP && rc != -ERR_TIMEOUT))
            return rc;
        log_event(LOG_WARN, "bake", "a guest did not boot, trying again: %s", e->text);
        err_clear(e);
    }
}

/* ---- From a boot image ---- */

static int wake(struct guest **out, const struct machine_room *r, const struct guest_options *o,
                const struct boot_image *b, struct err *e)
{
    AUTO_GUEST struct guest *g = NULL;
    struct guest_options options = *o;
    options.snapshot_again = true;
    int rc = guest_new(&g, r, &options, e);
    if (rc == 0)
        rc = store_get_map(r->store, &b->saved.memory, &g->boot_memory, e);
    if (rc == 0)
        rc = guest_load(g, &options, &b->saved, e);
    if (rc == 0)
        g->boot_image = b->key;
    if (rc == 0)
        rc = agent_connect(&g->agent, g->vm, GUEST_RESTORE_TIMEOUT_MS, r->cancel, e);
    if (rc == 0)
        rc = settle(g, o, e);
    if (rc < 0)
        return rc;
    *out = MOVE(g);
    return 0;
}

/* What another boot image, or none, would not make better. */
static bool is_final(int rc)
{
    return rc == -ERR_CANCELLED || rc == -ERR_NOMEM;
}

/* A boot image that does not do is made again, once. */
static int boot_from_image(struct guest **out, const struct machine_room *r,
                           const struct guest_options *o, struct err *e)
{
    struct boot_image image, bad;
    int rc = boot_image_get(&image, r, o, NULL, e);
    if (rc < 0)
        return rc;
    rc = wake(out, r, o, &image, e);
    if (rc == 0 || is_final(rc))
        return rc;
    log_event(LOG_WARN, "bake", "the boot image does not do, making it again: %s", e->text);
    err_clear(e);
    bad = image;
    rc = boot_image_get(&image, r, o, &bad, e);
    return rc == 0 ? wake(out, r, o, &image, e) : rc;
}

int guest_boot(struct guest **out, const struct machine_room *r, const struct guest_options *o,
               struct err *e)
{
    if (!r->boots || o->cold)
        return guest_boot_cold(out, r, o, true, e);
    int rc = boot_from_image(out, r, o, e);
    if (rc == 0 || is_final(rc))
        return rc;
    log_event(LOG_WARN, "bake", "booting without a boot image: %s", e->text);
    err_clear(e);
    return guest_boot_cold(out, r, o, true, e);
}
