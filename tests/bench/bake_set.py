#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bake_set.py TB2_BAKE TASKS_DIR [--jobs N] [--recipe FILE] [--cache DIR] [--work DIR]

Bakes a whole task set into an empty store, verifies every template, runs a command in each, bakes
again (nothing to do), and bakes into two more empty stores with 1 and with 4 jobs. Prints what
docs/benchmarks.md quotes. The set's registry must be running. Exits non-zero if a result is wrong;
times are printed, never judged.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

STAGES = ["plan", "resolve", "pull", "ingest", "assemble", "boot", "steps", "ready", "snapshot", "prove",
          "register"]


class Tool:
    def __init__(self, options):
        self.options = options

    def run(self, store, *command):
        line = [self.options.tool, command[0], "--store", store, "--cache", self.options.cache, *command[1:]]
        begin = time.monotonic()
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            errors = re.findall(r'"error":"[^"]*"', done.stdout) or [done.stdout[-3000:]]
            sys.exit("%s\nexit status %d\n%s\n%s" % (" ".join(line), done.returncode, "\n".join(errors),
                                                    done.stderr[-3000:]))
        return done.stdout, time.monotonic() - begin

    def bake(self, store, *more):
        out, seconds = self.run(store, "bake", "--tasks-dir", self.options.tasks, "--all", "--json",
                                *(["--recipe", self.options.recipe] if self.options.recipe else []), *more)
        events = [json.loads(line) for line in out.splitlines()]
        tasks = {e["task"]: e for e in events if e["event"] == "task_finished"}
        return tasks, [e for e in events if e["event"] == "run_finished"][0], seconds


def stage_table(tasks):
    print("\n| stage | median s | slowest s | sum s |\n|---|---|---|---|")
    for stage in STAGES:
        times = [task["stage_ms"].get(stage, 0) / 1000 for task in tasks.values()]
        print("| %s | %.2f | %.2f | %.2f |" % (stage, statistics.median(times), max(times), sum(times)))


def use_templates(tool, store, tasks):
    restores, runs = [], []
    for task in sorted(tasks):
        verified, _ = tool.run(store, "verify", "--json", task)
        restores.append(json.loads(verified)["restore_ms"] / 1000)
        out, seconds = tool.run(store, "run", task, "--", "cat", "/etc/os-release")
        if "NAME=" not in out:
            sys.exit("%s: /etc/os-release says %r" % (task, out))
        runs.append(seconds)
    shown = [json.loads(tool.run(store, "show", "--json", task)[0]) for task in sorted(tasks)]
    cold = [record["cold_ready_ms"] / 1000 for record in shown]
    warm = [record["warm_ready_ms"] / 1000 for record in shown]
    print("\n| | median s | range s |\n|---|---|---|")
    for name, times in (("cold boot to ready, in the bake", cold), ("restore to ready, in the bake", warm),
                        ("restore to ready, `verify` alone", restores),
                        ("`run ALIAS -- cat /etc/os-release`, whole command", runs)):
        print("| %s | %.2f | %.2f–%.2f |" % (name, statistics.median(times), min(times), max(times)))
    ratios = [c / w for c, w in zip(cold, warm)]
    print("\ncold / warm of the same task: median %.1f, least %.1f" % (statistics.median(ratios), min(ratios)))


def check_disks(tool, store, tasks, work):
    """The disk of every task, as assembled and as it was at the snapshot, is a clean file system."""
    raw = os.path.join(work, "disk.raw")
    for task in sorted(tasks):
        for option in (["--base"], []):
            tool.run(store, "disk", "export", task, "--raw", raw, *option)
            done = subprocess.run(["e2fsck", "-fn", raw], stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit("%s: e2fsck\n%s" % (task, done.stdout[-2000:]))
            os.unlink(raw)
    print("\ne2fsck -fn: clean on all %d disks, as assembled and at the snapshot" % len(tasks))


def stored_bytes(store):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(store) for name in names)


def disks(tasks):
    return {name: task["base_disk"] for name, task in tasks.items()}


def measure(options):
    tool = Tool(options)
    store = os.path.join(options.work, "store")
    tasks, run, seconds = tool.bake(store, *(["--jobs", str(options.jobs)] if options.jobs else []))
    print("first bake: %d tasks in %.1f s; outcomes %s; %d blobs, %.1f MB pulled; store %.1f MB" % (
        len(tasks), seconds, run["outcomes"], run["blob_gets"], run["blob_bytes"] / 1e6, stored_bytes(store) / 1e6))
    stage_table(tasks)
    use_templates(tool, store, tasks)
    check_disks(tool, store, tasks, options.work)
    again, run, seconds = tool.bake(store)
    print("\nsecond run: %.2f s; outcomes %s; %d manifest HEADs, %d manifest GETs, %d blob GETs, %d VMs" % (
        seconds, run["outcomes"], run["manifest_heads"], run["manifest_gets"], run["blob_gets"], run["vm_tasks"]))
    if run["blob_gets"] or run["vm_tasks"] or disks(again) != disks(tasks):
        sys.exit("the second run worked")
    times = {}
    for jobs in ("1", "4"):
        other = os.path.join(options.work, "store-" + jobs)
        baked, _, times[jobs] = tool.bake(other, "--jobs", jobs)
        shutil.rmtree(other)
        if disks(baked) != disks(tasks):
            sys.exit("--jobs %s makes other disks" % jobs)
    print("--jobs 1: %.1f s, --jobs 4: %.1f s; disk digests identical" % (times["1"], times["4"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("tasks")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--recipe")
    parser.add_argument("--cache")
    parser.add_argument("--work", default="/var/tmp")
    options = parser.parse_args()
    options.work = tempfile.mkdtemp(prefix="tb2-bench-", dir=options.work)
    options.cache = options.cache or os.path.join(options.work, "cache")
    try:
        measure(options)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)


main()
