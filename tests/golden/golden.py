#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Images in the layer language (README.md), read by the real reader, against the trees they must be.

  golden.py [--refresh] [--only NAME] [--program GOLDEN_TREE] FILE.layers...
  golden.py --write DIR FILE.layers...      the images as OCI layouts, in the form of edge_cases.py
  golden.py --umoci FILE.layers...          what `umoci unpack` makes of each, beside our tree; needs root
"""

import argparse
import difflib
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile

from language import Wrong, read_cases

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"


def run_reader(program, case, home):
    command = [program]
    for number, (blob, about) in enumerate(case.build()):
        path = os.path.join(home, str(number))
        with open(path, "wb") as file:
            file.write(blob)
        command += [path, about["mediaType"], str(about["size"]), about["digest"], about["diff_id"]]
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=300,
                          check=False)
    if done.returncode not in (0, 1) or done.stderr:
        raise Wrong("%s: the reader ended with %d: %s" % (case.name, done.returncode, done.stderr))
    return done.returncode == 0, done.stdout.splitlines()


def paths_of(lines):
    return [line.split(" ", 1)[0] for line in lines]


def judge(case, accepted, lines):
    """What is wrong, as lines."""
    if case.refused is not None:
        if accepted:
            yield "should be refused"
        elif case.refused not in lines[0]:
            yield "refused, but with: " + lines[0]
        return
    if not accepted:
        yield "should be accepted: " + lines[0]
        return
    if case.expected is not None:
        yield from difflib.unified_diff(case.expected, lines, "expected", "found", lineterm="", n=0)
    if case.count is not None and case.count != len(lines):
        yield "%d names, should be %d" % (len(lines), case.count)
    for line in case.holds:
        if line not in lines:
            near = [found for found in lines if found.split(" ")[0] == line.split(" ")[0]]
            yield "lacks %s%s" % (line, "; has " + near[0] if near else "")
    for path in case.lacks:
        if path in paths_of(lines):
            yield "has " + path
    if case.expected is None and case.count is None and not case.holds and not case.lacks:
        yield "says nothing about what is right"


def refresh(path, results):
    """Writes what was found into the file: under `expect`, or as `refuse`, where nothing stands yet."""
    with open(path, encoding="utf-8") as file:
        text = file.read().split("\n")
    for case, accepted, lines in reversed(results):
        if case.expect_at is None:
            continue
        at = case.expect_at
        end = at + len(case.expected)
        if accepted:
            text[at:end] = lines
        else:
            text[at - 1:end] = ['refuse "%s"' % lines[0].split(": ", 1)[-1].replace("\\", "\\\\").replace('"', '\\"')]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(text))


# ---- Layouts ----

def write_layout(case, where):
    blobs = os.path.join(where, "blobs", "sha256")
    os.makedirs(blobs)

    def put(data, digest=None):
        name = digest or "sha256:" + hashlib.sha256(data).hexdigest()
        with open(os.path.join(blobs, name.split(":")[1]), "wb") as file:
            file.write(data)
        return {"digest": name, "size": len(data)}

    layers, diff_ids = [], []
    for blob, about in case.build():
        diff_ids.append(about.pop("diff_id"))
        put(blob, about["digest"])
        layers.append(about)
    config = {"architecture": "amd64", "os": "linux", "config": {},
              "rootfs": {"type": "layers", "diff_ids": diff_ids}}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST,
                "config": dict(put(json.dumps(config).encode()), mediaType=CONFIG), "layers": layers}
    index = {"schemaVersion": 2, "manifests": [
        dict(put(json.dumps(manifest).encode()), mediaType=MANIFEST,
             annotations={"org.opencontainers.image.ref.name": "latest"})]}
    for name, data in (("index.json", index), ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
        with open(os.path.join(where, name), "w", encoding="ascii") as file:
            json.dump(data, file)


def write_cases(cases, top):
    for case in cases:
        where = os.path.join(top, case.name)
        write_layout(case, os.path.join(where, "oci"))
        with open(os.path.join(where, "case.json"), "w", encoding="utf-8") as file:
            json.dump({"name": case.name, "what": case.about, "outcome": "refuse" if case.refused else "ok"}, file)


# ---- umoci ----

def escape(data):
    return "".join(chr(b) if 0x21 <= b <= 0x7e and b != 0x5c else "\\x%02x" % b for b in data)


def describe(root):
    """A directory in the text form of a tree, without content."""
    lines, first = [], {}

    def visit(path, shown):
        info = os.lstat(path)
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
                 stat.S_IFCHR: "char", stat.S_IFBLK: "block"}
        kind = kinds[stat.S_IFMT(info.st_mode)]
        if kind != "dir" and info.st_nlink > 1:
            if info.st_ino in first:
                lines.append("%s link %s" % (escape(shown), escape(first[info.st_ino])))
                return
            first[info.st_ino] = shown
        seconds, nanoseconds = divmod(info.st_mtime_ns, 10 ** 9)
        line = "%s %s %04o %d:%d %d.%09d" % (escape(shown), kind, stat.S_IMODE(info.st_mode), info.st_uid,
                                             info.st_gid, seconds, nanoseconds)
        if kind == "file":
            line += " size=%d" % info.st_size
        if kind in ("char", "block"):
            line += " device=%d:%d" % (os.major(info.st_rdev), os.minor(info.st_rdev))
        if kind == "symlink":
            line += " target=" + escape(os.readlink(path))
        for name in sorted(os.listxattr(path, follow_symlinks=False), key=os.fsencode):
            line += " xattr=%s:%s" % (escape(os.fsencode(name)), os.getxattr(path, name, follow_symlinks=False).hex())
        lines.append(line)
        if kind == "dir":
            for name in sorted(os.listdir(path)):
                visit(os.path.join(path, name), shown.rstrip(b"/") + b"/" + name)

    visit(os.fsencode(root), b"/")
    return lines


def without_data(line):
    return line.split(" data=")[0]


def same_as_umoci(ours, theirs):
    """Differences, but for times of directories that no layer lists, which umoci takes from the clock."""
    def plain(line):
        return line.replace(" 0.000000000", " *") if " dir " in line else line

    found = {line.split(" ")[0]: line for line in theirs}
    fixed = []
    for line in ours:
        path = line.split(" ")[0]
        if " dir 0755 0:0 0.000000000" in line and path in found and " dir 0755 0:0 " in found[path]:
            found[path] = line
        fixed.append(plain(line))
    theirs = [plain(found[line.split(" ")[0]]) for line in theirs]
    return list(difflib.unified_diff(theirs, fixed, "umoci", "ours", lineterm="", n=0))


def run_umoci(case, ours, accepted, home):
    """(word, details): same, refuses, differs, both-refuse, accepts"""
    write_layout(case, os.path.join(home, "oci"))
    bundle = os.path.join(home, "bundle")
    done = subprocess.run(["umoci", "unpack", "--image", os.path.join(home, "oci") + ":latest", bundle],
                          capture_output=True, text=True, errors="replace", timeout=300, check=False)
    if done.returncode != 0:
        return ("refuses" if accepted else "both-refuse"), [done.stderr.strip()[-300:]]
    if not accepted:
        return "accepts", describe(os.path.join(bundle, "rootfs"))
    wrong = same_as_umoci([without_data(line) for line in ours], describe(os.path.join(bundle, "rootfs")))
    return ("differs" if wrong else "same"), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("GOLDEN_TREE", "build/tests/golden/golden_tree"))
    parser.add_argument("--only")
    parser.add_argument("--refresh", action="store_true")
    parser.add_argument("--umoci", action="store_true")
    parser.add_argument("--write", metavar="DIR")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    bad, total, counts, seen = 0, 0, {}, set()
    for path in options.files:
        results = []
        for case in read_cases(path):
            if options.only and case.name != options.only:
                continue
            if case.name in seen:
                raise Wrong("two cases are named " + case.name)
            seen.add(case.name)
            home = tempfile.mkdtemp(prefix="tb2-golden-")
            try:
                if options.write:
                    write_cases([case], options.write)
                    continue
                accepted, lines = run_reader(options.program, case, home)
                wrong = list(judge(case, accepted, lines))
                if options.umoci and case.umoci != "skip":
                    word, details = run_umoci(case, lines, accepted, home)
                    counts[word] = counts.get(word, 0) + 1
                    said = (case.umoci or "same").split(" ")[0] if accepted else (case.umoci or "both-refuse").split(" ")[0]
                    if word != said:
                        wrong += ["umoci: %s, not %s" % (word, said)] + details
            finally:
                subprocess.run(["rm", "-rf", home], check=True)
            results.append((case, accepted, lines))
            total += 1
            bad += bool(wrong)
            if wrong and not options.refresh:
                print("%s:%d: %s (%s)" % (path, case.line, case.name, case.about))
                for line in wrong[:40]:
                    print("    " + ascii(line)[1:-1])
        if options.refresh:
            refresh(path, results)
    if not options.write:
        print("%d cases, %d wrong" % (total, bad))
    if options.umoci:
        print("umoci: " + ", ".join("%d %s" % (count, word) for word, count in sorted(counts.items())))
    return 1 if bad or (not total and not options.write) else 0


if __name__ == "__main__":
    sys.exit(main())
