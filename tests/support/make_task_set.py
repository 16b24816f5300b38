#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes a small real task set and puts its images into a real registry.

  make_task_set.py --out DIR [--port P] [--tasks N] [--bulk-mb MB]

DIR/tasks      a directory a task, in the shape of Terminal-Bench 2
DIR/registry   storage of docker-registry, filled by pushing to one (registry.sh serves it)
DIR/oci        the same images as an OCI layout, tagged by task
DIR/judge      the same trees once more, as plain OCI manifests that every tool can unpack
DIR/set.json   what was made

With --bulk-mb, each image has so many MB more that do not compress: half in a layer of a few images, half its own.
Task.toml files name 127.0.0.1:P; port 0 takes a free one. The same arguments and Debian packages
(busybox-static, zstd) give the same bytes.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
from oci_image import DOCKER, OCI, Layer, Pusher, Store, digest, write_layout  # noqa: E402

TAG = "20251031"
NAMES = ["count-words", "fix-links", "rotate-logs", "sort-records"]
BULK_SHARED = 12
CAP_NET_RAW = bytes.fromhex("0100000200200000000000000000000000000000")  # vfs_cap_data, revision 2
# Three texts that must never be found on a disk; those of tests and solution in nothing that a store holds.
WITHHELD = {"tests": "tb2-demo-withheld-test", "solution": "tb2-demo-withheld-solution",
            "deleted": "tb2-demo-deleted-from-image"}


def text(seed, length):
    """`length` bytes of lines that look different for every seed."""
    return hashlib.shake_256(seed.encode()).hexdigest(length // 2 + 1)[:length].encode()


def busybox():
    for path in ("/bin/busybox", "/usr/bin/busybox"):
        if os.path.exists(path):
            with open(path, "rb") as file:
                data = file.read()
            applets = subprocess.run([path, "--list"], check=True, capture_output=True, text=True).stdout.split()
            if b"/lib64/ld-linux" in data[:4096]:
                raise SystemExit("%s is not static: install busybox-static" % path)
            return data, sorted(set(applets) - {"busybox"})
    raise SystemExit("no busybox: install busybox-static")


def base_layer():
    layer = Layer()
    for path in ("dev", "etc", "home", "opt", "proc", "run", "srv", "sys", "usr", "usr/bin", "usr/lib",
                 "usr/sbin", "usr/share", "usr/share/demo", "var", "var/lib", "var/log"):
        layer.directory(path)
    layer.directory("root", 0o700)
    for path in ("tmp", "var/tmp"):
        layer.directory(path, 0o1777)
    for name in ("bin", "lib", "sbin"):
        layer.symlink(name, "usr/" + name)
    program, applets = busybox()
    layer.file("usr/bin/busybox", program, 0o755)
    for applet in applets:
        layer.symlink("usr/bin/" + applet, "busybox")
    layer.file("etc/os-release", 'PRETTY_NAME="tb2 demo"\nNAME="tb2 demo"\nID=tb2demo\nVERSION_ID="1"\n')
    layer.file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n")
    layer.file("etc/group", "root:x:0:\nagent:x:1000:\n")
    layer.file("etc/shadow", "root:*:20000:0:99999:7:::\n", 0o640, owner=(0, 42))
    layer.file("etc/hosts", "127.0.0.1 localhost\n")
    layer.directory("home/agent", 0o750, owner=(1000, 1000))
    for i in range(8):
        layer.file("usr/share/demo/old-%d.txt" % i, text("old %d" % i, 900 + i))
    return layer.finish()


def tools_layer():
    layer = Layer()
    home = "usr/lib/demo-tools"
    layer.directory(home)
    for i in range(320):
        if i % 40 == 0:
            layer.directory("%s/part-%d" % (home, i // 40))
        layer.file("%s/part-%d/%03d.txt" % (home, i // 40, i), text("tool %d" % i, i * 397 % 16000),
                   owner=(i % 3, i % 5), mtime="%d.%09d" % (1700000000 + i, i * 1234567))
    layer.file(home + "/large.bin", text("large", 1 << 20) + bytes(1 << 20) + text("tail", (1 << 20) + 77))
    layer.file(home + "/empty", b"")
    layer.file(home + "/first-name", "one inode, three names\n")
    layer.hardlink(home + "/second-name", home + "/first-name")
    layer.hardlink("opt/third-name", home + "/first-name")
    layer.symlink(home + "/relative", "../demo-tools/first-name")
    layer.symlink(home + "/absolute", "/etc/os-release")
    layer.symlink(home + "/dangling", "nowhere/at/all")
    layer.symlink(home + "/long-target", "/".join(["a-rather-long-component"] * 8))
    layer.file("usr/bin/demo-setuid", "#!/bin/sh\nid -u\n", 0o4755)
    layer.file("usr/bin/demo-setgid", "#!/bin/sh\nid -g\n", 0o2755, owner=(0, 42))
    layer.file("usr/bin/demo-capable", "#!/bin/sh\necho capable\n", 0o755,
               xattrs={"security.capability": CAP_NET_RAW})
    layer.fifo(home + "/pipe", 0o620)
    layer.file(home + "/name with blanks.txt", "blanks\n")
    layer.file(home + "/na\u00efve-\u6587.txt", "beyond ASCII\n")
    layer.file(home + "/" + "long-name-" * 20 + "end", "a name of 203 bytes\n")
    layer.directory(home + "/extra")
    layer.file(home + "/extra/inside.txt", "hidden once the directory becomes a link\n")
    layer.directory(home + "/doomed")
    layer.file(home + "/doomed/gone.txt", "removed with its directory\n")
    return layer.finish()


def task_layers(name, kind):
    """What the task adds; each kind does other things to the layers below it."""
    layer = Layer()
    tools = "usr/lib/demo-tools"
    layer.directory("app", owner=(1000, 1000))
    for i in range(6):
        layer.file("app/data-%d.txt" % i, text("%s %d" % (name, i), 3000 * (i + 1)), owner=(1000, 1000))
    layer.file("app/table.bin", text(name + " table", 150000 + 1000 * kind))
    layer.file("app/same.bin", text("the same in every task", 200000))
    layer.file("app/answer.txt", WITHHELD["deleted"] + " " + name + "\n")
    if kind == 0:
        layer.whiteout(tools + "/part-0/001.txt")
        layer.directory("usr/share/demo")
        layer.opaque("usr/share/demo")
        layer.file("usr/share/demo/new.txt", "all that is left here\n")
    elif kind == 1:
        layer.symlink(tools + "/extra", "/opt")
        layer.whiteout(tools + "/doomed")
    elif kind == 2:
        layer.directory(tools + "/empty", 0o711)
        layer.file(tools + "/empty/now-a-directory.txt", "a file became a directory\n")
        layer.hardlink("app/linked-to-lower", tools + "/part-1/041.txt")
    else:
        layer.file(tools + "/second-name", "no longer the inode of its siblings\n")
        layer.directory(tools + "/part-2", 0o2770, owner=(1000, 42))
    second = Layer()
    second.whiteout("app/answer.txt")
    if kind == 3:
        second.whiteout("app/data-0.txt")
        second.file("app/data-1.txt", "written over\n")
    return [layer.finish(), second.finish()]


def bulk_layer(seed, size):
    layer = Layer()
    layer.file("opt/bulk-%s.bin" % seed, hashlib.shake_256(seed.encode()).digest(size))
    return layer.finish()


def bulk_layers(name, number, size):
    """Layers that make an image larger: one that every BULK_SHARED-th image has, and one of the task's own."""
    if not size:
        return []
    return [bulk_layer("shared-%d" % (number % BULK_SHARED), size // 2), bulk_layer(name, size // 2)]


def image(store, name, kind, tars):
    """The task's image in one of four forms; returns its descriptor."""
    config = {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEMO_TASK=" + name], "WorkingDir": "/app",
              "Cmd": ["/bin/sh"]}
    if kind == 0:
        other = Layer()
        other.file("etc/os-release", 'PRETTY_NAME="the wrong platform"\n')
        arm = store.manifest(DOCKER, [other.finish()], "gzip", {}, "arm64")
        amd = store.manifest(DOCKER, tars, "gzip", config)
        return store.index(DOCKER, [
            dict(arm, platform={"architecture": "arm64", "os": "linux", "variant": "v8"}),
            dict(amd, platform={"architecture": "amd64", "os": "linux"})])
    if kind == 1:
        amd = store.manifest(OCI, tars, "zstd", config)
        return store.index(OCI, [dict(amd, platform={"architecture": "amd64", "os": "linux"}),
                                 store.attestation(amd)])
    return store.manifest(OCI, tars, "plain" if kind == 2 else "gzip", config)


NEW_SPELLING = """\
schema_version = "1.1"

[task]
name = "demo/{name}"
description = "Stand-in task of the demo set."
keywords = ["demo"]
[[task.authors]]
name = "tb2-bake"
email = "demo@example.com"

[metadata]
difficulty = "easy"
tags = ["demo", "generated",]

[verifier]
timeout_sec = 900.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
docker_image = "{image}"
cpus = 1
memory_mb = 2048
storage_mb = 10240
gpus = 0
allow_internet = false
mcp_servers = []

[environment.env]
DEMO_SET = "new spelling"
"""

OLD_SPELLING = """\
version = "1.0"

[metadata]
author_name = "tb2-bake"
author_email = "demo@example.com"
difficulty = "easy"
tags = [ "demo", "generated",]

[verifier]
timeout_sec = 900.0

[agent]
timeout_sec = 900.0

[environment]
build_timeout_sec = 600.0
docker_image = "{image}"  # an older key spelling
cpus = "1"
memory = "2G"
storage = "10G"
"""


def write(path, content, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(content)
    os.chmod(path, mode)


def write_task(directory, name, kind, image_name):
    home = os.path.join(directory, name)
    spelling = OLD_SPELLING if kind % 2 else NEW_SPELLING
    write(home + "/task.toml", spelling.format(name=name, image=image_name))
    write(home + "/instruction.md", "Print the number of lines of every file below /app, largest first.\n")
    write(home + "/environment/Dockerfile", "FROM scratch\nCOPY app /app\nWORKDIR /app\n")
    write_scripts(home, name, kind)


# What each kind of task does with its verdict.
VERDICTS = ["mkdir -p /logs/verifier; echo $reward > /logs/verifier/reward.txt",
            "exit $((1 - reward))",
            "echo '{\"reward\": '$reward', \"checks\": {\"made\": 3}}' > /logs/verifier/reward.json",
            "printf '%s.0\\n' $reward > /logs/verifier/reward.txt; exit 3"]
SOLUTION = """\
#!/bin/sh
# {marker}
set -e
. /solution/lib/names.sh
wc -l /app/data-*.txt | sort -rn > "$answer"
echo 0 > /logs/verifier/reward.txt  # only what the tests write counts
"""
TESTS = """\
{first}# {marker}
# The answer is there and the image's own files are what they were.
reward=1
say() {{ echo "FAIL: $*"; reward=0; }}
[ "$PWD" = /app ] || say "not in the image's directory"
[ -x /tests/deep/er/check ] && [ -L /tests/sums ] || say "the tests are not whole"
[ "$(/tests/deep/er/check)" = checked ] || say "helper"
[ "$(wc -l < /app/answer-of-the-agent.txt)" -ge 6 ] || say "no answer"
sha256sum -c -s /tests/sums || say "a file of the image is another"
[ $reward = 0 ] || echo PASS
{verdict}
"""


def write_scripts(home, name, kind):
    """The task's own solution and tests, which no bake may look at."""
    write(home + "/solution/lib/names.sh", "answer=/app/answer-of-the-agent.txt\n")
    write(home + "/solution/solve.sh", SOLUTION.format(marker=WITHHELD["solution"]), 0o755)
    # The last kind has neither mode nor interpreter: a harness runs it all the same.
    write(home + "/tests/test.sh", TESTS.format(first="" if kind == 3 else "#!/bin/sh\n", marker=WITHHELD["tests"],
                                                verdict=VERDICTS[kind]), 0o644 if kind == 3 else 0o755)
    write(home + "/tests/deep/er/check", "#!/bin/sh\necho checked\n", 0o755)
    table = hashlib.sha256(text(name + " table", 150000 + 1000 * kind)).hexdigest()
    write(home + "/tests/deep/sums.txt", "%s  /app/table.bin\n" % table)
    if not os.path.islink(home + "/tests/sums"):
        os.symlink("deep/sums.txt", home + "/tests/sums")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--bulk-mb", type=float, default=0)
    options = parser.parse_args()
    out = os.path.abspath(options.out)
    registry = os.path.join(HERE, "registry.sh")
    subprocess.run([registry, "stop", out], check=True)
    for part in ("tasks", "registry", "oci", "judge"):
        shutil.rmtree(os.path.join(out, part), ignore_errors=True)

    store, images, judge, made = Store(), {}, {}, []
    names = NAMES + ["demo-task-%02d" % i for i in range(len(NAMES), options.tasks)]
    base, tools = base_layer(), tools_layer()
    for i, name in enumerate(names[:options.tasks]):
        tars = [base, tools] + bulk_layers(name, i, int(options.bulk_mb * 1e6)) + task_layers(name, i % 4)
        images[name] = image(store, name, i % 4, tars)
        judge[name] = store.manifest(OCI, tars, "plain", {})
        made.append({"name": name, "diff_ids": [digest(tar) for tar in tars],
                     "digest": images[name]["digest"]})
    write_layout(os.path.join(out, "oci"), store, images)
    write_layout(os.path.join(out, "judge"), store, judge)

    port = int(subprocess.run([registry, "start", out, str(options.port)], check=True,
                              stdout=subprocess.PIPE, text=True).stdout)
    try:
        pusher = Pusher(port)
        for i, task in enumerate(made):
            repository = "demo/" + task["name"]
            task["image"] = "127.0.0.1:%d/%s:%s" % (port, repository, TAG)
            pusher.push(store, images[task["name"]], repository, TAG)
            write_task(os.path.join(out, "tasks"), task["name"], i % 4, task["image"])
    finally:
        subprocess.run([registry, "stop", out], check=True)
    write(os.path.join(out, "set.json"), json.dumps(
        {"port": port, "tasks": made, "withheld": WITHHELD}, indent=2) + "\n")
    print("%d tasks in %s, registry port %d" % (len(made), out, port))


if __name__ == "__main__":
    main()
