# SPDX-License-Identifier: MIT
"""Trees as tools that are not ours see them: disks by a loop mount, images by skopeo and umoci. Needs root."""

import os
import shutil
import subprocess

from bakery import check, need, skip
from compare_trees import scan


def need_mounts():
    need("e2fsck", "mount", "umoci", "skopeo")
    if os.getuid() != 0:
        skip("a loop mount needs root")
    if subprocess.run(["losetup", "-f"], capture_output=True).returncode:
        skip("no loop devices here")


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


def export(bakery, reference, raw, store="store"):
    """Writes the disk; returns its digest."""
    return bakery.tb2("disk", "export", reference, "--raw", raw, store=store).expect().out.strip()


def unpack(image, work, bundle):
    """Unpacks an image of a registry, by way of plain tars, since not every umoci reads zstd; returns the
    directory of its files."""
    plain = os.path.join(work, "plain")
    quiet("skopeo", "copy", "--quiet", "--src-tls-verify=false", "--dest-decompress", "docker://" + image, "dir:" + plain)
    quiet("skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", "dir:" + plain, "oci:%s-oci:tree" % plain)
    quiet("umoci", "unpack", "--image", plain + "-oci:tree", bundle)
    shutil.rmtree(plain)
    shutil.rmtree(plain + "-oci")
    return os.path.join(bundle, "rootfs")
