#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""kill -9 at random moments, again and again, then to the end: the result of a run that nobody disturbed.

  kill.py [SEED]                          ten moments, early ones among them, then a normal run
  kill.py --until-done [SEED] [--tasks N] every few seconds until a run comes to its end by itself
  kill.py --each-stage                    once at the beginning of each stage; then a store's garbage collection

The same: disks, aliases and keys; every object of the store sound, every template restored; no machine, no temporary file and
no mount is left.
"""

import argparse
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, start_and_kill  # noqa: E402

KILLS = 10
ROUNDS_MAX = 1000


def wait_for_no_machine(bakery):
    """Machines die with the process that started them; the kernel may take a moment."""
    end = time.monotonic() + 10
    while bakery.machines():
        check(time.monotonic() < end, "a machine outlived its bake: %s" % bakery.machines())
        time.sleep(0.05)


def mounts(bakery):
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return [line for line in file if bakery.home in line]


def catalog(bakery, store):
    """What each alias stands for, but for what differs from boot to boot."""
    top, found = bakery.path(store, "catalog"), {}
    for name in os.listdir(top):
        with open(os.path.join(top, name), encoding="utf-8") as file:
            entry = json.load(file)
        found[name] = {member: entry[member] for member in ("task", "key")}
    return found


def compare(bakery, calm, final):
    check(set(final.outcomes().values()) <= {"ready", "unchanged"}, final.outcomes())
    check(final.base_disks() == calm.base_disks(), "other disks after the kills")
    check(catalog(bakery, "killed") == catalog(bakery, "calm"), "another catalog after the kills")
    check(not bakery.leftovers("killed"), "left behind: %s" % bakery.leftovers("killed"))
    check(not bakery.machines() and not mounts(bakery), bakery.machines() + mounts(bakery))
    bakery.tb2("store", "fsck", store="killed").expect()
    for task in final.tasks().values():
        bakery.tb2("verify", task["alias"], store="killed").expect()


def at_ten_moments(bakery, moments):
    calm = bakery.bake("--jobs", "2", store="calm").expect()
    command = bakery.bake_command("--jobs", "2")
    at_work = 0
    for _ in range(KILLS):
        # Early moments matter as much as late ones: half of them fall into the first second.
        longest = 1.0 if moments.random() < 0.5 else min(calm.seconds, 20)
        at_work += start_and_kill(bakery, command, "killed", moments.uniform(0.02, longest))
        wait_for_no_machine(bakery)
    print("%d of %d kills met a bake at work" % (at_work, KILLS))
    compare(bakery, calm, bakery.bake("--jobs", "2", store="killed").expect())


def until_done(bakery, moments):
    """Long enough on the whole for a task to be finished now and then, however slow the machine is."""
    calm = bakery.bake("--jobs", "2", store="calm").expect()
    command = bakery.bake_command("--jobs", "2")
    slowest = max(sum(task["stage_ms"].values()) for task in calm.tasks().values()) / 1000
    begin, kills = time.monotonic(), 0
    while start_and_kill(bakery, command, "killed", 0.05 + moments.expovariate(1 / slowest)):
        kills += 1
        check(kills < ROUNDS_MAX, "it does not get anywhere")
        wait_for_no_machine(bakery)
    print("undisturbed: %.1f s; killed %d times, done after %.1f s" % (calm.seconds, kills, time.monotonic() - begin))
    compare(bakery, calm, bakery.bake("--jobs", "2", store="killed").expect())


STAGES = ("resolve", "pull", "ingest", "assemble", "boot", "steps", "ready", "snapshot", "prove")


def kill_at(bakery, stage):
    """Starts a bake and kills it as soon as it tells that a task has begun the stage."""
    child = bakery.start(bakery.bake_command("--jobs", "1", "--force"), "killed")
    try:
        for line in child.stdout:
            event = json.loads(line)
            if event["event"] == "stage_started" and event["stage"] == stage:
                return
        raise AssertionError("no task came to " + stage)
    finally:
        child.kill()
        child.communicate()


def gc(bakery, *options):
    """What was, or would be, removed."""
    done = json.loads(bakery.tb2("store", "gc", "--json", "--grace", "0", *options, store="killed").expect().out)
    return sorted(entry["path"] for entry in done["removed"])


def at_each_stage(bakery, _moments):
    """What a kill leaves is gone with the next start, or is found by gc, which first says the same; what is not ours stays."""
    calm = bakery.bake("--jobs", "2", store="calm").expect()
    foreign = bakery.path("killed", "not-ours.txt")
    for stage in STAGES:
        kill_at(bakery, stage)
        wait_for_no_machine(bakery)
        with open(foreign, "w", encoding="utf-8") as out:
            out.write("of someone else")
        planned = gc(bakery, "--dry-run")
        check(gc(bakery) == planned, "gc removed something else than it had said, after " + stage)
        check(not bakery.leftovers("killed") and os.path.exists(foreign), "%s: %s" % (stage, bakery.leftovers("killed")))
        check(not mounts(bakery), mounts(bakery))
        print("%s: gc took %d objects" % (stage, len(planned)))
    os.unlink(foreign)
    compare(bakery, calm, bakery.bake("--jobs", "2", store="killed").expect())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", nargs="?", type=int)
    parser.add_argument("--until-done", action="store_true")
    parser.add_argument("--each-stage", action="store_true")
    parser.add_argument("--tasks", type=int, default=2)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    print("seed %d" % seed)
    with Bakery(tasks=given.tasks) as bakery:
        chosen = until_done if given.until_done else at_each_stage if given.each_stage else at_ten_moments
        chosen(bakery, random.Random(seed))


main()
