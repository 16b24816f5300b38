#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Times and memory of runs in which there is nothing to bake: 89 tasks; 10,000 tasks planned, with and without a lock file.

  batch.py TB2_BAKE [--cache DIR]
"""

import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
SUPPORT = os.path.join(HERE, "..", "support")
sys.path.insert(0, SUPPORT)
os.environ["TB2_BAKE"] = os.path.realpath(sys.argv[1])
if "--cache" in sys.argv:
    os.environ["TB2_TEST_CACHE"] = os.path.realpath(sys.argv[sys.argv.index("--cache") + 1])
from bakery import Bakery, check  # noqa: E402


def make(bakery, name, count):
    subprocess.run([os.path.join(SUPPORT, "make_many_tasks.py"), "--set", bakery.set, "--out", bakery.path(name),
                    "--count", str(count)], check=True)


def measure(title, bakery, *command):
    """Wall time, processor time and the most memory of one call."""
    begin = time.monotonic()
    child = subprocess.Popen(bakery.arguments(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - begin
    check(status == 0, "%s: status %d" % (title, status))
    print("| %s | %.2f | %.2f | %.0f |" % (title, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))


def main():
    with Bakery(tasks=1) as bakery:
        recipe, lock = bakery.recipe(), bakery.path("tb2.lock")
        make(bakery, "some", 89)
        make(bakery, "many", 10000)
        some = ("--tasks-dir", bakery.path("some"), "--all", "--recipe", recipe)
        many = ("--tasks-dir", bakery.path("many"), "--all", "--recipe", recipe)
        bakery.tb2("bake", *some).expect()
        print("| run | wall s | processor s | MiB |\n|---|---|---|---|")
        for _ in range(3):
            measure("bake, 89 tasks, nothing changed", bakery, "bake", *some)
        measure("plan, 10,000 tasks", bakery, "plan", *many)
        measure("plan, 10,000 tasks, all tags known", bakery, "plan", *many)
        bakery.tb2("plan", *many, "--lock", lock, "--update-lock").expect()
        measure("plan, 10,000 tasks, all locked", bakery, "plan", *many, "--lock", lock, "--frozen")


main()
