#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs tb2-bake on a directory of hand-made images and compares its disks with listings.

  edge_cases.py [--program TB2_BAKE] [--umoci] [--only NAME,...] DIR

DIR holds a directory for each case:
  NAME/oci/            an OCI layout with the reference "latest"
  NAME/case.json       an object whose "outcome" is one of:
      ok               the image is accepted and its disk is the listing
      refuse           the image is refused
      refuse-or-same   either
      safe             refused, or accepted and the disk is clean
  NAME/expected.jsonl  the listing: one JSON object a path, with path, type (file, dir, symlink,
                       char, block, fifo), mode ("0644"), uid, gid, mtime ("SECONDS.NANOSECONDS"),
                       size, sha256 and nlink of files, ino (first path) where nlink is above 1,
                       target of links, dev ([major, minor]), xattrs ({name: base64}). "*" stands for
                       any value. A listing without "." says nothing of the root.

Each image is exported (`tb2-bake disk export`) twice into stores of their own; the two disks must be
the same one, clean by e2fsck -fn, and mounted equal to the listing. A refusal must have a status of
its own (2 or 3), say why in one line, and leave no file. With --umoci, what `umoci unpack` accepts must be
the same tree too, unless case.json has "umoci": "differs ...". Needs root and loop
devices. Prints a line a case; exit status 1 when one is wrong.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time

TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
         stat.S_IFCHR: "char", stat.S_IFBLK: "block"}


def content_digest(path, size):
    """sha256 of the file; holes are zeros that need not be read."""
    total, zeros, at = hashlib.sha256(), bytes(1 << 20), 0
    with open(path, "rb", buffering=0) as file:
        while at < size:
            try:
                data = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:
                data = size
            while at < data:
                total.update(zeros[:min(len(zeros), data - at)])
                at = min(at + len(zeros), data)
            part = os.pread(file.fileno(), 1 << 20, at)
            total.update(part)
            at += len(part)
    return total.hexdigest()


def content_xattrs(path):
    names = [name for name in os.listxattr(path, follow_symlinks=False)
             if name == "security.capability" or name.startswith(("user.", "trusted."))]
    return {name: base64.b64encode(os.getxattr(path, name, follow_symlinks=False)).decode() for name in names}


def describe(path):
    info = os.lstat(path)
    kind = TYPES[stat.S_IFMT(info.st_mode)]
    facts = {"type": kind, "mode": "%04o" % stat.S_IMODE(info.st_mode), "uid": info.st_uid, "gid": info.st_gid,
             "mtime": "%d.%09d" % divmod(info.st_mtime_ns, 10 ** 9)}
    if kind == "file":
        facts.update(size=info.st_size, sha256=content_digest(path, info.st_size), nlink=info.st_nlink)
    elif kind == "symlink":
        facts["target"] = os.readlink(path)
    elif kind in ("char", "block"):
        facts["dev"] = [os.major(info.st_rdev), os.minor(info.st_rdev)]
    found = content_xattrs(path)
    if found:
        facts["xattrs"] = found
    return facts, info


def scan(root):
    """{path: facts} as a listing has them, without lost+found."""
    before = os.getcwd()
    os.chdir(root)  # paths may be as long as they can be
    try:
        return scan_here()
    finally:
        os.chdir(before)


def scan_here():
    tree, links, waiting = {}, {}, ["."]
    while waiting:
        path = waiting.pop()
        tree[path], info = describe(path)
        if tree[path].get("nlink", 1) > 1:
            links.setdefault(info.st_ino, []).append(path)
        if tree[path]["type"] == "dir":
            names = [name if path == "." else path + "/" + name for name in os.listdir(path)]
            waiting += [name for name in names if name != "lost+found"]
    for paths in links.values():
        for path in paths:
            tree[path]["ino"] = min(paths, key=os.fsencode)
    return tree


def read_listing(path):
    with open(path, encoding="ascii") as file:
        rows = [json.loads(line) for line in file]
    return {row.pop("path"): row for row in rows}


def differences(wanted, found):
    for path in sorted(set(wanted) | set(found), key=os.fsencode):
        if path not in wanted:
            if path != ".":
                yield "%s: should not be there" % ascii(path)
            continue
        if path not in found:
            yield "%s: missing" % ascii(path)
            continue
        for field in sorted(set(wanted[path]) | set(found[path])):
            want, got = wanted[path].get(field), found[path].get(field)
            if want not in (got, "*"):
                yield "%s: %s is %s, should be %s" % (ascii(path), field, got, want)


def quiet(*command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    return [] if done.returncode == 0 else ["%s: status %d: %s" % (" ".join(command), done.returncode,
                                                                  done.stdout[-1000:])]


def mounted(raw, where):
    os.mkdir(where)
    subprocess.run(["mount", "-o", "loop,ro,noload", raw, where], check=True)
    try:
        return scan(where)
    finally:
        subprocess.run(["umount", where], check=True)


def same_as_umoci(listing, ours, theirs, begun):
    """Differences from what umoci made, but for what the image says nothing about, and for directories that umoci
    touched after it had set their time: they have the time of this run."""
    touched = {path for path, facts in theirs.items() if facts["type"] == "dir" and float(facts["mtime"]) >= begun - 1}

    def plain(tree):
        found = {}
        for path, facts in tree.items():
            free = {field for field, value in listing.get(path, {}).items() if value == "*"}
            if facts["type"] == "dir" and path not in listing or path in touched:
                free.add("mtime")
            found[path] = {field: value for field, value in facts.items() if field not in free}
        return found

    for line in differences(plain(theirs), plain(ours)):
        yield "unlike umoci: " + line


class Edge:
    def __init__(self, program, top, home, umoci=None):
        self.program, self.top, self.home, self.umoci = program, top, home, umoci

    def export(self, name, number):
        home = os.path.join(self.home, "%s-%d" % (name, number))
        os.mkdir(home)
        raw = os.path.join(home, "raw")
        done = subprocess.run([self.program, "disk", "--store", os.path.join(home, "store"), "export",
                               "oci:%s:latest" % os.path.join(self.top, name, "oci"), "--raw", raw],
                              text=True, errors="replace", capture_output=True, timeout=600)
        return done, raw

    def judge_refusal(self, done, raw):
        lines = done.stderr.strip().splitlines()
        if done.returncode not in (2, 3):
            yield "status %d" % done.returncode
        if not [line for line in lines if re.match(r"(tb2-bake: )?\S", line)]:
            yield "refused without a word"
        if os.path.exists(raw):
            yield "refused, but left a disk"

    def judge_disk(self, name, outcome, raw, digest):
        yield from quiet("e2fsck", "-fn", raw)
        again, _ = self.export(name, 2)
        if again.returncode or again.stdout != digest:
            yield "a second export gave %s %s" % (again.stdout.strip(), again.stderr.strip())
        found = mounted(raw, raw + ".mounted")
        path = os.path.join(self.top, name, "expected.jsonl")
        listing = read_listing(path) if os.path.exists(path) else {}
        if outcome != "safe" and listing:
            yield from list(differences(listing, found))[:20]
        if self.umoci is not None:
            yield from self.judge_umoci(name, listing, found)

    def judge_umoci(self, name, listing, found):
        bundle = os.path.join(self.home, "bundle")
        begun = time.time()
        done = subprocess.run(["umoci", "unpack", "--image", os.path.join(self.top, name, "oci") + ":latest", bundle],
                              text=True, errors="replace", capture_output=True, timeout=600)
        if done.returncode:
            self.umoci["refused by umoci"] = self.umoci.get("refused by umoci", 0) + 1
            return
        wrong = list(same_as_umoci(listing, found, scan(os.path.join(bundle, "rootfs")), begun))
        with open(os.path.join(self.top, name, "case.json"), encoding="utf-8") as file:
            known = str(json.load(file).get("umoci")).startswith("differs")
        word = "unlike umoci" if wrong else "like umoci"
        self.umoci[word] = self.umoci.get(word, 0) + 1
        if not known:
            yield from wrong[:20]

    def judge(self, name):
        """(what happened, list of what is wrong)"""
        with open(os.path.join(self.top, name, "case.json"), encoding="utf-8") as file:
            outcome = json.load(file)["outcome"]
        done, raw = self.export(name, 1)
        if done.returncode == 0:
            wrong = ["should be refused"] if outcome == "refuse" else []
            return "accepted", wrong + list(self.judge_disk(name, outcome, raw, done.stdout))
        wrong = ["should be accepted"] if outcome == "ok" else []
        return "refused: " + done.stderr.strip(), wrong + list(self.judge_refusal(done, raw))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("TB2_BAKE", "build/cli/tb2-bake"))
    parser.add_argument("--umoci", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("dir")
    options = parser.parse_args()
    top = os.path.realpath(options.dir)
    names = options.only.split(",") if options.only else sorted(
        name for name in os.listdir(top) if os.path.exists(os.path.join(top, name, "case.json")))
    bad, umoci = 0, {} if options.umoci else None
    for name in names:
        home = tempfile.mkdtemp(prefix="tb2-edge-")
        try:
            outcome, wrong = Edge(os.path.realpath(options.program), top, home, umoci).judge(name)
        finally:
            shutil.rmtree(home)
        bad += bool(wrong)
        print("%s %s: %s" % ("WRONG" if wrong else "right", name, ascii(outcome)[1:-1]))
        for line in wrong:
            print("      " + line)
        sys.stdout.flush()
    print("%d cases, %d wrong" % (len(names), bad))
    if umoci:
        print("of those accepted: " + ", ".join("%d %s" % (count, word) for word, count in sorted(umoci.items())))
    return 1 if bad or not names else 0


if __name__ == "__main__":
    sys.exit(main())
