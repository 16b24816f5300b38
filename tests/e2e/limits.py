#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a task may take: stages with a time limit, failures that are tried again, rates that a registry limits."""

import http.server
import os
import shutil
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import RECIPE, Bakery, check  # noqa: E402
from tcp_line import Line  # noqa: E402

RATE_LIMITED = 6
TASK, OTHER = "count-words", "fix-links"
HANGS = RECIPE.replace("  - run:", "  - run: echo before the long one; sleep 1000\n  - run:", 1)


def settings(bakery, text):
    path = bakery.path("registries.yaml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    return "--registries", path


def retries(run):
    return [event for event in run.events() if event["event"] == "task_retried"]


def expect_timeout(run, stage, limit):
    task = run.expect(1).tasks()[TASK]
    check(task["outcome"] == "failed" and task["stage"] == stage and task["error_class"] == "timeout", task)
    check("the stage has not come to its end within " + limit in task["error"], task["error"])
    check("--stage-timeout %s=" % stage in task["hint"], task["hint"])
    run.check_schema()


def a_step_that_hangs(bakery):
    run = bakery.bake("--stage-timeout", "steps=2s", recipe=HANGS, tasks=[TASK])
    expect_timeout(run, "steps", "2 s")
    task = run.tasks()[TASK]
    check("step 2 of 3" in task["error"] and "sleep 1000" in task["error"], task["error"])
    check(2000 <= task["stage_ms"]["steps"] < 60000, task["stage_ms"])
    check(not retries(run), "steps are tried again")
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


HANGING = """\
#!/bin/sh
case "$*" in *-version*) exec "%s" "$@" ;; esac
exec sleep 1000
"""


def a_boot_that_takes_long(bakery):
    """A machine monitor that starts and does nothing."""
    path, home = os.environ["PATH"], bakery.path("hanging")
    os.mkdir(home)
    program = os.path.join(home, "qemu-system-x86_64")
    with open(program, "w", encoding="utf-8") as out:
        out.write(HANGING % shutil.which("qemu-system-x86_64"))
    os.chmod(program, 0o755)
    os.environ["PATH"] = home + ":" + path
    run = bakery.bake("--stage-timeout", "pull=none,boot=1s", tasks=[TASK])
    os.environ["PATH"] = path
    expect_timeout(run, "boot", "1 s")
    check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


def a_registry_that_is_silent(bakery):
    """Requests are tried again, within the run's patience; the second connection works."""
    with Line(bakery.facts["port"], "--silent", 1) as line:
        bakery.set_port(TASK, line.port)
        run = bakery.bake("--stage-timeout", "resolve=1s", tasks=[TASK], store="silent").expect()
        check(run.outcomes() == {TASK: "ready"} and len(retries(run)) == 1, retries(run))
        check("within 1 s" in retries(run)[0]["text"], retries(run))
    with Line(bakery.facts["port"], "--silent", 1000) as line:
        bakery.set_port(TASK, line.port)
        run = bakery.bake("--stage-timeout", "resolve=1s", tasks=[TASK], store="silent")
        expect_timeout(run, "resolve", "1 s")
        check(len(retries(run)) == 2, retries(run))
    bakery.set_port(TASK, bakery.facts["port"])


def a_pull_that_takes_long(bakery):
    """A line that never stands still, so that no other limit is met."""
    with Line(bakery.facts["port"], "--rate", 20000) as line:
        bakery.set_port(TASK, line.port)
        run = bakery.bake("--stage-timeout", "pull=1s", tasks=[TASK], store="slow")
        expect_timeout(run, "pull", "1 s")
    bakery.set_port(TASK, bakery.facts["port"])
    # What arrived is gone on with.
    check(bakery.bake(tasks=[TASK], store="slow").expect().outcomes() == {TASK: "ready"}, "afterwards")


def connections_that_break(bakery):
    """The run tries again what the registry client has given up on."""
    once = settings(bakery, "tries: 1\n")
    with Line(bakery.facts["port"], "--reset", 2) as line:
        bakery.set_port(TASK, line.port)
        run = bakery.bake(*once, tasks=[TASK], store="broken").expect()
        check(run.outcomes() == {TASK: "ready"} and len(retries(run)) == 2, retries(run))
        run.check_schema()
    bakery.set_port(TASK, bakery.facts["port"])


class Limited(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(429)
        self.send_header("Retry-After", "4000")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


def a_registry_that_limits(bakery):
    """Nothing failed but for the rate: a status of its own. Something else failed as well: it is a failure."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Limited)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    bakery.set_port(TASK, server.server_port)
    run = bakery.bake().expect(RATE_LIMITED)
    check(run.outcomes() == {TASK: "failed", OTHER: "ready"}, run.outcomes())
    task = run.tasks()[TASK]
    check(task["error_class"] == "rate" and task["retryable"] and "4000 s" in task["error"] + task["hint"], task)
    check(not retries(run), "an hour is not waited for")
    run = bakery.bake("--stage-timeout", "steps=1s", "--force", recipe=HANGS).expect(1)
    check({run.tasks()[name]["error_class"] for name in (TASK, OTHER)} == {"rate", "timeout"}, run.outcomes())
    server.shutdown()
    bakery.set_port(TASK, bakery.facts["port"])


def main():
    with Bakery(tasks=2) as bakery:
        a_registry_that_is_silent(bakery)
        a_pull_that_takes_long(bakery)
        connections_that_break(bakery)
        a_registry_that_limits(bakery)
        a_step_that_hangs(bakery)
        a_boot_that_takes_long(bakery)


main()
