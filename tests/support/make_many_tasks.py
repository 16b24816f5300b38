#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many small tasks, each with a tag of its own, from a set of make_task_set.py: for sizes that nobody wants to push.

  make_many_tasks.py --set SET --out TASKS --count N [--bad N]

SET's registry need not run: the tags are written where docker-registry keeps them (its storage of version 2: a tag is a
file that holds a digest). All tags are of SET's first image. --bad: so many of the tasks have a task.toml that is broken.
"""

import argparse
import json
import os


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--bad", type=int, default=0)
    options = parser.parse_args()
    with open(os.path.join(options.set, "set.json"), encoding="utf-8") as file:
        image = json.load(file)["tasks"][0]["image"]
    host, repository = image.rpartition(":")[0].split("/", 1)
    tag = image.rpartition(":")[2]
    tags = os.path.join(options.set, "registry/docker/registry/v2/repositories", repository, "_manifests/tags")
    with open(os.path.join(tags, tag, "current/link"), encoding="ascii") as file:
        digest = file.read()
    for number in range(options.count):
        name = "many-%05d" % number
        write(os.path.join(tags, name, "current/link"), digest)
        write(os.path.join(tags, name, "index", *digest.split(":"), "link"), digest)
        bad = number * options.bad // options.count != (number + 1) * options.bad // options.count
        write(os.path.join(options.out, name, "task.toml"),
              "[environment]\ndocker_image = %s\nallow_internet = false\n" % (
                  "broken" if bad else '"%s/%s:%s"' % (host, repository, name)))


main()
