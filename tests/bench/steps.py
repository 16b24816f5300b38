#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What an edited step costs, and what keeping results of steps costs.

steps.py [SECONDS [MB]]. TB2_BAKE names the program, TB2_TEST_CACHE a cache directory. A recipe of six steps on the smallest
image of the task set is baked; five write a few files each, the last waits SECONDS (60), which stands for a step of that
length and uses no processor, so that the figure does not depend on how busy the machine is. Then the last step is edited
and the task baked again: the ratio of the whole re-bake (resolve to proof) to that step is printed; at most 1.2 is wanted.
Then a step that writes MB (256) of data that hardly compress is baked with and without results kept: the difference is what a
seal of it costs.
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402

TASK = "fix-links"


def recipe(steps):
    return "\n".join(["name: bench", "network: none", "steps:"] + ["  - {run: '%s', timeout: 1h}" % s for s in steps] +
                     ["ready: 'true'", ""])


def six(seconds, words):
    return ["mkdir -p /opt/%d; for f in 1 2 3 4 5 6 7 8; do head -c 40000 /dev/urandom > /opt/%d/$f; done" % (n, n)
            for n in range(1, 6)] + ["sleep %d; echo %s > /opt/last" % (seconds, words)]


def bake(bakery, steps, *options, store="store"):
    """(seconds of the whole command, steps that ran, stage_ms)."""
    run = bakery.bake(*options, recipe=recipe(steps), tasks=[TASK], store=store, timeout=3600).expect()
    task = run.tasks()[TASK]
    return run.seconds, task["steps_run"], task["stage_ms"]


def edited_step(bakery, seconds):
    first, ran, _ = bake(bakery, six(seconds, "a"))
    check(ran == 6, ran)
    print("six steps, the last of %d s: baked in %.1f s" % (seconds, first))
    for words in ("b", "c", "d"):
        again, ran, stages = bake(bakery, six(seconds, words))
        check(ran == 1, "%d steps ran" % ran)
        print("last step edited: %.1f s, %.2f of the step (%s)" % (
            again, again / seconds, ", ".join("%s %.1f" % (name, ms / 1000) for name, ms in stages.items())), flush=True)


def sealed_step(bakery, megabytes):
    write = "head -c %dm /dev/urandom > /opt/data" % megabytes
    for number in range(3):
        steps = [write, "echo %d > /opt/after" % number]
        times = {}
        for option in ([], ["--no-step-cache"]):
            _, _, stages = bake(bakery, steps, "--force", *option, store="seal")
            times[bool(option)] = stages
        print("%d MB written in a step: steps %.2f s and snapshot %.2f s, without results kept %.2f s and %.2f s" % (
            megabytes, times[False]["steps"] / 1000, times[False]["snapshot"] / 1000, times[True]["steps"] / 1000,
            times[True]["snapshot"] / 1000), flush=True)


def seals(bakery):
    """Time that small steps take with results kept and without: twenty that write next to nothing."""
    steps = ["echo %d > /opt-%d" % (n, n) for n in range(20)]
    for number in range(3):
        kept = bake(bakery, steps, "--force", store="small")[2]["steps"]
        not_kept = bake(bakery, steps, "--force", "--no-step-cache", store="small")[2]["steps"]
        print("round %d: twenty small steps: %.0f ms each with results kept, %.0f ms without" % (
            number + 1, kept / 20, not_kept / 20), flush=True)


def main():
    numbers = [int(text) for text in sys.argv[1:] if re.fullmatch(r"\d+", text)]
    with Bakery(tasks=2) as bakery:
        bakery.bake(tasks=[TASK]).expect()  # the image, the guest kernel
        seals(bakery)
        sealed_step(bakery, numbers[1] if len(numbers) > 1 else 256)
        edited_step(bakery, numbers[0] if numbers else 60)


main()
