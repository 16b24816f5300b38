#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much faster a task is ready when it is restored from its template than when booted cold.

usage: warm.py [--rounds N] [--restores N] [--at-once N] [--start-seconds N]

On one machine, in one run, one after the other: boots to ready and restores to ready, of a template whose start
command takes --start-seconds to become ready; the bytes of guest memory that were read until then; restores in a row,
and many at once; as root also restores without FUSE. TB2_BAKE names the program. Judges nothing but that each
restore is ready.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery  # noqa: E402

TASK = "fix-links"
RECIPE = """\
name: warm
network: none
start: sleep %d; touch /started; while true; do sleep 1000; done
ready:
  command: test -e /started
  interval: 50ms
"""
HIDDEN = ["unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse; exec "$@"', "sh"]


def spread(values):
    ordered = sorted(values)
    return "median %d ms, 95 %% within %d ms, most %d ms" % (
        statistics.median(ordered), ordered[max(0, -(-len(ordered) * 95 // 100) - 1)], ordered[-1])


class Bench:
    def __init__(self, bakery, options):
        self.bakery, self.options = bakery, options
        self.recipe = RECIPE % options.start_seconds

    def bake(self):
        return self.bakery.bake("--jobs", "1", "--force", "--no-boot-image", recipe=self.recipe, tasks=[TASK]).expect()

    def cold_ms(self):
        """Start of the machine to the agent's hello, and start command to ready."""
        stages = self.bake().tasks()[TASK]["stage_ms"]
        return stages["boot"] + stages["ready"]

    def verify(self, prefix=()):
        return subprocess.Popen([*prefix, *self.bakery.arguments(("verify", "--json", TASK))], stdout=subprocess.PIPE,
                                text=True)

    @staticmethod
    def restore_ms(child):
        out, _ = child.communicate(timeout=600)
        if child.returncode:
            raise AssertionError("a restore is not ready")
        return json.loads(out)["restore_ms"]

    def compare(self):
        self.bake()  # fetches and probes what is only done once
        pairs = [(self.cold_ms(), self.restore_ms(self.verify())) for _ in range(self.options.rounds)]
        cold, warm = (statistics.median(column) for column in zip(*pairs))
        print("boot and restore to ready, ms: %s; medians %d and %d, ratio %.1f" % (
            " ".join("%d/%d" % pair for pair in pairs), cold, warm, cold / warm))
        record = json.loads(self.bakery.tb2("show", "--json", TASK).expect().out)
        if "memory_read" in record:
            print("memory read until ready: %.1f MiB of %d MiB, %.1f %%" % (
                record["memory_read"] / (1 << 20), record["memory_mb"],
                100 * record["memory_read"] / (record["memory_mb"] << 20)))

    def copied(self):
        times = [self.restore_ms(self.verify(HIDDEN)) for _ in range(self.options.rounds)]
        print("restore to ready, memory copied to a file: %s" % spread(times))

    def in_a_row(self):
        times = [self.restore_ms(self.verify()) for _ in range(self.options.restores)]
        print("%d restores in a row, all ready: %s" % (len(times), spread(times)))

    def at_once(self):
        begin = time.monotonic()
        children = [self.verify() for _ in range(self.options.at_once)]
        times = [self.restore_ms(child) for child in children]
        print("%d restores at once, all ready: %s; all of it %.1f s" % (
            len(times), spread(times), time.monotonic() - begin))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--restores", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--start-seconds", type=int, default=5)
    options = parser.parse_args()
    with Bakery(tasks=2) as bakery:
        bench = Bench(bakery, options)
        bench.compare()
        if os.getuid() == 0 and os.path.exists("/dev/fuse"):
            bench.copied()
        bench.in_a_row()
        bench.at_once()


main()
