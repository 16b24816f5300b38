#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A journal as a bake writes it, for tests of reports: make_journal.py FILE [TASKS]. Same bytes each time.

Of the tasks, some fail in the ways that people meet, one is up to date, one was tried twice, and one has a name and
output that try to be markup.
"""

import json
import sys
from datetime import datetime, timedelta, timezone

HOSTILE = "<script>alert('&amp;\"')</script>|`x`\\@all\u202e[a](http://evil.example)"
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STAGES = (("plan", 1), ("resolve", 140), ("pull", 2600), ("ingest", 1900), ("assemble", 260), ("boot", 2400), ("steps", 9200),
          ("ready", 600), ("snapshot", 1500), ("prove", 1300), ("register", 60))
NAMES = ("build-pmars", "count-words", "fix-git", "fix-links", "gpt2-codegolf", "hello-world", "image-processing",
         "make-mips-interpreter", "openssl-selfsigned-cert", "polyglot-c-py", "qemu-startup", "rotate-logs")
FAILURES = {
    "fix-git": ("steps", "step", "step 2 of the recipe, 'apt-get install -y tmux', ended with status 100\n"
                "E: Failed to fetch http://deb.debian.org/debian/pool/main/t/tmux_3.3a-3_amd64.deb  404  Not Found\n"
                "E: Unable to fetch some archives, maybe run apt-get update?",
                "run the step by hand: tb2-bake run ALIAS -- sh -c '...'"),
    "qemu-startup": ("pull", "denied", "pulling registry.example.com/tasks/qemu-startup:1: the registry refused "
                     "anonymous access (status 401)", "log in: docker login registry.example.com"),
    HOSTILE: ("ready", "step", "ready check: " + HOSTILE + "\n" + HOSTILE, HOSTILE),
}


def event(lines, at, kind, **members):
    stamp = (START + timedelta(milliseconds=at)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    lines.append((at, json.dumps(dict(event=kind, time=stamp, **members), sort_keys=True)))


def bake(lines, name, number, begin):
    """One task's events; what became of it, and when."""
    at, times, failure = begin, {}, FAILURES.get(name)
    for stage, usual in STAGES:
        ms = usual * (7 + (number * 5 + len(stage)) % 7) // 10 + 1
        event(lines, at, "stage_started", task=name, stage=stage)
        if stage == "boot":  # found before the guest boots
            for step in range(1, number % 3 + 1):
                event(lines, at, "step", task=name, stage=stage, step=step, steps=4, cached=True)
        if stage == "steps":
            for step in range(number % 3 + 1, 2 if failure else 5):
                event(lines, at + ms * step // 5, "step", task=name, stage=stage, step=step, steps=4, cached=False)
            for line in range(60 if failure else 3):
                event(lines, at + line, "output", task=name, stage=stage,
                      text=HOSTILE if name == HOSTILE else "Get:%d http://deb.debian.org bookworm InRelease" % line)
        if stage == "pull" and name == "rotate-logs":
            event(lines, at + ms, "task_retried", task=name, stage=stage, text="connection reset")
            event(lines, at + ms + 400, "stage_started", task=name, stage=stage)
            times[stage], at = ms + ms // 2, at + ms + 400 + ms // 2
        else:
            times[stage], at = ms, at + ms
        if failure and failure[0] == stage:
            event(lines, at, "task_finished", task=name, stage=stage, outcome="failed", image="registry.example.com/tasks/x:1",
                  stage_ms=times, pulled_size=9000000 * (number + 1), error_class=failure[1], error=failure[2],
                  hint=failure[3], retryable=False)
            return "failed", at
        at += 130 if stage in ("plan", "assemble") else 0
    event(lines, at, "task_finished", task=name, stage="register", outcome="ready", alias="tb2-%s-0123456789" % name,
          image="registry.example.com/tasks/%s:1" % name, why="image, recipe", stage_ms=times,
          pulled_size=9000000 * (number + 1))
    return "ready", at


def make(count=len(NAMES)):
    names = [NAMES[i] if i < len(NAMES) else "%s-%d" % (NAMES[i % len(NAMES)], i) for i in range(count)] + [HOSTILE]
    lines, outcomes, end = [], dict.fromkeys(("ready", "unchanged", "failed", "cancelled"), 0), 0
    machines = [0] * 4
    event(lines, 0, "run_started", tasks=len(names))
    for number, name in enumerate(names):
        if name == "hello-world":
            event(lines, 200, "stage_started", task=name, stage="resolve")
            event(lines, 300, "task_finished", task=name, stage="resolve", outcome="unchanged", stage_ms={"resolve": 100},
                  pulled_size=0, alias="tb2-hello-world-0123456789")
            outcomes["unchanged"] += 1
            continue
        free = min(range(4), key=lambda i: machines[i])
        outcome, machines[free] = bake(lines, name, number, machines[free])
        outcomes[outcome] += 1
        end = max(end, machines[free])
    lines.sort(key=lambda line: line[0])
    event(lines, end, "run_finished", tasks=len(names), outcomes=outcomes, wall_ms=end, manifest_heads=13, manifest_gets=20,
          blob_gets=31, blob_bytes=702000000, mirrored=0, rate_waits=2, vm_tasks=12, layers_ingested=29, stored_size=288000000,
          chunks_put=18400, chunks_new=6900)
    return "".join(line + "\n" for _, line in lines)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        out.write(make(*map(int, sys.argv[2:])))
