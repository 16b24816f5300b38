#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares two directory trees (a mounted disk and an unpacked image, say).

  compare_trees.py [--ignore FIELD,...] [--skip PATH,...] A B

Compared for every path: type, mode, owner, size, content, link target, device number, hard-link
group, extended attributes (user.*, trusted.* but overlay's own, security.capability), mtime with
nanoseconds. FIELD is one of: mtime, dirmtime, owner, xattrs, links. --skip leaves a path and all
below it out on both sides ("lost+found"). Prints each difference; exit status 1 if there are any.
"""

import argparse
import hashlib
import os
import stat
import sys

TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
         stat.S_IFCHR: "character device", stat.S_IFBLK: "block device", stat.S_IFSOCK: "socket"}


def xattrs(path):
    found = {}
    for name in os.listxattr(path, follow_symlinks=False):
        if name == "security.capability" or name.startswith(("user.", "trusted.")):
            if not name.startswith("trusted.overlay."):
                found[name] = os.getxattr(path, name, follow_symlinks=False).hex()
    return found


def content(path):
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            part = file.read(1 << 20)
            if not part:
                return total.hexdigest()
            total.update(part)


def describe(path, info, first_name):
    kind = stat.S_IFMT(info.st_mode)
    facts = {"type": TYPES[kind], "mode": oct(stat.S_IMODE(info.st_mode)),
             "owner": "%d:%d" % (info.st_uid, info.st_gid), "xattrs": xattrs(path)}
    facts["dirmtime" if kind == stat.S_IFDIR else "mtime"] = info.st_mtime_ns
    if kind == stat.S_IFREG:
        facts["size"], facts["content"] = info.st_size, content(path)
    if kind == stat.S_IFLNK:
        facts["target"] = os.fsdecode(os.readlink(path))
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        facts["device"] = "%d:%d" % (os.major(info.st_rdev), os.minor(info.st_rdev))
    if kind != stat.S_IFDIR and info.st_nlink > 1:
        facts["links"] = os.fsdecode(first_name)
    return facts


def scan(root, skip=()):
    """{path: facts}; a hard-link group is known by its first path in byte order."""
    root, skip = os.fsencode(root), [os.fsencode(path) for path in skip]
    device, paths = os.lstat(root).st_dev, [b""]
    for top, directories, files in os.walk(root, onerror=_stop):
        directories[:] = [name for name in directories
                          if os.path.islink(os.path.join(top, name))
                          or os.lstat(os.path.join(top, name)).st_dev == device]
        directories[:] = [d for d in directories if os.path.relpath(os.path.join(top, d), root) not in skip]
        paths += [os.path.relpath(os.path.join(top, name), root) for name in directories + files]
    tree, first = {}, {}
    for path in sorted(set(paths) - set(skip)):
        full = os.path.join(root, path) if path else root
        info = os.lstat(full)
        first.setdefault(info.st_ino, path)
        tree[os.fsdecode(path) or "."] = describe(full, info, first[info.st_ino])
    return tree


def _stop(problem):
    raise problem


def differences(a, b, ignore=()):
    for path in sorted(set(a) | set(b)):
        if path not in b:
            yield "%s: only in the first tree (%s)" % (path, a[path]["type"])
        elif path not in a:
            yield "%s: only in the second tree (%s)" % (path, b[path]["type"])
        else:
            for field in sorted((set(a[path]) | set(b[path])) - set(ignore)):
                if a[path].get(field) != b[path].get(field):
                    yield "%s: %s: %s / %s" % (path, field, a[path].get(field), b[path].get(field))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ignore", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("a")
    parser.add_argument("b")
    options = parser.parse_args()
    skip = [path for path in options.skip.split(",") if path]
    a, b = scan(options.a, skip), scan(options.b, skip)
    found = list(differences(a, b, options.ignore.split(",")))
    for line in found[:200]:
        print(line)
    print("%d paths and %d paths, %d differences" % (len(a), len(b), len(found)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
