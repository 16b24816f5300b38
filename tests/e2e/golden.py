#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden replay: good templates pass, broken ones and hostile scripts fail, and nothing of it stays."""

import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import RECIPE, Bakery, check, need  # noqa: E402

# One file of the image is another than the task's author knew; the template is as warm as ever.
BROKEN = RECIPE.replace("  - run:", "  - run: printf x | dd of=/app/table.bin bs=1 seek=7 conv=notrunc\n  - run:", 1)
HANGS, DIES, FLOODS, TWICE = "fix-links", "rotate-logs", "sort-records", "count-words"
NEVER, POOR = "never-baked", "no-word"


def replay(bakery, *options, status=0):
    run = bakery.tb2("golden", "--tasks-dir", os.path.join(bakery.set, "tasks"), "--output", bakery.path("out"),
                     "--timeout-multiplier", "3", *options)
    return run.expect(status)


def trials(run):
    events = run.events()
    check(events[-1]["event"] == "replay_finished", events[-1])
    return {event["task"]: event for event in events if event["event"] == "trial_finished"}, events[-1]


def output(bakery, task, name):
    with open(bakery.path("out", task, name), encoding="utf-8", errors="replace") as file:
        return file.read()


def objects(bakery):
    """Files of the store, without locks."""
    top = bakery.path("store")
    return sorted(os.path.join(where, name) for where, _, names in os.walk(top) for name in names
                  if not name.endswith("lock"))


def everything_passes(bakery):
    before = objects(bakery)
    found, end = trials(replay(bakery, "--all", "--vm-jobs", "2", "--json"))
    check(len(found) == 4 and end["passed"] == 4, found)
    sources = {task: (one["reward_from"], one["reward"]) for task, one in found.items()}
    check(sources == {"count-words": ("reward.txt", 1), "fix-links": ("exit status", 1),
                      "rotate-logs": ("reward.json", 1), "sort-records": ("reward.txt", 1)}, sources)
    check(found["sort-records"]["test"]["status"] == 3, "a written reward goes before the exit status")
    check(output(bakery, "count-words", "tests.txt") == "PASS\n", found)
    check(objects(bakery) == before, "a replay left something in the store")
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def nothing_withheld_is_stored(bakery):
    """Neither solution nor tests are in any chunk, of disks, memories or device states, or in a record."""
    chunks = [path for path in objects(bakery) if "/chunks/" in path]
    plain = subprocess.Popen(["xargs", "-0", "zstd", "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    plain.stdin.write("\0".join(chunks).encode())
    plain.stdin.close()
    # Found by the same search: something of the disks, and something that is in memories alone.
    known = {b'PRETTY_NAME="tb2 demo"', b"\0MADE_BY=e2e\0"}
    withheld = {bakery.facts["withheld"][name].encode() for name in ("solution", "tests")}
    seen, tail = set(), b""
    for piece in iter(lambda: plain.stdout.read(1 << 20), b""):
        seen |= {word for word in known | withheld if word in tail + piece}
        tail = piece[-100:]
    check(plain.wait() == 0, "zstd failed")
    for path in objects(bakery):
        if "/chunks/" not in path:
            with open(path, "rb") as file:
                data = file.read()
            check(not any(word in data for word in withheld), path)
    check(seen == known, "wanted %s, found %s" % (known, seen))


def a_broken_template_fails(bakery):
    bakery.bake("--jobs", "1", recipe=BROKEN, tasks=[TWICE]).expect()
    run = replay(bakery, TWICE, "--recipe", bakery.recipe(BROKEN), status=1)
    for words in ("FAILED", "the reward is 0", "FAIL: a file of the image is another", bakery.path("out", TWICE),
                  "1 tasks: 0 passed, 1 failed"):
        check(words in run.out, "no '%s' in\n%s" % (words, run.out))
    with open(bakery.path("known.txt"), "w", encoding="utf-8") as known:
        known.write("# broken since long\n%s\nsort-*\n" % TWICE)
    found, end = trials(replay(bakery, TWICE, "--recipe", bakery.recipe(BROKEN), "--json",
                               "--expect", bakery.path("known.txt")))
    check(found[TWICE]["outcome"] == "failed" and found[TWICE]["known_to_fail"], found)
    check(end["known_failures"] == 1 and end["failed"] == 0, end)


def change(bakery, task, test=None, solve=None, toml=""):
    home = os.path.join(bakery.set, "tasks", task)
    for path, text in ((home + "/tests/test.sh", test), (home + "/solution/solve.sh", solve)):
        if text is not None:
            with open(path, "w", encoding="utf-8") as out:
                out.write("#!/bin/sh\n" + text)
    with open(home + "/task.toml", encoding="utf-8") as file:
        text = file.read()
    with open(home + "/task.toml", "w", encoding="utf-8") as out:
        out.write(re.sub(r"\[verifier\]\ntimeout_sec = .*\n", toml, text) if toml else text)


def hostile_scripts(bakery):
    tasks = os.path.join(bakery.set, "tasks")
    for name in (NEVER, POOR):
        shutil.copytree(os.path.join(tasks, TWICE), os.path.join(tasks, name), symlinks=True)
    change(bakery, HANGS, "setsid sleep 1000 &\necho waiting\nsleep 1000\n", "exit 7\n",
           "[verifier]\ntimeout_sec = 1\n")
    change(bakery, DIES, "echo last words\nsleep 0.2\npoweroff -f\nsleep 1000\n")
    change(bakery, FLOODS, "echo \"the word is $WORD\"\nyes flood | head -c 3000000\n"
           "yes 1 | head -c 200000 > /logs/verifier/reward.txt\n",
           toml="[verifier]\ntimeout_sec = 100\n[verifier.env]\nWORD = \"${GOLDEN_WORD}\"\n")
    change(bakery, POOR, toml="[verifier]\n[verifier.env]\nWORD = \"${NOT_GIVEN}\"\n")
    os.rename(os.path.join(tasks, POOR, "task.toml"), os.path.join(tasks, POOR, "task.toml.away"))
    found, end = trials(replay(bakery, "--all", "--json", "--vm-jobs", "2", "--env", "GOLDEN_WORD=swordfish",
                               "--expect", bakery.path("known.txt"), status=1))
    check(end["tasks"] == 5 and end["passed"] == 0 and end["errors"] == 3, end)
    wanted = {
        HANGS: ("failed", "timeout", "time limit of 3 s; solve.sh ended with exit status 7"),
        DIES: ("error", "step", "test.sh: "),
        FLOODS: ("failed", "limit", "reward.txt"),
        TWICE: ("error", "input", "several templates"),
        NEVER: ("error", "notfound", "no template"),
    }
    for task, (outcome, error, words) in wanted.items():
        one = found[task]
        check((one["outcome"], one["error_class"]) == (outcome, error) and words in one["error"], one)
    check(found[FLOODS]["known_to_fail"] and found[HANGS]["test"]["timed_out"], found)
    check("last words" in output(bakery, DIES, "tests.txt"), "what was printed before the end is lost")
    text = output(bakery, FLOODS, "tests.txt")
    check(text.startswith("the word is swordfish\nflood\n") and len(text) < 1300000 and "left out" in text, len(text))
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")

    # What is missing is told before a machine starts.
    os.rename(os.path.join(tasks, POOR, "task.toml.away"), os.path.join(tasks, FLOODS, "task.toml"))
    run = replay(bakery, FLOODS, status=1)
    check("needs the variable NOT_GIVEN" in run.out and "--env NOT_GIVEN" in run.out, run.out)
    shutil.rmtree(os.path.join(tasks, DIES, "solution"))
    run = replay(bakery, "--tasks", "no-such-task", status=2)
    check("no-such-task" in run.err, run.err)


def main():
    need("zstd", "xargs")
    with Bakery(tasks=4) as bakery:
        bakery.bake("--jobs", "2").expect()
        everything_passes(bakery)
        nothing_withheld_is_stored(bakery)
        a_broken_template_fails(bakery)
        hostile_scripts(bakery)
        nothing_withheld_is_stored(bakery)


main()
