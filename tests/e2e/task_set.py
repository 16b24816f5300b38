#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The task set that all other end-to-end tests stand on is what it says, by the word of other tools."""

import json
import os
import subprocess
import sys
import tempfile
import tomllib

SUPPORT = os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support")
sys.path.insert(0, SUPPORT)
from bakery import check, need  # noqa: E402
from compare_trees import scan  # noqa: E402

need("skopeo", "umoci", "docker-registry", "zstd")


def tool(name, *arguments):
    return subprocess.run([os.path.join(SUPPORT, name), *arguments], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def make(out, port):
    tool("make_task_set.py", "--out", out, "--port", str(port))
    with open(out + "/set.json", encoding="utf-8") as file:
        return json.load(file)


def listing(top):
    """Bytes of every file of a layout and of the tasks."""
    found = {}
    for part in ("oci", "judge", "tasks"):
        for directory, _, names in os.walk(os.path.join(top, part)):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, top)] = file.read()
    return found


def skopeo(image):
    raw = subprocess.run(["skopeo", "inspect", "--tls-verify=false", "docker://" + image], check=True,
                         stdout=subprocess.PIPE).stdout
    return json.loads(raw)


def unpack(top, name):
    bundle = os.path.join(top, "bundle-" + name)
    mapped = [] if os.getuid() == 0 else ["--rootless"]
    subprocess.run(["umoci", "unpack", *mapped, "--image", top + "/judge:" + name, bundle], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return scan(os.path.join(bundle, "rootfs"))


def judge_trees(top):
    tools = "usr/lib/demo-tools/"
    words, links = unpack(top, "count-words"), unpack(top, "fix-links")
    logs, records = unpack(top, "rotate-logs"), unpack(top, "sort-records")
    check("usr/share/demo/old-0.txt" not in words and "usr/share/demo/new.txt" in words, "opaque directory")
    check(tools + "part-0/001.txt" not in words and tools + "part-0/001.txt" in links, "whiteout")
    check(links[tools + "extra"]["type"] == "symlink" and tools + "doomed" not in links, "directory replaced")
    check(logs[tools + "empty"]["type"] == "directory", "file replaced by a directory")
    check(logs["app/linked-to-lower"]["links"] == "app/linked-to-lower", "hard link to a lower layer")
    check(records[tools + "second-name"]["content"] != words[tools + "second-name"]["content"], "link broken")
    for tree in (words, links, logs, records):
        check("app/answer.txt" not in tree, "deleted answer")
        check(tree["usr/bin/demo-setuid"]["mode"] == "0o4755", "setuid")
        check(tree["opt/third-name"]["links"] == "opt/third-name", "hard-link group")
        if os.getuid() == 0:
            check("security.capability" in tree["usr/bin/demo-capable"]["xattrs"], "capability")


def main():
    with tempfile.TemporaryDirectory() as top:
        facts = make(top + "/a", 0)
        again = make(top + "/b", facts["port"])
        check(facts == again and listing(top + "/a") == listing(top + "/b"), "same arguments, other bytes")
        tool("registry.sh", "start", top + "/a", str(facts["port"]))
        try:
            for task in facts["tasks"]:
                seen = skopeo(task["image"])
                check(seen["Architecture"] == "amd64" and len(seen["Layers"]) == 4, "skopeo: %s" % seen)
                with open("%s/a/tasks/%s/task.toml" % (top, task["name"]), "rb") as file:
                    check(tomllib.load(file)["environment"]["docker_image"] == task["image"], "docker_image")
        finally:
            tool("registry.sh", "stop", top + "/a")
        judge_trees(top + "/a")


main()
