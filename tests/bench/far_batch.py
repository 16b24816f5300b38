#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A bake of many tasks whose registry is far away and whose template server has few slots: how near it comes to what
network, processors and server allow, and how much faster it is than the same stages one after the other.

  far_batch.py TB2_BAKE [--cache DIR] [--tasks N] [--slots N] [--build SECONDS] [--serial N] [--bulk-mb MB]

Between tb2-bake and Debian's docker-registry is a line of 100 ms there and back, on which each connection has 20 MB/s
(tests/support/tcp_line.py); the template server keeps to the contract, builds for --build seconds and refuses more than
--slots at once. The serial loop calls tb2-bake for one task after the other, with one job of each kind, over the same line
and into an empty store; there builds take no time, and their --build seconds are added: they would only be waited for. It goes on
for --serial tasks (default: all), and the rest is taken to be like them.

The processors' bound is the bake's own processor seconds over the processors of the machine, as if nobody else needed
any; on a machine that others use too, run it as root with `nice -n -20`.
"""

import argparse
import math
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))

ROUND_TRIP_MS, RATE, CONNECTIONS = 100, 20e6, 16


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--cache")
    parser.add_argument("--tasks", type=int, default=89)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--build", type=float, default=60)
    parser.add_argument("--serial", type=int)
    parser.add_argument("--bulk-mb", type=float, default=16)
    return parser.parse_args()


def processors():
    """Processor seconds of the machine so far: all that were there, and those that nobody used."""
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(word) / os.sysconf("SC_CLK_TCK") for word in file.readline().split()[1:9]]
    return sum(fields), fields[3] + fields[4]


class Measured:
    """A call of tb2-bake: wall time, its processor seconds with its machines', and what others took (far ends among them)."""

    def __init__(self, command, output):
        total, idle = processors()
        begin = time.monotonic()
        with open(output, "wb") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)
        self.status = child.returncode = os.waitstatus_to_exitcode(status)
        self.wall = time.monotonic() - begin
        after, idle_after = processors()
        self.own = usage.ru_utime + usage.ru_stime
        self.there, self.idle = after - total, idle_after - idle
        self.others = max(0.0, self.there - self.idle - self.own)
        self.memory = usage.ru_maxrss / 1024

    def bound(self):
        return self.own / os.cpu_count()


def print_rows(rows):
    print("| | |\n|---|---|")
    for name, value in rows:
        print("| %s | %s |" % (name, value))


def main():
    given = options()
    os.environ["TB2_BAKE"] = os.path.realpath(given.program)
    if given.cache:
        os.environ["TB2_TEST_CACHE"] = os.path.realpath(given.cache)
    from bakery import Bakery, Run, check
    from tcp_line import Line
    from template_server import KEY, Server

    def bake(bakery, store, *more, tasks=None):
        command = bakery.bake_command("--server-jobs", str(given.slots), *more, tasks=tasks)
        output = bakery.path("output.jsonl")
        done = Measured(bakery.arguments(command, store), output)
        with open(output, encoding="utf-8") as file:
            text = file.read()
        lines = [line for line in text.splitlines() if line.startswith("{")]
        run = Run(done.status, "\n".join(lines), text[-3000:], done.wall).expect()
        check(set(run.outcomes().values()) == {"ready"}, run.outcomes())
        return done, run.totals()

    with Bakery(tasks=given.tasks, bulk_mb=given.bulk_mb) as bakery, Server() as server, \
            Line(bakery.facts["port"], "--round-trip", ROUND_TRIP_MS, "--rate", RATE) as line:
        names = [task["name"] for task in bakery.facts["tasks"]]
        for name in names:
            bakery.set_port(name, line.port)
        os.environ.update(E2B_API_URL=server.url, E2B_API_KEY=KEY)
        server.setup(build_ms=int(given.build * 1000), capacity=given.slots)
        done, totals = bake(bakery, "far", "--net-jobs", str(CONNECTIONS))
        report = server.report()
        check(not report["problems"] and len(report["aliases"]) == len(names), report["problems"])
        bounds = {"network": totals["blob_bytes"] / (CONNECTIONS * RATE), "processors": done.bound(),
                  "server": math.ceil(len(names) / given.slots) * given.build}
        largest = max(bounds, key=bounds.get)

        server.setup(build_ms=0, capacity=given.slots)
        sample = names[:given.serial or len(names)]
        serial, own = 0.0, 0.0
        for name in sample:
            one, _ = bake(bakery, "near", "--jobs", "1", "--net-jobs", "1", tasks=[name])
            serial, own = serial + one.wall, own + one.own
        work = serial * len(names) / len(sample)
        whole = work + given.build * len(names)

        print_rows([
            ("tasks, server slots, seconds a build", "%d, %d, %g" % (len(names), given.slots, given.build)),
            ("pulled", "%.1f MB in %d blobs" % (totals["blob_bytes"] / 1e6, totals["blob_gets"])),
            ("wall", "%.1f s" % done.wall),
            ("bound of the network, %d connections" % CONNECTIONS, "%.1f s" % bounds["network"]),
            ("bound of the processors", "%.1f s, of %d; others took %.0f s, nobody %.0f s" % (
                bounds["processors"], os.cpu_count(), done.others, done.idle)),
            ("bound of the server", "%.1f s; builds at once: %d" % (bounds["server"], report["peak"])),
            ("wall / largest bound (%s)" % largest, "%.2f" % (done.wall / bounds[largest])),
            ("serial loop, %d tasks measured" % len(sample), "%.0f s of work (%.1f s of processors each) + %.0f s of builds" % (
                work, own / len(sample), given.build * len(names))),
            ("serial loop / wall", "%.1f" % (whole / done.wall)),
            ("peak memory of the bake", "%.0f MiB" % done.memory),
        ])


main()
