#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many small tasks, each with a tag of its own, from a set of make_task_set.py: for sizes that nobody wants to push.

  make_many_tasks.py --set SET --out TASKS --count N [--name NAME] [--bad N] [--own-images]

SET's registry need not run: the tags are written where docker-registry keeps them (its storage of version 2: a tag is a
file that holds a digest). All tags are of SET's first image; --own-images: of images of their own, with its layers. --bad:
so many of the tasks have a task.toml that is broken.
"""

import argparse
import hashlib
import json
import os


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


class Storage:
    """docker-registry's, and in it the repository of one image."""

    def __init__(self, top, repository):
        self.blobs, self.top = os.path.join(top, "blobs"), os.path.join(top, "repositories", repository)

    def digest_of(self, tag):
        with open(os.path.join(self.top, "_manifests/tags", tag, "current/link"), encoding="ascii") as file:
            return file.read()

    def blob_path(self, digest):
        algorithm, value = digest.split(":")
        return os.path.join(self.blobs, algorithm, value[:2], value, "data")

    def read(self, digest):
        with open(self.blob_path(digest), encoding="utf-8") as file:
            return json.load(file)

    def link(self, folder, digest):
        write(os.path.join(self.top, folder, *digest.split(":"), "link"), digest)

    def put(self, document, folder):
        text = json.dumps(document)
        digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        write(self.blob_path(digest), text)
        self.link(folder, digest)
        return digest, len(text)

    def put_tag(self, tag, digest):
        write(os.path.join(self.top, "_manifests/tags", tag, "current/link"), digest)
        self.link("_manifests/tags/%s/index" % tag, digest)

    def put_image(self, base, name):
        """Another image with the layers of `base`, which may be an index; its manifest's digest."""
        manifest = self.read(base)
        if "manifests" in manifest:
            wanted = [entry for entry in manifest["manifests"] if entry["platform"]["architecture"] == "amd64"]
            manifest = self.read(wanted[0]["digest"])
        config = self.read(manifest["config"]["digest"])
        config["config"].setdefault("Labels", {})["name"] = name
        manifest["config"]["digest"], manifest["config"]["size"] = self.put(config, "_layers")
        return self.put(manifest, "_manifests/revisions")[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--name", default="many")
    parser.add_argument("--bad", type=int, default=0)
    parser.add_argument("--own-images", action="store_true")
    options = parser.parse_args()
    with open(os.path.join(options.set, "set.json"), encoding="utf-8") as file:
        image = json.load(file)["tasks"][0]["image"]
    host, repository = image.rpartition(":")[0].split("/", 1)
    tag = image.rpartition(":")[2]
    storage = Storage(os.path.join(options.set, "registry/docker/registry/v2"), repository)
    digest = storage.digest_of(tag)
    for number in range(options.count):
        name = "%s-%05d" % (options.name, number)
        storage.put_tag(name, storage.put_image(digest, name) if options.own_images else digest)
        bad = number * options.bad // options.count != (number + 1) * options.bad // options.count
        write(os.path.join(options.out, name, "task.toml"),
              "[environment]\ndocker_image = %s\nallow_internet = false\n" % (
                  "broken" if bad else '"%s/%s:%s"' % (host, repository, name)))


if __name__ == "__main__":
    main()
