#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Bakes and garbage collections side by side: no template ever lacks a chunk.

gc_load.py [ROUNDS]. TB2_BAKE names the program, TB2_TEST_CACHE a cache directory. Each round (20 by default) bakes one
task of a small set anew, by --force, with another recipe; meanwhile `store gc --grace 0` runs again and again. After each
bake the new template is restored and every chunk of all templates is read. Ends non-zero when one is lacking.
"""

import json
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import RECIPE, Bakery, check  # noqa: E402


class Sweeper(threading.Thread):
    """One gc after another, as many as wanted at least, until stopped."""

    def __init__(self, bakery, wanted):
        super().__init__()
        self.bakery, self.wanted, self.stop, self.error = bakery, wanted, threading.Event(), None
        self.runs = self.chunks = 0

    def run(self):
        try:
            while self.runs < self.wanted or not self.stop.is_set():
                found = json.loads(self.bakery.tb2("store", "gc", "--grace", "0", "--json").expect().out)
                self.chunks += found["kinds"]["chunk"]["removed"]["count"]
                self.runs += 1
        except BaseException as error:
            self.error = error


def check_all(bakery):
    """Every object is sound. Beside a gc, too: what it takes nobody needs."""
    found = json.loads(bakery.tb2("store", "fsck", "--json").expect().out)
    check(not found["problems"], "fsck: %s" % found["problems"])
    return found["checked"]["chunk"]["count"]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with Bakery(tasks=2) as bakery:
        names = sorted(bakery.bake("--jobs", "1").expect().tasks())
        sweeper = Sweeper(bakery, rounds)
        sweeper.start()
        for number in range(rounds):
            recipe = RECIPE.replace("for $DEMO_TASK", "for $DEMO_TASK, %d" % (number // 2))
            bakery.bake("--jobs", "1", "--force", recipe=recipe, tasks=[names[number % len(names)]]).expect()
            aliases = [t["alias"] for t in json.loads(bakery.tb2("ls", "--json").expect().out)]
            chunks = check_all(bakery)
            print("round %d: %d templates, %d chunks sound; %d gcs took %d chunks" % (
                number + 1, len(aliases), chunks, sweeper.runs, sweeper.chunks), flush=True)
            # One catalog entry a task, so that what was baked before is swept.
            newest = json.loads(bakery.tb2("show", "--json", aliases[-1]).expect().out)["created"]
            for alias in aliases:
                if json.loads(bakery.tb2("show", "--json", alias).expect().out)["created"] < newest and len(aliases) > 3:
                    os.unlink(bakery.path("store", "catalog", alias + ".json"))
                    aliases.remove(alias)
        sweeper.stop.set()
        sweeper.join()
        check(sweeper.error is None, "gc: %s" % sweeper.error)
        check(sweeper.chunks > 0, "nothing was swept")
        for name in aliases:
            bakery.tb2("verify", name).expect()
        check_all(bakery)
        print("%d bakes, %d gcs that took %d chunks; all templates restored, all chunks sound" % (
            rounds, sweeper.runs, sweeper.chunks))


main()
