#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Results of steps are kept: what an edited recipe runs again, what it does not, and that nobody can tell the
difference."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need, skip  # noqa: E402
from compare_trees import differences  # noqa: E402
from disks import export, mounted_tree, quiet  # noqa: E402

need("e2fsck", "mount")
TASK = "fix-links"
UUID = "cat /proc/sys/kernel/random/uuid"


def recipe(steps, ready="test -s /step-1"):
    """`steps`: texts of run steps, or pairs of another kind and its value."""
    lines = ["name: steps", "network: none", "steps:"]
    for step in steps:
        kind, value = ("run", step) if isinstance(step, str) else step
        lines.append("  - %s: %s" % (kind, json.dumps(value)))
    return "\n".join(lines + ["ready: " + json.dumps(ready), ""])


def six(**others):
    """Six steps that say that they run, and write what no second run would. step_N: what N also does."""
    return ["echo run %d; %s > /step-%d; %s" % (n, UUID, n, others.get("step_%d" % n, "true")) for n in range(1, 7)]


def ran(run):
    """Numbers of the steps that printed something, in order."""
    return [int(event["text"][4:]) for event in run.events()
            if event["event"] == "output" and re.fullmatch(r"run \d+", event["text"])]


def told(run):
    """{number: cached} by the events."""
    return {event["step"]: event["cached"] for event in run.events() if event["event"] == "step"}


def files(bakery, run):
    alias = run.tasks()[TASK]["alias"]
    asked = bakery.tb2("run", alias, "--", "sh", "-c", "for n in 1 2 3 4 5 6; do cat /step-$n; done").expect()
    return asked.out.split()


def expect_steps(run, again, count=6):
    """Just these steps ran, and the events and the result say so."""
    run.expect().check_schema()
    check(ran(run) == again, "ran %s, not %s" % (ran(run), again))
    check(told(run) == {n: n not in again for n in range(1, count + 1)}, told(run))
    task = run.tasks()[TASK]
    check(task["steps_run"] == len(again) and task["steps_cached"] == count - len(again), task)
    return run


def planned(bakery, steps, *options, store="store"):
    """Which steps a bake would take from the cache: (of so many, the first so many)."""
    command = bakery.bake_command(*options, recipe=recipe(steps), tasks=[TASK])[1:]
    task = json.loads(bakery.tb2("plan", *command, store=store).expect().out)["tasks"][0]
    command.remove("--json")
    line = bakery.tb2("plan", *command, store=store).expect().out.splitlines()[1]
    words = {0: "", 1: "; step 1 of %d from the cache"}.get(task["steps_kept"], "; steps 1-%d of %%d from the cache" % task["steps_kept"])
    check(line.endswith(words % task["steps"] if words else task["why"]), line)
    return task["steps"], task["steps_kept"]


def bake(bakery, steps, *options, **more):
    return bakery.bake(*options, recipe=recipe(steps), tasks=[TASK], **more)


def edits(bakery):
    check(planned(bakery, six()) == (6, 0), "a plan before the first bake")
    first = expect_steps(bake(bakery, six()), [1, 2, 3, 4, 5, 6])
    for step, kept in (("step_6", 5), ("step_3", 2), ("step_2", 1), ("step_1", 0)):
        check(planned(bakery, six(**{step: "echo other"})) == (6, kept), step)
    check(planned(bakery, six(step_6="echo other"), "--no-step-cache") == (6, 0), "a plan without the cache")
    was = files(bakery, first)
    last = expect_steps(bake(bakery, six(step_6="echo other")), [6])
    now = files(bakery, last)
    check(now[:5] == was[:5] and now[5] != was[5], "%s, then %s" % (was, now))
    middle = expect_steps(bake(bakery, six(step_3="echo other")), [3, 4, 5, 6])
    now = files(bakery, middle)
    check(now[:2] == was[:2] and not set(now[2:]) & set(was), "%s, then %s" % (was, now))
    # Other words for the same: time limits, layout.
    again = recipe(six()).replace("  - run: ", "  - timeout: 77\n    run: ", 1)
    check(ran(bakery.bake("--force", recipe=again, tasks=[TASK]).expect()) == [1, 2, 3, 4, 5, 6], "forced")
    alias = last.tasks()[TASK]["alias"]
    steps = json.loads(bakery.tb2("show", "--json", alias).expect().out)["steps"]
    check(len(steps) == len(set(steps)) == 7, steps)  # the first is the disk before them


def what_steps_see(bakery):
    """A variable, a directory and a user are for what follows them, and for nothing before."""
    base = six()
    variable = base[:2] + [("env", {"A": "1"})] + base[2:]
    expect_seen(bake(bakery, variable), [3, 4, 5, 6])
    expect_seen(bake(bakery, base[:4] + [("workdir", "/opt/w"), ("user", "7")] + ["echo run 5; pwd; id -u"]), [5])
    expect_seen(bakery.bake(recipe=recipe(base[:5] + ["echo run 6; echo x"]).replace("network", "pipefail: true\nnetwork"),
                            tasks=[TASK]), [1, 2, 3, 4, 5, 6])


def expect_seen(run, again):
    check(ran(run.expect()) == again, "ran %s, not %s" % (ran(run), again))


def failing(bakery):
    """A recipe that fails and is mended, before there is any template."""
    check(bake(bakery, six(step_5="exit 7"), store="failing").expect(1).tasks()[TASK]["outcome"] == "failed", "step 5 of 6")
    mended = six(step_5="echo mended")
    check(planned(bakery, mended, store="failing") == (6, 4), "a plan of what failed")
    expect_steps(bake(bakery, mended, store="failing"), [5, 6])


def names(bakery, store="store"):
    top = bakery.path(store, "steps")
    return sorted(os.listdir(top)) if os.path.isdir(top) else []


def switched_off(bakery):
    before = names(bakery)
    check(before, "nothing was kept")
    run = bake(bakery, six(step_6="echo off"), "--no-step-cache").expect()
    check(ran(run) == [1, 2, 3, 4, 5, 6] and not any(told(run).values()), told(run))
    check(names(bakery) == before, "results were kept")


def upkeep(bakery):
    """What templates were made from outlives a gc; a damaged result is found, and made again."""
    bakery.tb2("store", "gc", "--grace", "0s").expect()
    check(planned(bakery, six(step_6="echo after gc")) == (6, 5), "a plan after a gc")
    expect_steps(bake(bakery, six(step_6="echo after gc")), [6])
    sizes = json.loads(bakery.tb2("store", "du", "--json").expect().out)
    check(sizes["kinds"]["steps"]["size"] > 0, sizes)
    for name in names(bakery):
        with open(bakery.path("store", "steps", name), "r+b") as file:
            file.seek(20)
            file.write(b"!")
    found = bakery.tb2("store", "fsck").expect(1)
    check("steps/" in found.out, found.out)
    expect_steps(bake(bakery, six(step_6="echo damaged")), [1, 2, 3, 4, 5, 6])
    bakery.tb2("store", "fsck", "--repair")
    bakery.tb2("store", "fsck").expect()


# Each leaves something that no disk holds, or looks for what the one before left.
LEAVING = [
    "echo run 1; sleep 4321 & setsid sleep 4321 & echo x > /dev/shm/x; echo x > /tmp/kept; echo a > /step-1",
    "echo run 2; mkdir -p /mnt; mount -t tmpfs none /mnt && echo x > /mnt/x; hostname other; hostname",
    "echo run 3; ! ps | grep '[s]leep 4321'; test ! -e /dev/shm/x; test -e /tmp/kept; rm /tmp/kept",
    "echo run 4; test ! -e /mnt/x; test \"$(hostname)\" != other; test ! -w /proc/sys/kernel/hostname -o"
    " ! -e /proc/sys || ! echo 1 > /proc/sys/vm/overcommit_memory",
    "echo run 5; mkdir -p /data/a/b; cp /bin/busybox /data/copy; chown -R 7:8 /data; chmod 4711 /data/copy;"
    " ln /data/copy /data/link; ln -s copy /data/a/sym; rm /usr/share/demo/* 2> /dev/null; mkfifo /data/fifo",
    "echo run 6; rm /data/copy; mv /data/a /data/c; dd if=/dev/zero of=/data/big bs=1k count=3000 2> /dev/null;"
    " rm /data/big; echo end > /data/end",
]


def leaving(last):
    return ["set -e; " + step for step in LEAVING[:5] + [LEAVING[5] + last]]


def same_without(bakery):
    """The same tree from a guest that ran all steps as from one that took most of them from the store."""
    expect_steps(bake(bakery, leaving("")), [1, 2, 3, 4, 5, 6])
    kept = expect_steps(bake(bakery, leaving("; true")), [6])
    fresh = bake(bakery, leaving("; true"), "--no-step-cache", store="other").expect()
    check(ran(fresh) == [1, 2, 3, 4, 5, 6], ran(fresh))
    if os.geteuid() != 0:
        skip("mounting disks needs root")
    trees = []
    for run, store in ((kept, "store"), (fresh, "other")):
        raw = bakery.path("disk-%s.raw" % store)
        export(bakery, run.tasks()[TASK]["alias"], raw, store)
        quiet("e2fsck", "-fn", raw)
        trees.append(mounted_tree(raw, bakery.path("mount-" + store)))
        os.unlink(raw)
    found = list(differences(*trees, ignore=["mtime", "dirmtime"]))
    check(not found, found[:10])
    check(any(path.endswith("data/link") for path in trees[0]), "the steps left nothing")


def provider(bakery, commands):
    path = bakery.path("provider.json")
    with open(path, "w", encoding="utf-8") as out:
        json.dump([{"task": task, "commands": texts} for task, texts in commands.items()], out)
    return "cat " + path


def shared(bakery):
    """Two tasks of one image whose recipes begin alike: at once, yet each common step runs once."""
    tasks = bakery.path("pair-tasks")
    for name in ("one", "two"):
        os.makedirs(os.path.join(tasks, name))
        with open(os.path.join(bakery.set, "tasks", TASK, "task.toml"), encoding="utf-8") as file, \
                open(os.path.join(tasks, name, "task.toml"), "w", encoding="utf-8") as out:
            out.write(file.read())
    common = ["echo run 1; sleep 2; %s > /common" % UUID, "echo run 2; sleep 1"]
    asked = provider(bakery, {"one": common + ["echo run 3; echo one > /own"],
                              "two": common + ["echo run 4; echo two > /own"]})
    run = bakery.tb2("bake", "--tasks-dir", tasks, "--all", "--recipe-from", asked, "--json", "--jobs", "2",
                     store="pair").expect()
    check(sorted(ran(run)) == [1, 2, 3, 4], ran(run))
    seen = [bakery.tb2("run", run.tasks()[name]["alias"], "--", "cat", "/common", "/own", store="pair").expect().out.split()
            for name in ("one", "two")]
    check(seen[0][0] == seen[1][0] and [one[1] for one in seen] == ["one", "two"], seen)


def main():
    with Bakery(tasks=2) as bakery:
        edits(bakery)
        failing(bakery)
        what_steps_see(bakery)
        switched_off(bakery)
        upkeep(bakery)
        shared(bakery)
        same_without(bakery)
        check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


main()
