#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kill -9 at ten random moments, then a normal run: the same disks, no leftovers, nothing lost.

  kill.py [SEED]
"""

import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, start_and_kill  # noqa: E402

KILLS = 10


def wait_for_no_machine(bakery):
    """Machines die with the process that started them; the kernel may take a moment."""
    end = time.monotonic() + 10
    while bakery.machines():
        check(time.monotonic() < end, "a machine outlived its bake: %s" % bakery.machines())
        time.sleep(0.05)


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(1 << 32)
    print("seed %d" % seed)
    moments = random.Random(seed)
    with Bakery(tasks=2) as bakery:
        calm = bakery.bake("--jobs", "2", store="calm").expect()
        command = bakery.bake_command("--jobs", "2")
        at_work = 0
        for _ in range(KILLS):
            # Early moments matter as much as late ones: half of them fall into the first second.
            longest = 1.0 if moments.random() < 0.5 else min(calm.seconds, 20)
            at_work += start_and_kill(bakery, command, "killed", moments.uniform(0.02, longest))
            wait_for_no_machine(bakery)
        print("%d of %d kills met a bake at work" % (at_work, KILLS))
        final = bakery.bake("--jobs", "2", store="killed").expect()
        check(set(final.outcomes().values()) <= {"ready", "unchanged"}, final.outcomes())
        check(final.base_disks() == calm.base_disks(), "other disks after the kills")
        check(not bakery.leftovers("killed"), "left behind: %s" % bakery.leftovers("killed"))
        for task in final.tasks().values():
            bakery.tb2("verify", task["alias"], store="killed").expect()


main()
