#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many tasks at once: what is planned and why, shares, lock files, what failed last time, a run that is ended."""

import json
import os
import re
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
SUPPORT = os.path.join(HERE, "..", "support")
sys.path.insert(0, SUPPORT)
from bakery import RECIPE, Bakery, check, need  # noqa: E402

NOTHING, CANCELLED = 5, 130
MOVED, OTHER, THIRD = "count-words", "fix-links", "rotate-logs"


def plan(bakery, *options, status=0):
    command = bakery.bake_command(*options)
    return json.loads(bakery.tb2("plan", *command[1:]).expect(status).out)


def reasons(planned):
    return {task["task"]: task.get("why") for task in planned["tasks"] if task["action"] == "bake"}


def lock_lines(bakery):
    with open(bakery.path("tb2.lock"), encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if not line.startswith("#")]


def all_are_new(bakery):
    lock = bakery.path("tb2.lock")
    check(reasons(plan(bakery, "--lock", lock)) == dict.fromkeys([MOVED, OTHER, THIRD], "new"), "all are new")
    check(not os.path.exists(lock) and not bakery.blob_gets()[3:], "a plan writes no lock file and pulls no layer")


def a_run_is_ended(bakery):
    """The first Ctrl-C lets what runs come to its end, and begins nothing new."""
    command = bakery.bake_command("--jobs", "1", "--lock", bakery.path("tb2.lock"))
    child = subprocess.Popen(bakery.arguments(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)
    ended = {}
    try:
        for line in child.stdout:
            event = json.loads(line)
            if event["event"] == "stage_started" and event["stage"] == "boot":
                os.kill(child.pid, signal.SIGINT)
            if event["event"] == "task_finished":
                ended[event["task"]] = event["outcome"]
        status = child.wait(60)
    finally:
        child.kill()
        child.communicate()
    check(status == CANCELLED, status)
    check(sorted(ended.values()) == ["cancelled", "cancelled", "ready"], ended)
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def shares_are_the_whole(bakery):
    """Two machines with a share each bake what one would: each task once, the same lock file."""
    lock = bakery.path("tb2.lock")
    done = [bakery.bake("--shard", share, "--lock", lock).expect().outcomes() for share in ("1/2", "2/2")]
    check(not set(done[0]) & set(done[1]) and len(done[0]) + len(done[1]) == 3, done)
    parts = [{task["task"] for task in plan(bakery, "--shard", share, "--lock", lock, "--frozen")["tasks"]}
             for share in ("1/2", "2/2")]
    check(not parts[0] & parts[1] and len(parts[0] | parts[1]) == 3, parts)
    check(len(lock_lines(bakery)) == 3 and lock_lines(bakery) == sorted(lock_lines(bakery)), lock_lines(bakery))


def what_is_locked_is_not_asked_for(bakery):
    lock = bakery.path("tb2.lock")
    before = len(bakery.requests())
    run = bakery.bake("--lock", lock, "--frozen", "--detailed-status").expect(NOTHING)
    check(set(run.outcomes().values()) == {"unchanged"}, run.outcomes())
    check(len(bakery.requests()) == before, "a request although all is locked")
    bakery.bake("--detailed-status").expect(NOTHING)
    bakery.bake("--lock", lock).expect()


def moved_tags(bakery):
    """A tag that moved is baked as it was, until the lock file is updated; then the plan says what moved."""
    lock, old = bakery.path("tb2.lock"), bakery.path("old.lock")
    image = "docker://127.0.0.1:%d/demo/%%s:20251031" % bakery.facts["port"]
    subprocess.run(["skopeo", "--insecure-policy", "copy", "--all", "--quiet", "--src-tls-verify=false",
                    "--dest-tls-verify=false", image % OTHER, image % MOVED], check=True)
    subprocess.run(["cp", lock, old], check=True)
    held = lock_lines(bakery)
    check(reasons(plan(bakery, "--lock", lock)) == {}, "what is locked moved all the same")
    check(reasons(plan(bakery)) == {MOVED: "image"}, "without a lock file the tag counts")
    check(lock_lines(bakery) == held, "a plan has changed the lock file")
    after = plan(bakery, "--lock", lock, "--update-lock=" + OTHER)
    check(after["moved"] == [] and lock_lines(bakery) == held, after["moved"])
    after = plan(bakery, "--lock", lock, "--update-lock")
    check([move["image"].split("/")[-1] for move in after["moved"]] == [MOVED + ":20251031"], after["moved"])
    check(len(set(lock_lines(bakery)) - set(held)) == 1, "just one line of the lock file is another")
    check(len(plan(bakery, "--lock", lock, "--since", old)["moved"]) == 1, "since the old one")
    bakery.bake("--lock", lock, "--frozen", "--tasks", MOVED, tasks=[MOVED]).expect()
    subprocess.run(["cp", old, lock], check=True)


def only_what_failed(bakery):
    lock = bakery.path("tb2.lock")
    path = os.path.join(bakery.set, "tasks", OTHER, "task.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as out:
        out.write("broken")
    run = bakery.bake("--lock", lock).expect(1)
    check(run.outcomes() == {MOVED: "unchanged", OTHER: "failed", THIRD: "unchanged"}, run.outcomes())
    check(run.tasks()[OTHER]["stage"] == "plan" and run.tasks()[OTHER]["error_class"] == "input", run.tasks())
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    check(bakery.bake("--only-failed", "--lock", lock).expect().outcomes() == {OTHER: "unchanged"}, "just that one")
    bakery.bake("--only-failed", "--detailed-status").expect(NOTHING)


def what_changes_is_named(bakery):
    other = RECIPE.replace("made-by", "made")
    check(set(reasons(json.loads(bakery.tb2("plan", *bakery.bake_command(recipe=other)[1:]).expect().out)).values())
          == {"recipe"}, "another recipe")
    path = os.path.join(bakery.set, "tasks", THIRD, "task.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as out:
        out.write(re.sub(r"^cpus.*$", "cpus = 2", text, flags=re.M))
    planned = plan(bakery, "--lock", bakery.path("tb2.lock"), "--changed")
    check([(task["task"], task["why"]) for task in planned["tasks"]] == [(THIRD, "cpus")], planned)
    check(planned["tasks"][0]["estimate_ms"] > 0, "it was baked before")
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def sigterm_stops(bakery):
    """As systemd and CI systems end a run: at once, in order, and the reports are written all the same."""
    page = bakery.path("ended.html")
    command = bakery.bake_command("--jobs", "1", "--report", page)
    child = subprocess.Popen(bakery.arguments(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        for line in child.stdout:
            event = json.loads(line)
            if event["event"] == "stage_started" and event["stage"] == "boot":
                os.kill(child.pid, signal.SIGTERM)
        status = child.wait(60)
    finally:
        child.kill()
        child.communicate()
    check(status == CANCELLED, status)
    with open(page, encoding="utf-8") as file:
        check("Ended early: 3 of 3 tasks are not baked" in file.read(), "what the report says")
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def a_doctor_boots_a_guest(bakery):
    """Whether KVM works is seen by booting one; without it the machine can bake all the same."""
    checks = {each["check"]: each for each in json.loads(bakery.tb2("doctor", "--probe", "--json").expect().out)}
    check(checks["kvm"]["state"] in ("good", "note") and "or with --probe" not in checks["kvm"]["found"], checks["kvm"])
    check("bad" not in {each["state"] for each in checks.values()}, checks)


def hundreds_are_planned(bakery):
    """Each tag is asked for once; what is broken fails by itself."""
    many, count, bad = bakery.path("many"), 300, 3
    subprocess.run([os.path.join(SUPPORT, "make_many_tasks.py"), "--set", bakery.set, "--out", many, "--count",
                    str(count), "--bad", str(bad)], check=True)
    before = len(bakery.requests())
    done = bakery.tb2("plan", "--json", "--tasks-dir", many, "--all", "--recipe", bakery.recipe()).expect(1)
    planned = json.loads(done.out)
    check(planned["failed"] == bad and planned["bake"] == count - bad, planned)
    asked = [path for _, path in bakery.requests()[before:] if "/manifests/many-" in path]
    check(len(asked) == len(set(asked)) == count - bad, "%d requests" % len(asked))


def main():
    need("skopeo")
    with Bakery(tasks=3) as bakery:
        all_are_new(bakery)
        sigterm_stops(bakery)
        a_run_is_ended(bakery)
        shares_are_the_whole(bakery)
        what_is_locked_is_not_asked_for(bakery)
        only_what_failed(bakery)
        what_changes_is_named(bakery)
        moved_tags(bakery)
        hundreds_are_planned(bakery)
        a_doctor_boots_a_guest(bakery)


main()
