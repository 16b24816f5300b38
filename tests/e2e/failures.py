#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A task that fails ends alone, with a message a person can act on."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, finish  # noqa: E402

RECIPE = """\
name: failures
network: none
steps:
  - run: |
      if [ "$DEMO_TASK" = fix-links ]; then
          echo "the disk of links is jammed"
          exit 3
      fi
start: while true; do sleep 1000; done
ready:
  command: test "$DEMO_TASK" != rotate-logs
  interval: 200ms
  timeout: 3s
"""

GOOD, STEP, READY = "count-words", "fix-links", "rotate-logs"
NAME, AWAY = "sort-records", "demo-task-04"


def set_image(bakery, task, image):
    path = os.path.join(bakery.set, "tasks", task, "task.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as out:
        out.write(re.sub(r'docker_image = ".*?"', 'docker_image = "%s"' % image, text))


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def expect_failure(task, stages, words, classes):
    check(task["outcome"] == "failed" and task["stage"] in stages, task)
    check(task["error_class"] in classes, task)
    for word in words:
        check(word in task["error"] + task.get("hint", ""), "no '%s' in %s" % (word, task))


def check_reports(page, junit, markdown, metrics):
    """Each says what failed, where and why."""
    suite = xml.etree.ElementTree.parse(junit).getroot()[0]
    failed = {case.get("name"): case.find("failure").text for case in suite if case.find("failure") is not None}
    check(set(failed) == {STEP, READY, NAME, AWAY} and "the disk of links is jammed" in failed[STEP], failed)
    for path in (page, markdown):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        check("4 of 5 tasks failed" in text and "the disk of links is jammed" in text, path)
    with open(metrics, encoding="utf-8") as file:
        lines = file.read().splitlines()
    check('tb2_bake_tasks{outcome="failed"} 4' in lines and "tb2_bake_exit_status 1" in lines, lines)


def one_of_each(bakery):
    port = closed_port()
    wrong, away = "127.0.0.1:%d/demo/no-such-image:1" % bakery.facts["port"], "127.0.0.1:%d/demo/x:1" % port
    set_image(bakery, NAME, wrong)
    set_image(bakery, AWAY, away)
    files = [bakery.path("report." + ending) for ending in ("html", "xml", "md", "prom")]
    reports = [word for pair in zip(("--report", "--junit", "--markdown", "--metrics"), files) for word in pair]
    run = bakery.bake("--jobs", "3", *reports, recipe=RECIPE).expect(1)
    run.check_schema()
    check_reports(*files)
    tasks = run.tasks()
    check(tasks[GOOD]["outcome"] == "ready", tasks[GOOD])
    expect_failure(tasks[STEP], ["steps"], ["exit status 3", "the disk of links is jammed"], ["step"])
    expect_failure(tasks[READY], ["ready"], ["ready"], ["step", "timeout"])
    expect_failure(tasks[NAME], ["resolve"], ["no-such-image"], ["notfound"])
    check(tasks[NAME]["error"].count("no-such-image") == 1, tasks[NAME]["error"])
    expect_failure(tasks[AWAY], ["resolve"], [":%d" % port], ["net"])
    for name in (STEP, READY, NAME, AWAY):
        check(name in tasks[name]["error"], "the message does not name %s: %s" % (name, tasks[name]["error"]))
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def full_disk(bakery, size, stages, word, classes):
    """A store on a file system of `size` bytes; the message must hold `word`."""
    if os.getuid() != 0:
        print("no full disk: a mount needs root")
        return
    where = bakery.path("full-" + size)
    os.mkdir(where)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", where], check=True)
    try:
        run = bakery.bake(tasks=[GOOD], store="full-" + size).expect(1)
        expect_failure(run.tasks()[GOOD], stages, [word], classes)
    finally:
        subprocess.run(["umount", "--lazy", where], check=True)


# In the guest of one task alone something goes on until its machine is killed.
KILLED = RECIPE.replace("          exit 3\n", "          sleep 1000\n").replace("!= rotate-logs", "!= nobody")


def a_machine_is_killed(bakery):
    """As the kernel does it when the host has no memory left: told, and the other tasks go on."""
    child = bakery.start(bakery.bake_command("--jobs", "1", recipe=KILLED, tasks=[STEP, GOOD]), "short")
    for line in child.stdout:
        event = json.loads(line)
        if event["event"] == "output" and event["task"] == STEP and "jammed" in event["text"]:
            for pid in bakery.machines_by_pid():
                os.kill(pid, signal.SIGKILL)
            break
    run = finish(child).expect(1)
    check(run.outcomes().get(GOOD, "ready") == "ready", run.outcomes())
    expect_failure(run.tasks()[STEP], ["steps"], ["QEMU was killed by signal 9", "ran out of memory", "fewer jobs"], ["step"])
    again = bakery.bake("--only-failed", recipe=KILLED.replace("sleep 1000", "true"), tasks=[STEP, GOOD], store="short").expect()
    check(again.outcomes() == {STEP: "ready"}, again.outcomes())
    check(not bakery.machines() and not bakery.leftovers("short"), "something was left behind")


WRAPPER = """\
#!/bin/sh
case "$*" in *-version*) exec "%(real)s" "$@" ;; esac
echo call >> "%(calls)s"
[ "$(wc -l < "%(calls)s")" -gt %(bad)d ] || exit 1
exec "%(real)s" "$@"
"""


def a_boot_is_tried_again(bakery):
    """A machine that ends before the agent answers is started anew, three times at most."""
    path = os.environ["PATH"]
    for bad, status, calls in ((1, 0, 4), (99, 1, 3)):  # after the bad ones a boot, and two restores that prove it
        home = bakery.path("qemu-%d" % bad)
        os.mkdir(home)
        program, log = os.path.join(home, "qemu-system-x86_64"), os.path.join(home, "calls")
        with open(program, "w", encoding="utf-8") as out:
            out.write(WRAPPER % {"real": shutil.which("qemu-system-x86_64"), "calls": log, "bad": bad})
        os.chmod(program, 0o755)
        os.environ["PATH"] = home + ":" + path
        run = bakery.bake("--force", "--no-boot-image", tasks=[GOOD]).expect(status)
        os.environ["PATH"] = path
        check("trying again" in run.err, run.err)
        with open(log, encoding="utf-8") as file:
            check(len(file.readlines()) == calls, "another number of starts than %d" % calls)
        if status:
            expect_failure(run.tasks()[GOOD], {"boot"}, ["QEMU ended with status 1"], {"step"})


def main():
    with Bakery(tasks=5) as bakery:
        one_of_each(bakery)
        a_boot_is_tried_again(bakery)
        a_machine_is_killed(bakery)
        full_disk(bakery, "6m", ["pull", "ingest"], "space", ["sys"])
        # The guest's memory outgrows it: SIGBUS for the VMM, and no riddle for people.
        full_disk(bakery, "48m", ["boot", "steps", "ready"], "the disk is full", ["sys"])


main()
