#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A set is baked by one command; the second run does nothing; its templates answer."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402


def first_and_second_run(bakery):
    first = bakery.bake("--jobs", "2").expect()
    check(set(first.outcomes().values()) == {"ready"}, first.outcomes())
    gets = bakery.blob_gets()
    check(len(gets) == len(set(gets)), "a blob was fetched twice: %s" % sorted(gets))
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")

    second = bakery.bake().expect()
    check(set(second.outcomes().values()) == {"unchanged"}, second.outcomes())
    check(bakery.blob_gets() == gets, "the second run fetched blobs")
    check(not second.stages() & {"pull", "ingest", "boot", "prove"}, "the second run worked: %s" % second.stages())
    check(second.base_disks() == first.base_disks(), "other disks")

    with open("/dev/full", "w", encoding="utf-8") as full:
        lost = subprocess.run(bakery.arguments(bakery.bake_command()), stdout=full, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True, timeout=300, check=False)
    check(lost.returncode == 3 and "writing the result" in lost.stderr, lost)
    return first.tasks()


def templates_answer(bakery, tasks):
    listed = json.loads(bakery.tb2("ls", "--json").expect().out)
    check(sorted(row["alias"] for row in listed) == sorted(task["alias"] for task in tasks.values()), listed)
    for name, task in tasks.items():
        shown = json.loads(bakery.tb2("show", "--json", task["alias"]).expect().out)
        check(shown["alias"] == task["alias"], shown)
    name, alias = "fix-links", tasks["fix-links"]["alias"]
    asked = bakery.tb2("run", alias, "--", "cat", "/etc/os-release", "/made-by", "/proc/cmdline").expect()
    # Without it, a guest's kernel panics now and then on a busy host.
    check("no_timer_check" in asked.out.split(), asked.out)
    check('PRETTY_NAME="tb2 demo"' in asked.out and "e2e for " + name in asked.out, asked.out)
    bakery.tb2("run", alias, "--", "sh", "-c", "exit 42").expect(42)
    piped = subprocess.run(bakery.arguments(["run", alias, "--", "cat"]), input="from outside\n", text=True,
                           capture_output=True, timeout=300, check=False)
    check(piped.returncode == 0 and piped.stdout == "from outside\n", piped)
    bakery.tb2("verify", alias).expect()
    missing = bakery.tb2("run", "no-such-alias", "--", "true").expect(125)
    check("no-such-alias" in missing.err, missing.err)


def nothing_withheld_leaks(bakery, tasks):
    """Neither the task's tests and solution nor a file deleted by an upper layer is on a disk."""
    for name in ("count-words", "fix-links"):
        raw = bakery.path(name + ".raw")
        bakery.tb2("disk", "export", tasks[name]["alias"], "--raw", raw).expect()
        with open(raw, "rb") as file:
            pieces = data_of(file)
            tail = b""
            for piece in pieces:
                for text in bakery.facts["withheld"].values():
                    check(text.encode() not in tail + piece, "%s: %s is on the disk" % (name, text))
                tail = piece[-200:]
        os.unlink(raw)


def data_of(file):
    """The parts of a sparse file that are there."""
    at, end = 0, os.fstat(file.fileno()).st_size
    while at < end:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:
            return
        stop = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        while at < stop:
            piece = os.pread(file.fileno(), min(1 << 20, stop - at), at)
            yield piece
            at += len(piece)


def offline_run(bakery):
    """With all in the store nobody is asked; with an empty store each task says what is missing."""
    before = len(bakery.requests())
    run = bakery.bake("--offline").expect()
    check(set(run.outcomes().values()) == {"unchanged"}, run.outcomes())
    for task in bakery.bake("--offline", store="empty").expect(1).tasks().values():
        check(task["stage"] == "resolve" and task["error_class"] == "notfound", task)
        check("--offline" in task["error"] and "--offline" in task["hint"], task)
    check(len(bakery.requests()) == before, "a request was made offline: %s" % bakery.requests()[before:])


def main():
    with Bakery(tasks=4) as bakery:
        tasks = first_and_second_run(bakery)
        offline_run(bakery)
        templates_answer(bakery, tasks)
        nothing_withheld_leaks(bakery, tasks)


main()
