#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""stored_bytes.py TB2_BAKE IMAGE... [--work DIR] [--no-peer]

What a set of images takes in a store, against the sum of their distinct compressed layers and against `casync make` of
the same trees, in one run. Images of a registry without TLS, HOST:PORT/NAME:TAG. Needs skopeo, umoci and casync, and
root for the trees' owners. Prints ratios; judges none.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile


def run(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\nexit status %d\n%s" % (" ".join(words), done.returncode, done.stderr[-3000:]))
    return done.stdout


def size_of(top):
    return sum(os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(top) for name in names)


def read_json(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


def copy_all(images, layout):
    """The images for this platform in a layout, layers as they are. Returns their tags."""
    tags = ["image-%d" % number for number in range(len(images))]
    for image, tag in zip(images, tags):
        run("skopeo", "copy", "--quiet", "--src-tls-verify=false", "docker://" + image, "oci:%s:%s" % (layout, tag))
    return tags


def unpack(layout, tag, work, tree):
    """By way of plain tars, since not every umoci reads zstd."""
    plain = os.path.join(work, "plain")
    run("skopeo", "copy", "--quiet", "--dest-decompress", "oci:%s:%s" % (layout, tag), "dir:" + plain)
    run("skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", "dir:" + plain, "oci:%s-oci:tree" % plain)
    run("umoci", "unpack", "--image", plain + "-oci:tree", tree)
    shutil.rmtree(plain)
    shutil.rmtree(plain + "-oci")


def layers_of(layout):
    """{digest: size} of the distinct compressed layers."""
    found = {}
    for entry in read_json(layout, "index.json")["manifests"]:
        manifest = read_json(layout, "blobs", *entry["digest"].split(":"))
        found.update({layer["digest"]: layer["size"] for layer in manifest["layers"]})
    return found


def casync_size(layout, tags, work):
    store, trees = os.path.join(work, "casync"), os.path.join(work, "trees")
    for tag in tags:
        tree = os.path.join(trees, tag)
        os.makedirs(trees, exist_ok=True)
        unpack(layout, tag, work, tree)
        run("casync", "make", "--store=" + store, os.path.join(work, tag + ".caidx"), os.path.join(tree, "rootfs"))
        shutil.rmtree(tree)
    return size_of(store)


def our_sizes(options):
    store = os.path.join(options.work, "store")
    for image in options.images:
        run(options.tool, "disk", "map", "--store", store, "--json", image)
    du = json.loads(run(options.tool, "store", "du", "--store", store, "--json"))
    return {name: kind["size"] for name, kind in du["kinds"].items() if name not in ("memory", "journals")}


def measure(options):
    layout = os.path.join(options.work, "layout")
    tags = copy_all(options.images, layout)
    layers = layers_of(layout)
    ours = our_sizes(options)
    total, compressed = sum(ours.values()), sum(layers.values())
    print("%d images, %d distinct layers" % (len(tags), len(layers)))
    print("| what | MB | ours / it |\n|---|---|---|")
    print("| ours: %s | %.1f | |" % (", ".join("%s %.1f" % (name, size / 1e6) for name, size in ours.items() if size),
                                     total / 1e6))
    print("| distinct compressed layers | %.1f | %.3f |" % (compressed / 1e6, total / compressed))
    if not options.no_peer:
        peer = casync_size(layout, tags, options.work)
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
