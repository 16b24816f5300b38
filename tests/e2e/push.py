#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pushed disks: an independent reader gets back the very bytes, images share blobs, nothing is done twice."""

import hashlib
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from bakery import Bakery, check, need, skip  # noqa: E402

READER = os.path.join(HERE, "..", "support", "overlaybd_reader.py")
SAMPLES = os.path.join(HERE, "..", "data", "overlaybd")
TOP = "0d9be45576cfe88d0eade78c61ab6c74dcadd94b7f2292cf8033c87ebbc0c26f"

try:
    import lz4.block  # noqa: F401
    import zstandard  # noqa: F401
except ImportError:
    # Debian's modules are those of Debian's interpreter, which may not be the first one.
    if sys.executable == "/usr/bin/python3" or not os.path.exists("/usr/bin/python3"):
        skip("no python3-lz4 or python3-zstandard here")
    os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
import overlaybd_reader as reader  # noqa: E402
from template_server import KEY, Server  # noqa: E402


def samples(bakery):
    """The reader itself, on layers that the reference tools made."""
    for number, second in enumerate(("l2.lsmt", "l2.lz4.zfile", "l2.lz4.zfile.tar", "l2.zstd.zfile")):
        blobs, raw = [], bakery.path("sample-%d" % number)
        for name in ("l1.zstd.zfile", second):
            with open(os.path.join(SAMPLES, name), "rb") as file:
                blobs.append(file.read())
        reader.write_disk(blobs, raw)
        with open(raw, "rb") as file:
            check(hashlib.sha256(file.read()).hexdigest() == TOP, second)


def push(bakery, *words, store="store"):
    return json.loads(bakery.tb2("push", "--json", *words, store=store).expect().out)


def exported(bakery, what, name, store="store"):
    raw = bakery.path(name)
    bakery.tb2("disk", "export", what, "--raw", raw, store=store).expect()
    return reader.content(raw)


def judge(bakery, what, reference, name):
    """What comes back is the disk, byte for byte, for two readers. Returns manifest and config."""
    want = exported(bakery, what, name + ".want")
    raw = bakery.path(name + ".read")
    manifest, config = reader.read_image(reference.split("@")[0], raw)
    check(reader.content(raw) == want, "%s: the reader got something else" % what)
    done = subprocess.run(["e2fsck", "-fn", raw], capture_output=True, text=True)
    check(done.returncode == 0, done.stdout[-2000:])
    check(exported(bakery, reference, name + ".back", store="far") == want, "%s: we read something else" % what)
    for end in (".want", ".read", ".back"):
        os.unlink(bakery.path(name + end))
    return manifest, config


def blobs_there(bakery):
    top = os.path.join(bakery.set, "registry", "docker", "registry", "v2", "blobs", "sha256")
    return {name for prefix in os.listdir(top) for name in os.listdir(os.path.join(top, prefix))}


def digests(manifest):
    return [layer["digest"].split(":")[1] for layer in manifest["layers"]]


def images(bakery, repository):
    """Two images of one base: the layers of the base are there once, the last ones are their own."""
    tasks = bakery.facts["tasks"][:2]
    before = blobs_there(bakery)
    done = [push(bakery, task["image"], "%s:%s" % (repository, task["name"]))[0] for task in tasks]
    manifests = [judge(bakery, task["image"], one["reference"], task["name"])[0]
                 for task, one in zip(tasks, done)]
    first, second = (digests(manifest) for manifest in manifests)
    shared = set(first) & set(second)
    check(shared and first[0] == second[0] and first[-1] != second[-1], (first, second))
    # Layers, a config each, a manifest each, and nothing else.
    new = blobs_there(bakery) - before
    check(len(new) == len(set(first) | set(second)) + 4, "%d new blobs" % len(new))
    check(done[1]["layers"] - done[1]["sent"] == len(shared), done)
    return tasks


def nothing_twice(bakery, repository, task):
    seen = len(bakery.requests())
    again = push(bakery, task["image"], "%s:again" % repository)[0]
    check(again["converted"] == again["sent"] == again["mounted"] == 0, again)
    writes = [path for method, path in bakery.requests()[seen:] if method in ("POST", "PATCH")]
    check(not writes, writes)
    other = push(bakery, task["image"], repository + "-other")[0]
    check(other["converted"] == other["sent"] == 0 and other["mounted"] == other["layers"], other)
    check(other["digest"] == again["digest"], (other, again))
    # A store that has nothing makes the same bytes; LZ4 makes others, and they are the disk as well.
    fresh = push(bakery, task["image"], "%s:fresh" % repository, store="far")[0]
    check(fresh["digest"] == again["digest"] and fresh["sent"] == 0, fresh)
    lz4_image = push(bakery, "--compression", "lz4", "--block-size", "4", task["image"], "%s:lz4" % repository)[0]
    check(lz4_image["digest"] != again["digest"], lz4_image)
    judge(bakery, task["image"], lz4_image["reference"], "lz4")


def plain(bakery, repository, task):
    """--push-format oci: the same image, in another place."""
    done = push(bakery, "--push-format", "oci", task["image"], "%s-plain:copy" % repository)[0]
    source = subprocess.run(["skopeo", "inspect", "--tls-verify=false", "docker://" + task["image"]],
                            capture_output=True, text=True)
    ours = subprocess.run(["skopeo", "inspect", "--tls-verify=false", "docker://%s-plain:copy" % repository],
                          capture_output=True, text=True)
    check(source.returncode == 0 and ours.returncode == 0, source.stderr + ours.stderr)
    check(json.loads(source.stdout)["Layers"] == json.loads(ours.stdout)["Layers"], ours.stdout)
    check(done["mounted"] + done["sent"] == done["layers"], done)
    bakery.tb2("image", "diff", task["image"], done["reference"]).expect()


def in_files(bakery, reference, want):
    """A native image out of a layout."""
    layout = "oci:%s:x" % bakery.path("layout")
    subprocess.run(["skopeo", "copy", "-q", "--preserve-digests", "--src-tls-verify=false", "docker://" + reference.split("@")[0], layout],
                   check=True)
    check(exported(bakery, layout, "layout.raw", store="files") == want, "a layout gives something else")
    blob = max((os.path.join(bakery.path("layout", "blobs", "sha256"), name)
                for name in os.listdir(bakery.path("layout", "blobs", "sha256"))), key=os.path.getsize)
    with open(blob, "r+b") as file:
        file.seek(5000)
        byte = file.read(1)
        file.seek(5000)
        file.write(bytes([byte[0] ^ 1]))
    bad = bakery.tb2("disk", "export", layout, "--raw", bakery.path("bad.raw"), store="worse").expect(3)
    check("does not match its digest" in bad.err, bad.err)
    check(not os.path.exists(bakery.path("bad.raw")), "a bad disk was written")


def built_from_push(bakery, repository, name):
    """A template server begins with what was pushed, and runs no steps."""
    with Server() as server:
        server.setup()
        os.environ.update(E2B_API_URL=server.url, E2B_API_KEY=KEY)
        task = bakery.bake("--push", repository, "--builder", "local", tasks=[name]).expect().tasks()[name]
        for variable in ("E2B_API_URL", "E2B_API_KEY"):
            del os.environ[variable]
        report = server.report()
        check(report["aliases"] == [task["alias"]] and not report["problems"], report)
        bodies = json.dumps(report["bodies"])
        check(task["pushed"] in bodies and "MADE_BY" not in bodies, bodies)


def template(bakery, repository):
    """A baked one: what the steps wrote is on it, and its environment is in the config."""
    name = bakery.facts["tasks"][0]["name"]
    baked = bakery.bake("--push", repository, tasks=[name]).expect()
    task = baked.tasks()[name]
    reference = "%s:%s" % (repository, task["alias"])
    check(task["pushed"].startswith(reference + "@sha256:"), task)
    _, config = judge(bakery, task["alias"], reference, "template")
    check(config["config"]["Env"] and config["os"] == "linux", config)
    again = bakery.bake("--push", repository, tasks=[name]).expect().tasks()[name]
    check(again["outcome"] == "unchanged" and again["pushed"] == task["pushed"], again)
    built_from_push(bakery, repository, name)
    in_files(bakery, reference, exported(bakery, task["alias"], "alias.raw"))
    return task["alias"]


def refusals(bakery, repository, alias):
    bad = bakery.tb2("push", "--offline", alias, repository).expect(2)
    check("--offline" in bad.err, bad.err)
    bad = bakery.tb2("push", alias, "oci:/tmp/x").expect(2)
    check("not a repository" in bad.err, bad.err)
    bad = bakery.tb2("push", "no-such-alias", repository).expect(3)
    check("no-such-alias" in bad.err, bad.err)


def main():
    need("e2fsck", "skopeo")
    with Bakery(tasks=2) as bakery:
        samples(bakery)
        repository = "127.0.0.1:%d/pushed/tb2" % bakery.facts["port"]
        tasks = images(bakery, repository)
        nothing_twice(bakery, repository, tasks[0])
        plain(bakery, repository, tasks[0])
        alias = template(bakery, repository)
        refusals(bakery, repository, alias)


main()
