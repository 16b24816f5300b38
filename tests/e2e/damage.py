#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A store that is in use, damaged, or shared by tasks; streams that are closed."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402

TASK, TWIN = "count-words", "count words\x1b[31m"


def files(bakery, directory):
    return sorted(os.path.join(at, name) for at, _, names in os.walk(bakery.path("store", directory)) for name in names)


def flip_bit(path):
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        data[len(data) // 2] ^= 0x10
        file.seek(0)
        file.write(data)


def twin_has_its_own_name(bakery, alias):
    """Same image, same settings, other name: nothing to bake, but a template under the other alias."""
    tasks = os.path.join(bakery.set, "tasks")
    shutil.copytree(os.path.join(tasks, TASK), os.path.join(tasks, TWIN))
    run = bakery.bake(tasks=[TWIN]).expect()
    task = run.tasks()[TWIN]
    check(task["outcome"] == "unchanged" and task["alias"] != alias, task)
    rows = {row["alias"]: row["task"] for row in json.loads(bakery.tb2("ls", "--json").expect().out)}
    check(rows == {alias: TASK, task["alias"]: TWIN}, rows)
    shown = json.loads(bakery.tb2("show", "--json", task["alias"]).expect().out)
    check((shown["alias"], shown["task"]) == (task["alias"], TWIN), shown)
    plain = [option for option in bakery.bake_command(tasks=[TWIN]) if option != "--json"]
    told = bakery.tb2(*plain).expect()
    check("\x1b" not in told.out + told.err, "a name drives the terminal: %r" % (told.out + told.err))


def bake_in_progress(bakery):
    """What a bake holds while it works does not keep others from looking."""
    with open(bakery.path("store", "run.lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = bakery.bake(timeout=60).expect(4)
        check("another bake" in busy.err, busy.err)
        bakery.tb2("disk", "export", bakery.facts["tasks"][0]["image"], "--raw", bakery.path("x.raw"), timeout=60).expect(4)
        check(TASK in bakery.tb2("ls", timeout=60).expect().out, "ls does not list the task")


def closed_streams(bakery):
    """Nothing that was printed is in the store's files."""
    def close_all():
        for fd in range(3):
            os.close(fd)

    held = {path: open(path, "rb").read() for path in files(bakery, ".")
            if "/runs/" not in path and "/refs/" not in path}
    for command in (("ls",), bakery.bake_command(tasks=[TASK])):
        subprocess.run(bakery.arguments(command), preexec_fn=close_all, timeout=60, check=True)
    for path, data in held.items():
        with open(path, "rb") as file:
            check(file.read() == data, "%s was written to" % path)
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(bakery.arguments(bakery.bake_command(tasks=[TASK])), stdout=full, timeout=60)
    check(done.returncode == 3, "lost output, but exit status %d" % done.returncode)


def waiting_for_input(bakery, alias):
    """Ctrl-C ends a `run` that waits for its stdin."""
    child = subprocess.Popen(bakery.arguments(("run", alias, "--", "cat")), stdin=subprocess.PIPE)
    child.stdin.write(b"x" * 1000000)  # more than a pipe holds: it is reading now
    child.stdin.flush()
    child.send_signal(signal.SIGINT)
    check(child.wait(60) == 130, "exit status %d" % child.returncode)
    child.stdin.close()


def checked_and_mended(bakery, alias):
    """fsck names what is bad and whose it is; --repair gets from the registry what came from there."""
    bakery.tb2("store", "fsck").expect()
    extents = json.loads(bakery.tb2("disk", "map", "--json", "--base", alias).expect().out)["extents"]
    chunks = [extents[at]["chunk"].split(":")[1] for at in (0, -1)]  # file system metadata, a layer's data
    paths = ["chunks/%s/%s" % (chunk[:2], chunk) for chunk in chunks]
    flip_bit(bakery.path("store", paths[0]))
    os.unlink(bakery.path("store", paths[1]))
    found = json.loads(bakery.tb2("store", "fsck", "--json").expect(1).out)["problems"]
    check({problem["path"] for problem in found} == set(paths), found)
    check(all(alias in problem["affected"] for problem in found), found)
    mended = json.loads(bakery.tb2("store", "fsck", "--json", "--repair").expect().out)["problems"]
    check({(problem["path"], problem["state"]) for problem in mended} == {(path, "mended") for path in paths}, mended)
    bakery.tb2("store", "fsck").expect()
    bakery.tb2("store", "gc", "--grace", "0").expect()
    bakery.tb2("store", "fsck").expect()
    bakery.tb2("verify", alias).expect()


def everything_damaged(bakery, alias, base_disk):
    """Every chunk and map has a flipped bit: reading says what to do, and doing it helps."""
    for path in files(bakery, "chunks") + files(bakery, "disks"):
        flip_bit(path)
    for command in (("verify", alias), ("run", alias, "--", "true")):
        run = bakery.tb2(*command)
        check(run.status in (3, 125) and "--force" in run.err, run.err)
    run = bakery.bake("--force", tasks=[TASK]).expect()
    check(run.base_disks()[TASK] == base_disk, "another disk")
    bakery.tb2("verify", alias).expect()


def blob_left_over(bakery):
    """A blob whose layer came from elsewhere (the same layer compressed otherwise) does not stay."""
    blobs = bakery.path("store", "blobs")
    for name in os.listdir(blobs):
        if not name.startswith("sha256-"):
            continue
        with open(os.path.join(blobs, name), encoding="utf-8") as file:
            layers = json.load(file).get("layers", [])
        for layer in layers:
            with open(os.path.join(blobs, layer["digest"].replace(":", "-")), "w", encoding="utf-8") as out:
                out.write("left over")
    bakery.bake("--force", tasks=[TASK]).expect()
    for path in files(bakery, "blobs"):
        with open(path, encoding="utf-8") as file:
            check("left over" not in file.read(), path + " stays")


def one_chunk_missing(bakery, alias):
    """A layer that lost a chunk is pulled again by any bake; a damaged pointer is no reason to fail."""
    for path in files(bakery, "keys"):
        os.truncate(path, 10)
    for path in files(bakery, "chunks"):
        os.unlink(path)
    bakery.bake(tasks=[TASK]).expect()
    bakery.tb2("verify", alias).expect()


def main():
    with Bakery(tasks=2) as bakery:
        task = bakery.bake(tasks=[TASK]).expect().tasks()[TASK]
        twin_has_its_own_name(bakery, task["alias"])
        bake_in_progress(bakery)
        closed_streams(bakery)
        waiting_for_input(bakery, task["alias"])
        checked_and_mended(bakery, task["alias"])
        everything_damaged(bakery, task["alias"], task["base_disk"])
        blob_left_over(bakery)
        one_chunk_missing(bakery, task["alias"])


main()
