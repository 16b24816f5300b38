#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A template's first cold boot on a host that has none of it, from a web server over a long line.

usage: lazy.py TB2_BAKE TASKS_DIR TASK [--cache DIR] [--rounds N]

Bakes the task (its registry must be running), then takes turns: boot with everything here; with an empty
store, each chunk fetched when it is read; the same with the boot's trace fetched ahead. A time is that of the
whole command, `run --cold ALIAS -- true`, store and record fetched and all. Judges nothing.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from long_line import LongLine

MBIT, ROUND_TRIP_MS = 200, 20


def megabytes(count):
    return "%.1f MB" % (count / 1e6)


class Bench:
    def __init__(self, options, home):
        self.options, self.home = options, home
        self.source = os.path.join(home, "source")

    def command(self, store, word, *words):
        cache = ["--cache", self.options.cache] if self.options.cache else []
        return [self.options.tb2_bake, word, "--store", store, *cache, *words]

    def bake(self):
        """Alias and record."""
        subprocess.run(self.command(self.source, "bake", "--tasks-dir", self.options.tasks_dir, "--tasks",
                                    self.options.task), check=True)
        listed = subprocess.run(self.command(self.source, "show", "--json", self.options.task), check=True,
                                stdout=subprocess.PIPE).stdout
        return json.loads(listed)

    def boot(self, line, store, *words):
        begin = time.monotonic()
        subprocess.run(line.inside(*self.command(store, "run", "--cold", *words, self.alias, "--", "true")), check=True)
        return time.monotonic() - begin

    def from_afar(self, line, *words):
        """Seconds, and what was sent: chunks, their bytes, all bytes."""
        store = os.path.join(self.home, "empty")
        shutil.rmtree(store, ignore_errors=True)
        line.drain()
        seconds = self.boot(line, store, "--remote", line.url, *words)
        sent = line.drain()
        chunks = [size for size, name in sent if name.startswith("/chunks/")]
        return seconds, len(chunks), sum(chunks), sum(size for size, _ in sent)

    def run(self):
        record = self.bake()
        self.alias = record["alias"]
        plain = record["sizes"]["disk_data"]
        print("%s: the image's disk holds %s" % (self.options.task, megabytes(plain)))
        with LongLine(self.home, self.source, MBIT, ROUND_TRIP_MS) as line:
            rounds = [(self.boot(line, self.source), self.from_afar(line, "--no-prefetch"), self.from_afar(line))
                      for _ in range(self.options.rounds)]
        here = statistics.median(r[0] for r in rounds)
        print("all of it here: %.2f s (%s)" % (here, " ".join("%.2f" % r[0] for r in rounds)))
        for index, name in ((1, "chunks when they are read"), (2, "with the trace fetched ahead")):
            seconds = statistics.median(r[index][0] for r in rounds)
            _, chunks, chunk_bytes, sent = rounds[-1][index]
            ratio = statistics.median(r[index][0] / r[0] for r in rounds)
            print("%s: %.2f s (%s), ratio %.2f; %d chunks, %s, in all %s, %.2f %% of the disk's bytes" % (
                name, seconds, " ".join("%.2f" % r[index][0] for r in rounds), ratio, chunks,
                megabytes(chunk_bytes), megabytes(sent), 100 * sent / plain))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tb2_bake", type=os.path.realpath)
    parser.add_argument("tasks_dir")
    parser.add_argument("task")
    parser.add_argument("--cache")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tb2-", dir="/var/tmp") as home:
        Bench(options, home).run()


main()
