#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Bakers who share a real S3 bucket: each unit of work is done once, and a dead one's is taken over.

  remote_s3.py BIN     BIN/versitygw is the server, built there unless it is; TB2_NO_S3=1 skips the test
"""

import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, finish  # noqa: E402
from bucket import Bucket, need_server  # noqa: E402


def start(bakery, store, url, tasks=None):
    return bakery.start(bakery.bake_command("--jobs", "1", "--remote", url, tasks=tasks), store)


def two_at_once(bakery, bucket):
    layers = {name for task in bakery.facts["tasks"] for name in task["diff_ids"]}
    wanted = {"vm_tasks": len(bakery.facts["tasks"]), "layers_ingested": len(layers)}
    runs = [finish(child).expect() for child in
            [start(bakery, "left", bucket.url), start(bakery, "right", bucket.url)]]
    both = [run.totals() for run in runs]
    for what, units in wanted.items():
        print("%s: %d units, done by each: %s" % (what, units, [part[what] for part in both]))
        check(sum(part[what] for part in both) == units, "%s: not each just once" % what)
    check(runs[0].outcomes().keys() == runs[1].outcomes().keys(), "a baker lost a task")
    check({name: task["disk"] for name, task in runs[0].tasks().items()} ==
          {name: task["disk"] for name, task in runs[1].tasks().items()}, "the bakers have different templates")
    check(sum(part["remote"]["templates_taken"] for part in both) == len(runs[0].outcomes()), both)
    check(not bucket.names("claims"), "claims were left: %s" % bucket.names("claims"))
    bucket.check_nothing_sent_twice()
    print("requests: %d for %d chunks" % (len(bucket.requests()), len(bucket.names("chunks"))))
    return runs[0]


def elsewhere(bakery, bucket, baked):
    """A host that never baked: the template comes from the bucket, chunk by chunk as they are read."""
    task = sorted(baked.tasks())[0]
    alias = baked.tasks()[task]["alias"]
    done = bakery.tb2("run", "--remote", bucket.url, alias, "--", "cat", "/made-by", store="far").expect()
    check(done.out.startswith("e2e for"), done.out)
    have = sum(len(files) for _, _, files in os.walk(bakery.path("far", "chunks")))
    print("%d of %d chunks were read" % (have, len(bucket.names("chunks"))))
    check(0 < have < len(bucket.names("chunks")), "not lazy")
    bakery.tb2("remote", "pull", "--remote", bucket.url, alias, store="far").expect()


def kill_one(bakery, bucket):
    """kill -9 in mid-work: the other one waits until the claim has run out, then does it."""
    os.makedirs(bakery.path("s3", "second"))
    url = bucket.url.replace("s3://shared/", "s3://second/")
    top = bakery.path("s3", "second", "store", "claims")
    one = [bakery.facts["tasks"][0]["name"]]
    victim = start(bakery, "victim", url, one)
    end = time.monotonic() + 120
    while not [name for name in (os.listdir(top) if os.path.isdir(top) else []) if name.startswith("template-")]:
        check(time.monotonic() < end and victim.poll() is None, "nobody claims a template")
        time.sleep(0.02)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    check(os.listdir(top), "no claim is left")
    run = finish(start(bakery, "heir", url, one)).expect()
    check(run.outcomes() == {one[0]: "ready"} and run.totals()["vm_tasks"] == 1, run.outcomes())
    check(not os.path.isdir(top) or not os.listdir(top), "claims were left")


def interrupt_one(bakery, bucket):
    """Ctrl-C twice in mid-work: what was claimed is given back at once, so that nobody waits for it to run out."""
    os.makedirs(bakery.path("s3", "third"))
    url = bucket.url.replace("s3://shared/", "s3://third/")
    top = bakery.path("s3", "third", "store", "claims")
    child = start(bakery, "interrupted", url)
    for line in child.stdout:
        event = json.loads(line)
        if event["event"] == "stage_started" and event["stage"] == "boot":
            check(os.listdir(top), "nothing is claimed")
            os.kill(child.pid, signal.SIGINT)
            time.sleep(0.3)
            os.kill(child.pid, signal.SIGINT)
            break
    child.communicate(timeout=60)
    check(child.returncode == 130, child.returncode)
    check(not os.path.isdir(top) or not os.listdir(top), "claims were left")


def main():
    binaries = sys.argv[1]
    need_server(binaries)
    with Bakery(tasks=2) as bakery, Bucket(bakery, binaries) as bucket:
        elsewhere(bakery, bucket, two_at_once(bakery, bucket))
        kill_one(bakery, bucket)
        interrupt_one(bakery, bucket)


main()
