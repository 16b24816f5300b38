#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ingest.py PROGRAM...: the same disks from any number of jobs and workers, at any compression level, by
each program (builds of tests/bench/ingest.c: other compilers, other decoders); a layer that two images
have in different blobs is ingested once; memory stays small however large a file is.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from bakery import check  # noqa: E402
from ingest_images import Layout, tree  # noqa: E402

BIG = 256 << 20  # bytes of one file
MEMORY_MIB = 128  # half of that; what 4 jobs need is about 70


class World:
    def __init__(self, work):
        self.work = work
        self.runs = 0

    def ingest(self, program, layout, tags, *more):
        """The disks' digests by tag, and the report."""
        self.runs += 1
        store = os.path.join(self.work, "store-%d" % self.runs)
        command = [program, *more, store, *("oci:%s:%s" % (layout.path, tag) for tag in tags)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        check(done.returncode == 0, "%s: %s" % (" ".join(command), done.stderr))
        *lines, report = done.stdout.splitlines()
        shutil.rmtree(store)
        return [line.split()[1] for line in lines], json.loads(report)


def make_images(path):
    seed = random.Random(7)
    layout = Layout(path)
    base = [layout.layer(tree(seed, "base%d" % n, 4)) for n in range(3)]
    tops = [layout.layer(tree(seed, "top", 1)) for _ in range(4)]
    tags = ["t%d" % n for n in range(len(tops))]
    for tag, top in zip(tags, tops):
        layout.image(tag, base + [top])
    # The same layer in a blob of its own.
    def files():
        return tree(random.Random(9), "twin", 4)
    twins = [layout.layer(files(), level) for level in (1, 9)]
    check(twins[0][1] == twins[1][1] and twins[0][0] != twins[1][0], "the twins are none")
    for n in range(2):
        layout.image("twin%d" % n, [twins[n]])
    layout.close()
    return layout, tags


def same_disks(world, programs, layout, tags):
    wanted, _ = world.ingest(programs[0], layout, tags, "-j", "1", "-w", "1")
    ways = [[], ["-j", "2", "-w", "2"], ["-j", "8", "-w", "8"], ["-l", "1"], ["-l", "9"]]
    for program in programs:
        for way in ways if program == programs[0] else ways[:1]:
            disks, _ = world.ingest(program, layout, tags, *way)
            check(disks == wanted, "%s %s: %s instead of %s" % (program, way, disks, wanted))
    print("%d disks, the same from %d programs and %d ways" % (len(tags), len(programs), len(ways) + 1))


def twins_once(world, program, layout):
    disks, one = world.ingest(program, layout, ["twin0"])
    both, two = world.ingest(program, layout, ["twin0", "twin1"], "-j", "2")
    check(both == disks * 2, "twins differ: %s %s" % (disks, both))
    # The second disk's metadata is offered once more, its layer is not.
    again = two["chunks_put"] - one["chunks_put"]
    check(again < one["chunks_put"] / 2, "%d chunks for one, %d for both" % (one["chunks_put"], two["chunks_put"]))


def memory(world, program):
    layout = Layout(os.path.join(world.work, "big"))
    layout.image("big", [layout.big_layer(BIG, 1)])
    layout.close()
    _, report = world.ingest(program, layout, ["big"], "-j", "4", "-w", "4")
    check(report["max_rss_mib"] < MEMORY_MIB, "%.0f MiB for a file of %d" % (report["max_rss_mib"], BIG >> 20))
    print("%.0f MiB for a file of %d MiB" % (report["max_rss_mib"], BIG >> 20))


def main():
    programs = [os.path.realpath(program) for program in sys.argv[1:] if program]
    work = tempfile.mkdtemp(prefix="tb2-ingest-", dir=os.environ.get("TB2_TEST_TMP", "/var/tmp"))
    try:
        world = World(work)
        layout, tags = make_images(os.path.join(work, "layout"))
        same_disks(world, programs, layout, tags)
        twins_once(world, programs[0], layout)
        memory(world, programs[0])
    finally:
        if not os.environ.get("TB2_TEST_KEEP"):
            shutil.rmtree(work, ignore_errors=True)


main()
