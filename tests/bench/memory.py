#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the memory of ten templates of one base takes in the store, with boot images and without.

Against it stands each memory image compressed alone: its blocks that are not zero, in the order of addresses, as
one zstd frame of level 3, the level of chunks. Also the time that a bake takes for boot and snapshot, and restores.
Prints the figures, judges none.
"""

import json
import os
import statistics
import sys

import zstandard

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery  # noqa: E402

TASKS, BLOCK = 10, 4096

# A shell that sleeps; and a program that holds tens of MB, laid out anew in each guest.
STARTS = {
    "a shell": "while true; do sleep 1000; done",
    "a table of 200,000 texts": "exec awk 'BEGIN { for (i = 0; i < 200000; i++) a[i] = \"entry \" i;"
                                " system(\"touch /tmp/full; sleep 100000\") }'",
}
RECIPE = """\
name: memory
network: none
steps:
  - run: echo "for $DEMO_TASK" > /made-by; rm -f /tmp/full; mkdir -p /tmp
start: %s
ready:
  command: test -s /made-by%s
"""


class Map:
    """docs/formats/block-map.md"""

    def __init__(self, bakery, store, digest):
        with open(bakery.path(store, "disks", digest.removeprefix("sha256:")), "rb") as file:
            data = file.read()
        self.size = len(data)
        count, extents = (int.from_bytes(data[at:at + 4], "little") for at in (16, 20))
        self.chunks = [data[24 + 32 * i:56 + 32 * i].hex() for i in range(count)]
        at = 24 + 32 * count
        fields = [data[at + 20 * i:at + 20 * i + 20] for i in range(extents)]
        self.extents = [(int.from_bytes(f[8:12], "little"), int.from_bytes(f[12:16], "little"),
                         self.chunks[int.from_bytes(f[16:20], "little")]) for f in fields]


class Store:
    def __init__(self, bakery, name):
        self.bakery, self.name, self.plain = bakery, name, {}

    def path(self, chunk):
        return self.bakery.path(self.name, "chunks", chunk[:2], chunk)

    def stored(self, chunks):
        return sum(os.path.getsize(self.path(chunk)) for chunk in set(chunks))

    def read(self, chunk):
        if chunk not in self.plain:
            with open(self.path(chunk), "rb") as file:
                self.plain[chunk] = zstandard.ZstdDecompressor().decompressobj().decompress(file.read())
        return self.plain[chunk]

    def alone(self, memory):
        """Bytes of one frame with all of the image's blocks, and of these blocks."""
        blocks = b"".join(self.read(chunk)[off:off + size] for size, off, chunk in memory.extents)
        return len(zstandard.ZstdCompressor(level=3).compress(blocks)), len(blocks)


def bake(bakery, store, start, *options):
    ready = " && test -e /tmp/full" if "touch" in start else ""
    run = bakery.bake("--jobs", "1", *options, recipe=RECIPE % (json.dumps(start), ready), store=store, timeout=1800)
    return run.expect().tasks()


def measure(bakery, what, store, tasks):
    chunks = Store(bakery, store)
    shown = [json.loads(bakery.tb2("show", "--json", task["alias"], store=store).expect().out)
             for task in tasks.values()]
    maps = [Map(bakery, store, record["memory"]) for record in shown]
    disks = set().union(*(Map(bakery, store, record["disk"]).chunks for record in shown))
    union = set().union(*(memory.chunks for memory in maps))
    alone = [chunks.alone(memory) for memory in maps]
    total = sum(size for size, _ in alone)
    restores = [json.loads(bakery.tb2("verify", "--json", task["alias"], store=store).expect().out)["restore_ms"]
                for task in tasks.values()]
    first, *others = (task["stage_ms"] for task in tasks.values())
    print("| %s | %.1f | %.1f | %.1f | %.1f %% | %.1f | %d | %d | %d (%d) | %d | %d |" % (
        what, statistics.mean(blocks for _, blocks in alone) / 1e6, total / 1e6, chunks.stored(union) / 1e6,
        100 * chunks.stored(union) / total, chunks.stored(union - disks) / 1e6,
        statistics.mean(len(memory.extents) for memory in maps), statistics.mean(memory.size for memory in maps) / 1000,
        statistics.median(stages["boot"] for stages in others), max(first["boot"], *(s["boot"] for s in others)),
        statistics.median(stages["snapshot"] for stages in others), statistics.median(restores)), flush=True)


def main():
    with Bakery(tasks=TASKS) as bakery:
        print("| %d templates | blocks of each, MB | alone, sum MB | stored, MB | of the sum | without what disks have, MB "
              "| extents | map, kB | boot ms (first) | snapshot ms | restore ms |" % TASKS)
        print("|---" * 11 + "|")
        for number, (name, start) in enumerate(STARTS.items()):
            for way, options in (("boot image", ()), ("from the kernel", ("--no-boot-image",))):
                store = "%s%d" % (way[:4], number)
                measure(bakery, "%s, %s" % (name, way), store, bake(bakery, store, start, *options))


main()
