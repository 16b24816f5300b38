#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Templates pushed as plain images: what skopeo and umoci make of one is the baked disk, file for file."""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from bakery import Bakery, check  # noqa: E402
from compare_trees import differences, scan  # noqa: E402
from disks import mounted_tree, need_mounts, quiet, unpack  # noqa: E402
from template_server import KEY, Server  # noqa: E402

# Every kind of change that a layer can tell.
CHANGES = """\
name: changes
network: none
steps:
  - run: |
      set -e
      cd /usr/lib/demo-tools
      echo another > part-0/002.txt
      chmod 600 part-0/003.txt
      chown 7:8 part-0/004.txt
      touch -d '2001-02-03 04:05:06' part-0/005.txt
      rm part-0/006.txt
      mv part-0/007.txt part-0/moved.txt
      rm -r part-3
      rm -r part-4 && echo file > part-4
      rm part-5/200.txt && mkdir part-5/200.txt && echo in > part-5/200.txt/inside
      rm -r part-6 && ln -s part-0 part-6
      ln large.bin /opt/large-too
      echo apart > opt-tmp && cat first-name > opt-tmp2 && rm first-name && mv opt-tmp2 first-name
      rm opt-tmp
      ln -sfn /nowhere dangling
      printf x | dd of=large.bin bs=1 seek=1500000 conv=notrunc 2> /dev/null
      mkdir -p /srv/new/deep/er && echo deep > /srv/new/deep/er/file
      mkdir /srv/empty && chmod 1711 /srv/empty
      cp /bin/busybox /srv/tool && chmod 6755 /srv/tool
      mkfifo /srv/pipe && mknod /srv/device c 5 259 && mknod /srv/disk b 300 70000
      dd if=/dev/zero of=/srv/sparse bs=1 count=1 seek=50000000 2> /dev/null
      touch /srv/nothing
      d=/srv/$(printf '%0150d' 1); mkdir $d; echo long > $d/$(printf '%0200d' 2); ln $d/$(printf '%0200d' 2) $d/$(printf '%0201d' 3)
      ln -s /$(printf '%0300d' 4) /srv/far
      printf 'bytes' > "$(printf '/srv/b\\\\377d')"
      touch -d '1969-12-31 23:59:58' /srv/old
      chown 4000000:3000000 /srv/nothing
ready:
  command: "true"
"""

NOTHING = """\
name: nothing
network: none
ready:
  command: "true"
"""


def skopeo(*words):
    done = subprocess.run(["skopeo", *words], capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)
    return json.loads(done.stdout)


def disk_tree(bakery, what, name, store="store"):
    raw = bakery.path(name + ".raw")
    bakery.tb2("disk", "export", what, "--raw", raw, store=store).expect()
    quiet("e2fsck", "-fn", raw)
    tree = mounted_tree(raw, bakery.path("mount-" + name))
    os.unlink(raw)
    return tree


def compare(want, got, what, ignore=()):
    found = list(differences(want, got, ignore))
    check(not found, "%s, %d differences:\n%s" % (what, len(found), "\n".join(found[:50])))


def judge(bakery, alias, image, pushed, name):
    """The pushed image is the baked disk for umoci, and for us; the image's own layers are in it as they were."""
    want = disk_tree(bakery, alias, name)
    compare(want, scan(unpack(pushed.split("@")[0], bakery.home, bakery.path("bundle-" + name))), name + ", umoci")
    compare(want, disk_tree(bakery, pushed, name + "-back", store="far"), name + ", read back")
    before = skopeo("inspect", "--tls-verify=false", "docker://" + image)["Layers"]
    after = skopeo("inspect", "--tls-verify=false", "docker://" + pushed.split("@")[0])["Layers"]
    check(after[:-1] == before and len(after) == len(before) + 1, (before, after))
    return want


def push(bakery, *words):
    return json.loads(bakery.tb2("push", "--json", "--push-format", "oci", *words).expect().out)[0]


def documents(image, reference):
    old, new = (skopeo("inspect", "--config", "--raw", "--tls-verify=false", "docker://" + what)
                for what in (image, reference.split("@")[0]))
    check(new["config"].get("Cmd") == old["config"].get("Cmd"), new["config"])
    check(new["config"]["WorkingDir"] == old["config"]["WorkingDir"], new["config"])
    check(set(old["config"]["Env"]) <= set(new["config"]["Env"]), new["config"])
    check(new["rootfs"]["diff_ids"][:-1] == old["rootfs"]["diff_ids"], new["rootfs"])
    manifest = skopeo("inspect", "--raw", "--tls-verify=false", "docker://" + reference.split("@")[0])
    kinds = {layer["mediaType"] for layer in manifest["layers"]} | {manifest["config"]["mediaType"]}
    check(all(kind.startswith("application/vnd.oci.image.") for kind in kinds), kinds)


def all_changes(bakery, repository):
    """Each form of image of the set, with all changes; a second push makes and sends nothing."""
    baked = bakery.bake("--push", repository, "--push-format", "oci", recipe=CHANGES).expect().tasks()
    for number, task in enumerate(bakery.facts["tasks"]):
        result = baked[task["name"]]
        judge(bakery, result["alias"], task["image"], result["pushed"], task["name"])
        documents(task["image"], result["pushed"])
        again = push(bakery, result["alias"], repository)
        check(again["converted"] == again["sent"] == 0 and again["reference"] == result["pushed"], again)
        if number == 0:
            other = push(bakery, "--compression", "zstd", result["alias"], repository + ":zstd")
            judge(bakery, result["alias"], task["image"], other["reference"], "zstd")
    # A store that forgot what it made makes the same bytes again.
    for name in os.listdir(bakery.path("store", "pushed")):
        os.unlink(bakery.path("store", "pushed", name))
    fresh = push(bakery, result["alias"], repository)
    check(fresh["digest"] == again["digest"] and fresh["converted"] == 1 and fresh["sent"] == 0, fresh)
    return baked


def baked_again(bakery, pushed):
    """A bake from what was pushed, without steps, gives an equal disk. What a boot writes is the same each time."""
    images = bakery.path("images.txt")
    with open(images, "w", encoding="utf-8") as out:
        out.write(pushed + "\n")
    done = bakery.tb2("bake", "--images", images, "--all", "--recipe", bakery.recipe(NOTHING), "--json", store="far")
    (task,) = done.expect().tasks().values()
    compare(disk_tree(bakery, pushed, "pushed", store="far"), disk_tree(bakery, task["alias"], "again", store="far"),
            "baked again", ignore=["dirmtime"])
    # The template of a native image has no layers to begin with: all of it is in one.
    return task["alias"]


def from_native(bakery, repository, alias):
    native = json.loads(bakery.tb2("push", "--json", alias, repository + ":native").expect().out)[0]["reference"]
    images = bakery.path("native.txt")
    with open(images, "w", encoding="utf-8") as out:
        out.write(native + "\n")
    done = bakery.tb2("bake", "--images", images, "--all", "--recipe", bakery.recipe(NOTHING), "--json",
                      "--push", repository, "--push-format", "oci", store="far").expect()
    (task,) = done.tasks().values()
    want = disk_tree(bakery, task["alias"], "native", store="far")
    compare(want, scan(unpack(task["pushed"].split("@")[0], bakery.home, bakery.path("bundle-native"))), "of a native image")
    check(len(skopeo("inspect", "--tls-verify=false", "docker://" + task["pushed"].split("@")[0])["Layers"]) == 1, task)


def built_from_it(bakery, repository, name):
    """A template server that reads plain images alone begins with it, and runs no steps."""
    with Server() as server:
        server.setup()
        os.environ.update(E2B_API_URL=server.url, E2B_API_KEY=KEY)
        task = bakery.bake("--push", repository, "--push-format", "oci", "--builder", "local", recipe=CHANGES,
                           tasks=[name]).expect().tasks()[name]
        for variable in ("E2B_API_URL", "E2B_API_KEY"):
            del os.environ[variable]
        report = server.report()
        check(report["aliases"] == [task["alias"]] and not report["problems"], report)
        bodies = json.dumps(report["bodies"])
        check(task["pushed"] in bodies and "demo-tools" not in bodies, bodies)


def refusals(bakery, repository, alias):
    bad = bakery.tb2("push", "--push-format", "oci", "--compression", "lz4", alias, repository).expect(2)
    check("lz4" in bad.err and "gzip" in bad.err, bad.err)
    bad = bakery.tb2("push", "--compression", "gzip", alias, repository).expect(2)
    check("no gzip" in bad.err, bad.err)


def main():
    need_mounts()
    with Bakery(tasks=4) as bakery:
        repository = "127.0.0.1:%d/plain/tb2" % bakery.facts["port"]
        baked = all_changes(bakery, repository)
        name = bakery.facts["tasks"][0]["name"]
        baked_again(bakery, baked[name]["pushed"])
        from_native(bakery, repository, baked[name]["alias"])
        built_from_it(bakery, repository, name)
        refusals(bakery, repository, baked[name]["alias"])


main()
