#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What is proved of a template: the guest was quiet, copies differ in what they must, and the disk is whole."""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import RECIPE, Bakery, check  # noqa: E402

TASK, OTHER = "count-words", "fix-links"

# 200 MB in 20,000 files by one program, which ends without a sync; sums of them beside.
VOLUME = """\
name: volume
network: none
steps:
  - run: |
      mkdir /volume && cd /volume
      awk 'BEGIN {
          for (i = 0; i < 20000; i++) {
              t = sprintf("%010d", i); t = t t t t t t t t; t = t t t t t t t t; t = t t t t; t = t t t t
              printf "%s", t > i; close(i)
          }
      }'
      test "$(ls | wc -l) $(wc -c < 19999)" = "20000 10240"
      md5sum * > /sums
start: |
    echo open > /open; exec 9< /open; rm /open
    while true; do sleep 1000; done
ready:
  command: test ! -e /open && test -s /sums
"""
VOLUME_CHECK = "cd /volume && ls | wc -l && md5sum -c -s /sums && echo right"

BUSY = """\
name: busy
network: none
steps:
  - run: |
      printf '#!/bin/sh\\nwhile true; do sleep 1000; done\\n' > /usr/bin/dpkg-split
      chmod +x /usr/bin/dpkg-split
start: /usr/bin/dpkg-split
"""

# As dpkg is when it is killed: the lock is free again, the database says what was under way.
HALF = """\
name: half
network: none
steps:
  - run: |
      mkdir -p /var/lib/dpkg/updates
      printf 'Package: torn\\nStatus: install reinstreq half-installed\\n' > /var/lib/dpkg/status
"""

KILLED = """\
name: killed
network: none
steps:
  - run: |
      mkdir -p /var/lib/dpkg/updates
      (exec 8> /var/lib/dpkg/lock-frontend; flock 8; sleep 1000) &
      printf 'Package: torn\\nStatus: install reinstreq half-' > /var/lib/dpkg/status
      sleep 1000
    timeout: 5s
"""


def failure(run, stage, *words):
    task = run.expect(1).tasks()[TASK]
    check(task["stage"] == stage and task["error_class"] == "step", task)
    for word in words:
        check(word in task["error"], "no '%s' in %s" % (word, task["error"]))
    check(not run.stages() & {"prove", "register"}, run.stages())
    return task


def shown(bakery, alias):
    return json.loads(bakery.tb2("show", "--json", alias).expect().out)


def proof_is_recorded(bakery, alias):
    record = shown(bakery, alias)
    proof = record["proof"]
    check(0 <= proof["clock_error_ms"] <= 1000, proof)
    check(proof["echoed_bytes"] == 256 << 10 and proof["random_bytes"] == 512 and proof["orphan_inodes"] == 0, proof)
    again = json.loads(bakery.tb2("verify", "--json", alias).expect().out)
    check(0 <= again["clock_error_ms"] <= 1000 and again["orphan_inodes"] == 0 and again["restore_ms"] > 0, again)


def two_restores_at_once(bakery, alias):
    """Random numbers of the kernel differ, the time is right: in copies that run at the same time, and twice in each."""
    text = "date +%s; for i in 1 2; do head -c 16 /dev/urandom | md5sum; cat /proc/sys/kernel/random/uuid; done; mktemp -u"
    begin = time.time()
    children = [subprocess.Popen(bakery.arguments(["run", alias, "--", "sh", "-c", text]), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [child.communicate(timeout=300)[0].split("\n") for child in children]
    end = time.time()
    check([child.returncode for child in children] == [0, 0], outputs)
    for lines in outputs:
        check(begin - 1 <= int(lines[0]) <= end + 1, "%s is not between %s and %s" % (lines[0], begin, end))
    numbers = [line for lines in outputs for line in lines[1:] if line]
    check(len(numbers) == 10 and len(set(numbers)) == 10, numbers)


def unwritten_data_is_there(bakery):
    """In a restored copy, and on the disk alone, though the step ended without a sync; a deleted file is still open."""
    alias = bakery.bake(recipe=VOLUME, tasks=[TASK], store="volume").expect().tasks()[TASK]["alias"]
    record = json.loads(bakery.tb2("show", "--json", alias, store="volume").expect().out)
    check(record["proof"]["orphan_inodes"] == 1, record["proof"])
    for how in ([], ["--cold"]):
        out = bakery.tb2("run", *how, alias, "--", "sh", "-c", VOLUME_CHECK, store="volume").expect().out
        check(out.split() == ["20000", "right"], out)


def packages_must_be_quiet(bakery):
    """What a step leaves half installed is in no template, nor kept as its result: the next bake would begin with it."""
    task = failure(bakery.bake(recipe=BUSY, tasks=[TASK]), "snapshot", "dpkg-split (process ", "is running")
    check("wait for it" in task["hint"], task)
    for _ in range(2):
        task = failure(bakery.bake(recipe=HALF, tasks=[TASK]), "snapshot", "half installed", "torn (half-installed)")
        check("dpkg --configure -a" in task["hint"], task)


def killed_install_is_not_baked_in(bakery):
    """A step that is killed in the middle of an install leaves no template, and the next bake begins from the image."""
    store = "killed"
    failure(bakery.bake(recipe=KILLED, tasks=[TASK], store=store), "steps", "time limit")
    check(not bakery.machines(), "a machine was left")
    check(json.loads(bakery.tb2("ls", "--json", store=store).expect().out) == [], "there is a template")
    alias = bakery.bake(recipe=RECIPE, tasks=[TASK], store=store).expect().tasks()[TASK]["alias"]
    bakery.tb2("run", alias, "--", "sh", "-c", "test ! -e /var/lib/dpkg && ! ps | grep -q '[s]leep 1000 8'",
               store=store).expect()


def the_wrong_disk_is_refused(bakery, aliases):
    """Another template's map or an older copy in a map's place does not have its digest; one that is gone is named."""
    paths = {name: bakery.path("store", "disks", shown(bakery, alias)["disk"].partition(":")[2])
             for name, alias in aliases.items()}
    held = {}
    for name, path in paths.items():
        with open(path, "rb") as file:
            held[name] = file.read()

    def put(name, data):
        os.chmod(paths[name], 0o644)
        with open(paths[name], "wb") as out:
            out.write(data)

    put(TASK, held[OTHER])
    put(OTHER, held[TASK])
    for alias in aliases.values():
        run = bakery.tb2("run", alias, "--", "true").expect(125)
        check("disk" in run.err and not re.search("started|ready", run.err), run.err)
    put(OTHER, held[OTHER])
    put(TASK, held[TASK][:-1] + bytes([held[TASK][-1] ^ 1]))
    bakery.tb2("run", aliases[TASK], "--", "true").expect(125)
    os.unlink(paths[TASK])
    run = bakery.tb2("run", aliases[TASK], "--", "true").expect(125)
    check(os.path.basename(paths[TASK])[:12] in run.err, run.err)
    bakery.tb2("run", aliases[OTHER], "--", "true").expect()
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def main():
    with Bakery(tasks=2) as bakery:
        tasks = bakery.bake("--jobs", "2").expect().tasks()
        aliases = {name: task["alias"] for name, task in tasks.items()}
        proof_is_recorded(bakery, aliases[TASK])
        two_restores_at_once(bakery, aliases[TASK])
        packages_must_be_quiet(bakery)
        killed_install_is_not_baked_in(bakery)
        unwritten_data_is_there(bakery)
        the_wrong_disk_is_refused(bakery, aliases)


main()
