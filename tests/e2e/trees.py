#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Disks made from images: clean by e2fsck, and mounted they equal what umoci unpacks."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402
from compare_trees import differences, scan  # noqa: E402
from disks import export, mounted_tree, need_mounts, quiet  # noqa: E402


def written_to(raw, mount):
    """The kernel mounts the disk for writing, a thousand files come and go, and it is still clean."""
    quiet("mount", "-o", "loop", raw, mount)
    try:
        for number in range(1000):
            with open(os.path.join(mount, "new-%d" % number), "wb") as out:
                out.write(b"x" * number)
        for number in range(0, 1000, 2):
            os.unlink(os.path.join(mount, "new-%d" % number))
    finally:
        quiet("umount", mount)
    quiet("e2fsck", "-fn", raw)


def judge(bakery, reference, name):
    raw = bakery.path(name + ".raw")
    made = export(bakery, reference, raw)
    quiet("e2fsck", "-fn", raw)
    ours = mounted_tree(raw, bakery.path("mount-" + name))
    bundle = bakery.path("bundle-" + name)
    quiet("umoci", "unpack", "--image", "%s/judge:%s" % (bakery.set, name), bundle)
    theirs = scan(os.path.join(bundle, "rootfs"))
    # No layer has an entry for the root itself: nobody says what its time is.
    ours["."].pop("dirmtime")
    theirs["."].pop("dirmtime")
    found = list(differences(ours, theirs))
    check(not found, "%s:\n%s" % (name, "\n".join(found[:50])))
    written_to(raw, bakery.path("mount-" + name))
    os.unlink(raw)
    return made


def main():
    need_mounts()
    with Bakery(tasks=4) as bakery:
        disks = {task["name"]: judge(bakery, task["image"], task["name"]) for task in bakery.facts["tasks"]}
        # The same image out of a layout, in an empty store, gives the same disk.
        layout = "oci:%s/oci:fix-links" % bakery.set
        again = export(bakery, layout, bakery.path("layout.raw"), store="other")
        check(again == disks["fix-links"], "the layout's disk is another one")



main()
