#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Grafts: laid over several images at assembly, read once; owner and mode; what is there stays; late ones by the agent;
what an edited one makes run again."""

import io
import json
import os
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need  # noqa: E402
from disks import export, mounted_tree, quiet  # noqa: E402

need("e2fsck", "mount")
TASKS = ["count-words", "fix-links"]


def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)
    os.chmod(path, mode)


def make_directory(bakery, name, files):
    top = bakery.path(name)
    for path, text in files.items():
        write(os.path.join(top, path), text, 0o755 if path.endswith(".sh") else 0o644)
    return top


def make_tarball(bakery):
    """Owners, a hard link, a link, a sparse-looking file larger than a chunk."""
    path = bakery.path("graft.tar.gz")
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        def add(name, data=b"", kind=tarfile.REGTYPE, **more):
            info = tarfile.TarInfo(name)
            info.type, info.size, info.mtime, info.uid, info.gid = kind, len(data), 1e9, 12, 34
            for key, value in more.items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(data))
        add("./", kind=tarfile.DIRTYPE, mode=0o700)
        add("bin", kind=tarfile.DIRTYPE, mode=0o750)
        add("bin/tool", b"#!/bin/sh\necho tool\n", mode=0o4755)
        add("bin/same", kind=tarfile.LNKTYPE, linkname="bin/tool")
        add("bin/link", kind=tarfile.SYMTYPE, linkname="tool")
        add("big", bytes(range(256)) * 4096 * 3)
    return path


def recipe(bakery, early="early", late="late", more=""):
    return """\
name: grafts
network: none
steps:
  - graft: {directory: %s, at: /}
  - graft: {tarball: %s, at: /opt/tar}
  - graft: {tarball: %s, at: /opt/owned, owner: '7:8', mode: '0640'}
  - graft: {image: 'oci:%s/judge:sort-records', at: /opt/image}
%s  - run: 'echo run 1; /opt/tar/bin/tool > /ran'
  - graft: {directory: %s, at: /opt/late, mode: '0600'}
  - graft: {tarball: %s, at: /opt/late-tar, owner: root}
ready: test -s /ran && test -e /opt/late/file
""" % (bakery.path(early), bakery.path("graft.tar.gz"), bakery.path("graft.tar.gz"), bakery.set, more,
       bakery.path(late), bakery.path("graft.tar.gz"))


def ran(run):
    return [event["text"] for event in run.events() if event["event"] == "output"]


def layers(bakery):
    return set(os.listdir(bakery.path("store", "layers")))


def look(tree, path):
    check(path in tree, "%s is not there: %s" % (path, sorted(tree)[:40]))
    return tree[path]


def judge_tree(bakery, name, alias):
    raw = bakery.path(name + ".raw")
    export(bakery, alias, raw)
    quiet("e2fsck", "-fn", raw)
    tree = mounted_tree(raw, bakery.path("mount-" + name))
    os.unlink(raw)
    for path, mode, owner in (("opt/graft.sh", "0o755", "0:0"), ("etc/graft.conf", "0o644", "0:0"),
                              ("opt/tar/bin", "0o750", "12:34"), ("opt/tar/bin/tool", "0o4755", "12:34"),
                              ("opt/owned/bin", "0o750", "7:8"), ("opt/owned/bin/tool", "0o640", "7:8"),
                              ("opt/late/file", "0o600", "0:0"), ("opt/late-tar/bin/tool", "0o4755", "0:0"),
                              ("opt/tar", "0o755", "0:0"), ("opt/late-tar", "0o755", "0:0")):
        facts = look(tree, path)
        check(facts["mode"] == mode and facts["owner"] == owner, "%s: %s" % (path, facts))
    for top in ("opt/tar", "opt/owned", "opt/late-tar"):
        check(look(tree, top + "/bin/link")["target"] == "tool", tree[top + "/bin/link"])
        check(look(tree, top + "/bin/same")["links"] == tree[top + "/bin/tool"]["links"], tree[top + "/bin/same"])
        check(tree[top + "/big"]["content"] == tree["opt/tar/big"]["content"], top)
    check(tree["opt/tar/big"]["size"] == 3 << 20, tree["opt/tar/big"])
    # The graft over the root: what the image has there is still there.
    look(tree, "etc/os-release")
    check(look(tree, "opt/image/etc/os-release")["content"] == tree["etc/os-release"]["content"], "the grafted image")
    return tree


def laid_over_all(bakery):
    text = recipe(bakery)
    bakery.bake(tasks=TASKS).expect()  # the images' own layers, and sort-records is ingested below
    before = layers(bakery)
    first = bakery.bake(recipe=text, tasks=TASKS[:1]).expect()
    between = layers(bakery)
    second = bakery.bake(recipe=text, tasks=TASKS[1:]).expect()
    check(layers(bakery) == between, "the second image read grafts again: %s" % (layers(bakery) - between))
    # Four grafts of one layer, and for each layer of the grafted image one; these may be new, too.
    new = between - before
    with open(os.path.join(bakery.set, "judge", "index.json"), encoding="utf-8") as file:
        check(json.load(file), "no index")
    check(len(new) >= 4, new)
    for run, name in ((first, TASKS[0]), (second, TASKS[1])):
        alias = run.tasks()[name]["alias"]
        judge_tree(bakery, name, alias)
        asked = bakery.tb2("run", alias, "--", "sh", "-c", "cat /ran /etc/graft.conf; ls /opt/image/bin | wc -l").expect()
        check(asked.out.split()[:2] == ["tool", "conf"], asked.out)
    return second


def edited(bakery):
    make_directory(bakery, "late2", {"file": "other\n"})
    late = bakery.bake(recipe=recipe(bakery, late="late2"), tasks=TASKS[1:]).expect()
    check(ran(late) == [], "a late graft was edited, and a step ran: %s" % ran(late))
    alias = late.tasks()[TASKS[1]]["alias"]
    check(bakery.tb2("run", alias, "--", "cat", "/opt/late/file").expect().out == "other\n", "the old one")
    gets = bakery.blob_gets()
    make_directory(bakery, "early2", {"etc/graft.conf": "new\n", "opt/graft.sh": "#!/bin/sh\n"})
    early = bakery.bake(recipe=recipe(bakery, early="early2"), tasks=TASKS[1:]).expect()
    finished = [event for event in early.events() if event["event"] == "run_finished"][0]
    check(finished["layers_ingested"] == 0 and bakery.blob_gets() == gets, "layers were ingested again: %s" % finished)
    check(ran(early) == ["run 1"], ran(early))


def refused(bakery):
    make_directory(bakery, "clash", {"etc": "a file\n"})
    run = bakery.bake(recipe=recipe(bakery, early="clash"), tasks=TASKS[1:]).expect(1)
    task = run.tasks()[TASKS[1]]
    check(task["stage"] == "assemble" and "would replace a directory" in task["error"], task)
    lost = bakery.bake(recipe=recipe(bakery, early="no-such"), tasks=TASKS[1:])
    check(lost.status != 0 and "no-such" in lost.err, lost.err)


def main():
    with Bakery(tasks=4) as bakery:
        make_directory(bakery, "early", {"etc/graft.conf": "conf\n", "opt/graft.sh": "#!/bin/sh\n",
                                         "usr/share/demo/graft": "x\n"})
        make_directory(bakery, "late", {"file": "late\n", "deep/er/file": "y\n"})
        make_tarball(bakery)
        laid_over_all(bakery)
        edited(bakery)
        refused(bakery)
        bakery.tb2("store", "gc", "--grace", "0s").expect()
        bakery.tb2("store", "fsck").expect()
        check(not bakery.machines() and not bakery.leftovers(), "something was left behind")


main()
