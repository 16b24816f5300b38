# SPDX-License-Identifier: MIT
"""Disks as files: checked by e2fsck, looked into by mounting them (root, loop devices)."""

import os
import subprocess

from bakery import check
from compare_trees import scan


def quiet(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    check(done.returncode == 0, "%s: status %d\n%s" % (" ".join(command), done.returncode, done.stdout[-3000:]))


def mounted_tree(raw, where):
    os.mkdir(where)
    quiet("mount", "-o", "loop,ro,noload", raw, where)
    try:
        return scan(where, skip=["lost+found"])
    finally:
        quiet("umount", where)


def export(bakery, reference, raw, store="store"):
    """Writes the disk; returns its digest."""
    return bakery.tb2("disk", "export", reference, "--raw", raw, store=store).expect().out.strip()
