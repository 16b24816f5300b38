#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Guest memory of templates: read when it is touched, served by FUSE or copied to a file; damaged or far away."""

import functools
import http.server
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import RECIPE, Bakery, check  # noqa: E402

TASK = "fix-links"
DATA_MB = 24
# Memory that nobody reads before it is asked for: a file that lies nowhere else.
WITH_DATA = RECIPE.replace("start: ", "start: mkdir /ram && mount -t tmpfs ram /ram && head -c %d /dev/urandom > /ram/data &&"
                           " sha256sum < /ram/data > /sum.new && mv /sum.new /sum; " % (DATA_MB << 20))
WITH_DATA = WITH_DATA.replace("test -s /made-by", "test -s /sum")
SAME = ("sh", "-c", 'test "$(sha256sum < /ram/data)" = "$(cat /sum)"')
# A machine without FUSE: what opens is no /dev/fuse.
HIDDEN = ["unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse; exec "$@"', "sh"]


def without_fuse(bakery, *command, store="store"):
    return subprocess.run(HIDDEN + bakery.arguments(command, store), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300)


def record_of(bakery, alias, store="store"):
    return json.loads(bakery.tb2("show", "--json", alias, store=store).expect().out)


class Map:
    """A stored block map (docs/formats/block-map.md)."""

    def __init__(self, bakery, digest):
        with open(bakery.path("store", "disks", digest.removeprefix("sha256:")), "rb") as file:
            data = file.read()
        chunks, extents = struct.unpack_from("<II", data, 16)
        self.chunks = [data[24 + 32 * i:56 + 32 * i].hex() for i in range(chunks)]
        rows = [struct.unpack_from("<QIII", data, 24 + 32 * chunks + 20 * i) for i in range(extents)]
        self.of_extents = [self.chunks[row[3]] for row in rows]


def mounts():
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return file.read()


def what_is_read_is_recorded(bakery, record):
    size = record["memory_mb"] << 20
    check(record["memory_trace"], "no trace of memory")
    check(0 < record["memory_read"] <= size // 4, "%d bytes of memory were read" % record["memory_read"])
    memory = Map(bakery, record["memory"])
    traced = [memory.of_extents[number] for number in record["memory_trace"]]
    check(len(traced) == len(set(traced)), "a chunk is listed twice")
    check(set(traced) < set(memory.chunks), "all of the memory was read")
    return memory, set(traced)


def nothing_is_written(bakery, alias):
    """While a restored guest runs there is no file of its memory, and no mount."""
    before = mounts()
    child = subprocess.Popen(bakery.arguments(("run", alias, "--", "sh", "-c", "echo up; exec sleep 1000")),
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    check(child.stdout.readline() == "up\n", "it does not run")
    names = [name for _, _, files in os.walk(bakery.path("store", "tmp")) for name in files]
    machines = bakery.machines()
    check("memory" not in names, names)
    check(len(machines) == 1 and "/proc/%d/fd/" % child.pid in machines[0], machines)
    check(mounts() == before, "a mount is listed")
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    end = time.monotonic() + 60
    while bakery.machines():
        check(time.monotonic() < end, "the machine outlives its server")
        time.sleep(0.05)
    check(mounts() == before, "a mount was left")


def copied_where_there_is_no_fuse(bakery, alias):
    """The same template, and the reason once for all restores of the process."""
    check(without_fuse(bakery, "verify", alias).returncode == 0, "not restored without FUSE")
    done = without_fuse(bakery, "run", alias, "--", *SAME)
    check(done.returncode == 0, done.stderr)
    bake = without_fuse(bakery, *bakery.bake_command("--force", recipe=WITH_DATA, tasks=[TASK]), store="other")
    check(bake.returncode == 0, bake.stderr)
    check(bake.stderr.count("copies the guest's memory to a file") == 1, bake.stderr)
    record = record_of(bakery, alias, store="other")
    check("memory_trace" not in record and "memory_read" not in record, record.get("memory_read"))


def flip(path):
    """Changes a bit; returns what was there: a chunk that is found damaged is removed."""
    with open(path, "rb") as file:
        good = file.read()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    with open(path, "r+b") as file:
        file.write(bad)
    return good


def damage_is_named(bakery, alias, record, memory, traced):
    """Chunks that only this guest's memory has, and that no restore read: it runs until it touches them."""
    others = {chunk for name in ("disk", "base_disk", "state") for chunk in Map(bakery, record[name]).chunks}
    victims = set(memory.chunks) - traced - others
    check(victims, "all chunks are read or shared")
    paths = [bakery.path("store", "chunks", chunk[:2], chunk) for chunk in sorted(victims)]
    good = [flip(path) for path in paths]
    bakery.tb2("run", alias, "--", "true").expect()
    bad = bakery.tb2("run", alias, "--", *SAME).expect(125)
    named = re.findall("sha256:([0-9a-f]{64})", bad.err)
    check("guest's memory could not be read" in bad.err and set(named) & victims, bad.err)
    if os.getuid() == 0:
        done = without_fuse(bakery, "run", alias, "--", "true")
        check(done.returncode == 125 and "memory" in done.stderr and "sha256:" in done.stderr, done.stderr)
    for path, data in zip(paths, good):
        with open(path, "wb") as file:
            file.write(data)
    bakery.tb2("run", alias, "--", *SAME).expect()


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


def stored_chunks(bakery, store):
    return {name for _, _, names in os.walk(bakery.path(store, "chunks")) for name in names}


def fetched_when_touched(bakery, alias, memory):
    """From a store far away: what becomes ready needs few chunks of the memory, and gets the others when it asks."""
    handler = functools.partial(Quiet, directory=bakery.path("store"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = "http://127.0.0.1:%d" % server.server_port
        bakery.tb2("run", "--remote", url, alias, "--", "true", store="near").expect()
        first = stored_chunks(bakery, "near") & set(memory.chunks)
        check(first and len(first) < len(memory.chunks), "%d of %d chunks" % (len(first), len(memory.chunks)))
        bakery.tb2("run", "--remote", url, alias, "--", *SAME, store="near").expect()
        check(len(stored_chunks(bakery, "near") & set(memory.chunks)) > len(first), "nothing more was fetched")
        bakery.tb2("run", "--no-prefetch", "--remote", url, alias, "--", "true", store="bare").expect()
        server.shutdown()


def several_at_once(bakery, alias):
    runs = [subprocess.Popen(bakery.arguments(("run", alias, "--", *SAME))) for _ in range(3)]
    check([run.wait(200) for run in runs] == [0, 0, 0], "not all are right")


def main():
    with Bakery(tasks=2) as bakery:
        alias = bakery.bake(recipe=WITH_DATA, tasks=[TASK]).expect().tasks()[TASK]["alias"]
        record = record_of(bakery, alias)
        bakery.tb2("run", alias, "--", *SAME).expect()
        if "memory_trace" in record:
            memory, traced = what_is_read_is_recorded(bakery, record)
            nothing_is_written(bakery, alias)
            damage_is_named(bakery, alias, record, memory, traced)
            fetched_when_touched(bakery, alias, memory)
        else:
            print("no FUSE here: the memory was copied")
        several_at_once(bakery, alias)
        if os.getuid() == 0 and os.path.exists("/dev/fuse"):
            copied_where_there_is_no_fuse(bakery, alias)
        else:
            print("/dev/fuse is not hidden: that needs root")
        check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


main()
