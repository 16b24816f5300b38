#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Eight shares in eight processes, each with a store of its own and one bucket for all, are as one run: the same disks, keys
and aliases, and each layer and each template made once, by one of them.

  shards.py BIN [TASKS]     BIN/versitygw is the S3 server, built there unless it is; TB2_NO_S3=1 skips the test
"""

import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, finish  # noqa: E402
from bucket import Bucket, need_server  # noqa: E402

SHARES = 8


def start(bakery, bucket, share):
    return bakery.start(bakery.bake_command("--jobs", "1", "--remote", bucket.url, "--shard", "%d/%d" % (share, SHARES)),
                        "share-%d" % share)


def total(run, what):
    return run.totals()[what] if run.events() else 0  # a share may be empty


def results(runs):
    """What became of all tasks, whichever share they were in."""
    found = {}
    for run in runs:
        mine = run.tasks() if run.events() else {}
        check(not set(found) & set(mine), "a task in two shares")
        found.update(mine)
    return found


def keys(bakery, tasks, store):
    """The templates' keys, as a store's catalog has them."""
    found = {}
    for name, task in tasks.items():
        with open(bakery.path(store, "catalog", task["alias"] + ".json"), encoding="utf-8") as file:
            found[name] = json.load(file)["key"]
    return found


def main():
    binaries, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8
    need_server(binaries)
    with Bakery(tasks=count) as bakery, Bucket(bakery, binaries) as bucket:
        one = bakery.bake(store="one").expect()
        runs = [finish(child).expect() for child in [start(bakery, bucket, share) for share in range(1, SHARES + 1)]]
        all_tasks = results(runs)
        check({name: task["outcome"] for name, task in all_tasks.items()} == one.outcomes(), "other outcomes")
        check({name: task["base_disk"] for name, task in all_tasks.items()} == one.base_disks(), "other disks")
        check({task["alias"] for task in all_tasks.values()} ==
              {task["alias"] for task in one.tasks().values()}, "other aliases")
        layers = {name for task in bakery.facts["tasks"] for name in task["diff_ids"]}
        for what, wanted in (("vm_tasks", count), ("layers_ingested", len(layers))):
            done = [total(run, what) for run in runs]
            print("%s: %d, by each share: %s" % (what, wanted, done))
            check(sum(done) == wanted, "%s: %s, wanted %d once each" % (what, done, wanted))
        check(not bucket.names("claims"), "claims were left: %s" % bucket.names("claims"))
        check(len(bucket.names("templates")) >= count, bucket.names("templates"))
        bucket.check_nothing_sent_twice()
        # A ninth machine that bakes all has nothing to do but to take over.
        last = bakery.bake("--remote", bucket.url, store="last").expect()
        check(total(last, "vm_tasks") == 0 and total(last, "layers_ingested") == 0, last.totals())
        check({name: task["disk"] for name, task in last.tasks().items()} ==
              {name: task["disk"] for name, task in all_tasks.items()}, "other templates than the shares'")
        check(keys(bakery, last.tasks(), "last") == keys(bakery, one.tasks(), "one"), "other keys than one run's")


main()
