#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Disks made from images: clean by e2fsck, and mounted they equal what umoci unpacks."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need, skip  # noqa: E402
from compare_trees import differences, scan  # noqa: E402

need("e2fsck", "umoci", "mount")


def quiet(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    check(done.returncode == 0, "%s: status %d\n%s" % (" ".join(command), done.returncode, done.stdout[-3000:]))


def mounted_tree(raw, where):
    os.mkdir(where)
    quiet("mount", "-o", "loop,ro,noload", raw, where)
    try:
        return scan(where, skip=["lost+found"])
    finally:
        quiet("umount", where)


def judge(bakery, reference, name):
    raw = bakery.path(name + ".raw")
    bakery.tb2("disk", "export", reference, "--raw", raw).expect()
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
    os.unlink(raw)


def main():
    if os.getuid() != 0:
        skip("a loop mount needs root")
    if subprocess.run(["losetup", "-f"], capture_output=True).returncode:
        skip("no loop devices here")
    with Bakery(tasks=4) as bakery:
        for task in bakery.facts["tasks"]:
            judge(bakery, task["image"], task["name"])
        # The same image out of a layout gives the same disk.
        again = bakery.path("layout.raw")
        bakery.tb2("disk", "export", "oci:%s/oci:fix-links" % bakery.set, "--raw", again, store="other").expect()
        first = bakery.path("registry.raw")
        bakery.tb2("disk", "export", bakery.facts["tasks"][1]["image"], "--raw", first).expect()
        quiet("cmp", again, first)


main()
