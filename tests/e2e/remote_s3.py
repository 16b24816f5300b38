#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Bakers who share a real S3 bucket: each unit of work is done once, and a dead one's is taken over.

  remote_s3.py BIN     BIN/versitygw is the server, built there unless it is; TB2_NO_S3=1 skips the test
"""

import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import HERE, Bakery, Run, check, skip  # noqa: E402

LEASE = 3
KEYS = {"AWS_ACCESS_KEY_ID": "tb2-test-key", "AWS_SECRET_ACCESS_KEY": "tb2-test-secret",
        "TB2_BAKE_REMOTE_LEASE": str(LEASE)}
SERVER = os.path.join(HERE, "s3_server.sh")


class Bucket:
    def __init__(self, bakery, binaries):
        self.bakery, self.binaries = bakery, binaries

    def __enter__(self):
        os.makedirs(self.bakery.path("s3", "shared"))
        done = subprocess.run([SERVER, "start", self.binaries, self.bakery.home], check=True, text=True,
                              stdout=subprocess.PIPE)
        self.url = "s3://shared/store?endpoint=http://127.0.0.1:%s" % done.stdout.strip()
        return self

    def __exit__(self, *_):
        subprocess.run([SERVER, "stop", self.bakery.home], check=True)

    def names(self, top):
        found = []
        for here, _, files in os.walk(self.bakery.path("s3", "shared", "store", top)):
            found += [os.path.join(here, name) for name in files]
        return found

    def requests(self):
        """(operation, object, status) of each request so far."""
        with open(self.bakery.path("s3.log"), encoding="utf-8") as file:
            lines = [line.split() for line in file if " s3_" in line]
        found = []
        for line in lines:
            at = next(i for i, word in enumerate(line) if word.startswith("s3_"))
            found.append((line[at][3:], line[at + 1], line[at + 3]))
        return found


def start(bakery, store, url, tasks=None):
    command = bakery.arguments(bakery.bake_command("--jobs", "1", "--remote", url, tasks=tasks), store)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)


def finish(child):
    out, err = child.communicate(timeout=300)
    return Run(child.returncode, out, err, 0).expect()


def totals(run):
    return next(event for event in run.events() if event["event"] == "run_finished")


def two_at_once(bakery, bucket):
    layers = {name for task in bakery.facts["tasks"] for name in task["diff_ids"]}
    wanted = {"vm_tasks": len(bakery.facts["tasks"]), "layers_ingested": len(layers)}
    runs = [finish(child) for child in
            [start(bakery, "left", bucket.url), start(bakery, "right", bucket.url)]]
    both = [totals(run) for run in runs]
    for what, units in wanted.items():
        print("%s: %d units, done by each: %s" % (what, units, [part[what] for part in both]))
        check(sum(part[what] for part in both) == units, "%s: not each just once" % what)
    check(runs[0].outcomes().keys() == runs[1].outcomes().keys(), "a baker lost a task")
    check({name: task["disk"] for name, task in runs[0].tasks().items()} ==
          {name: task["disk"] for name, task in runs[1].tasks().items()}, "the bakers have different templates")
    check(sum(part["remote"]["templates_taken"] for part in both) == len(runs[0].outcomes()), both)
    check(not bucket.names("claims"), "claims were left: %s" % bucket.names("claims"))
    # Nothing is sent twice: no object but pointers and claims was written by two requests.
    puts = [name for operation, name, status in bucket.requests() if operation == "PutObject" and status == "200"]
    kept = [name for name in puts if "/claims/" not in name]
    check(len(kept) == len(set(kept)), "sent twice: %s" % [name for name in kept if kept.count(name) > 1][:3])
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
    run = finish(start(bakery, "heir", url, one))
    check(run.outcomes() == {one[0]: "ready"} and totals(run)["vm_tasks"] == 1, run.outcomes())
    check(not os.path.isdir(top) or not os.listdir(top), "claims were left")


def main():
    binaries = sys.argv[1]
    if os.environ.get("TB2_NO_S3") == "1":
        skip("TB2_NO_S3 is set")
    subprocess.run([SERVER, "build", binaries], check=True)
    os.environ.update(KEYS)
    with Bakery(tasks=2) as bakery, Bucket(bakery, binaries) as bucket:
        elsewhere(bakery, bucket, two_at_once(bakery, bucket))
        kill_one(bakery, bucket)


main()
