#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""stored_bytes.py TB2_BAKE IMAGE... [--work DIR] [--no-peer]

What a set of images takes in a store, against the sum of their distinct compressed layers and against `casync make` of
the same trees, in one run. An image is whatever tb2-bake takes, "oci:DIR:TAG" among it; oci:DIR alone stands for all
that are in it. The trees are those of our own disks, mounted read-only one at a time (e2e.trees compares such with umoci):
root and loop devices. casync 2+20201210 and its defaults; its store is kept from tree to tree. Prints ratios; judges none.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


def run(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\nexit status %d\n%s" % (" ".join(words), done.returncode, done.stderr[-3000:]))
    return done.stdout


def size_of(top):
    return sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(top) for name in names)


def all_of(image):
    """The images of a layout that is named without one of them."""
    if not image.startswith("oci:") or ":" in image[4:]:
        return [image]
    with open(os.path.join(image[4:], "index.json"), encoding="utf-8") as file:
        entries = json.load(file)["manifests"]
    return ["%s:%s" % (image, entry["annotations"]["org.opencontainers.image.ref.name"]) for entry in entries]


class Measure:
    def __init__(self, options):
        self.tool, self.work = options.tool, options.work
        self.images = [one for image in options.images for one in all_of(image)]
        self.store = os.path.join(self.work, "store")

    def tb2(self, *words):
        return run(self.tool, *words, "--store", self.store)

    def layers(self):
        """{digest: size} of the distinct compressed layers."""
        found = {}
        for image in self.images:
            for layer in json.loads(self.tb2("image", "inspect", "--json", image))["layers"]:
                found[layer["digest"]] = layer["size"]
        return found

    def ours(self):
        for image in self.images:
            self.tb2("disk", "map", "--json", image)
        du = json.loads(self.tb2("store", "du", "--json"))
        return {name: kind["size"] for name, kind in du["kinds"].items() if name not in ("memory", "journals")}

    def casync(self, image, number):
        raw, tree = os.path.join(self.work, "disk"), os.path.join(self.work, "tree")
        self.tb2("disk", "export", image, "--raw", raw)
        os.makedirs(tree, exist_ok=True)
        run("mount", "-o", "loop,ro,noload", raw, tree)
        try:
            run("casync", "make", "--store=" + os.path.join(self.work, "casync"),
                os.path.join(self.work, "%d.caidx" % number), tree)
        finally:
            run("umount", tree)
            os.unlink(raw)

    def casync_all(self):
        begin = time.monotonic()
        for number, image in enumerate(self.images):
            self.casync(image, number)
            print("casync: %d of %d trees, %.0f s" % (number + 1, len(self.images), time.monotonic() - begin), file=sys.stderr)
        return size_of(os.path.join(self.work, "casync"))


def measure(options):
    m = Measure(options)
    ours = m.ours()
    layers = m.layers()
    total, compressed = sum(ours.values()), sum(layers.values())
    print("%d images, %d distinct layers" % (len(m.images), len(layers)))
    print("| what | MB | ours / it |\n|---|---|---|")
    print("| ours: %s | %.1f | |" % (", ".join("%s %.1f" % (name, size / 1e6) for name, size in ours.items() if size),
                                     total / 1e6))
    print("| distinct compressed layers | %.1f | %.3f |" % (compressed / 1e6, total / compressed), flush=True)
    if not options.no_peer:
        peer = m.casync_all()
        print("| `casync make` of the trees | %.1f | %.3f |" % (peer / 1e6, total / peer))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("images", nargs="+")
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    options.work = tempfile.mkdtemp(prefix="tb2-bench-", dir=options.work)
    try:
        measure(options)
    finally:
        shutil.rmtree(options.work, ignore_errors=True)


main()
