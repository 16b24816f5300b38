# SPDX-License-Identifier: MIT
"""Images through the OverlayBD project's own tools, for tests/bench/ingest.py and tests/bench/convert.py.

$TB2_OVERLAYBD_TOOLS is the directory with overlaybd-create, overlaybd-apply and overlaybd-commit, built
from that project's sources (docs/benchmarks.md says which). As AgentENV calls them: a disk of 64 GiB,
mkfs with the first layer, layers one after another, each distinct chain of layers once, commits that
are not compressed. Decompression of the layers is not timed.
"""

import gzip
import hashlib
import json
import os
import resource
import subprocess
import time

DIRECTORY = os.environ.get("TB2_OVERLAYBD_TOOLS")


def read_blob(layout, descriptor):
    with open(os.path.join(layout, "blobs", *descriptor["digest"].split(":")), "rb") as file:
        return file.read()


def image_layers(layout, tag):
    with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
        index = {m["annotations"]["org.opencontainers.image.ref.name"]: m for m in json.load(file)["manifests"]}
    manifest = json.loads(read_blob(layout, index[tag]))
    while "manifests" in manifest:
        manifest = json.loads(read_blob(layout, next(m for m in manifest["manifests"]
                                                     if m.get("platform", {}).get("architecture") == "amd64")))
    return manifest["layers"]


def plain_tar(data):
    if data[:4] == b"\x28\xb5\x2f\xfd":
        return subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


class Tools:
    def __init__(self, work):
        self.work = work
        self.commits = {}  # chain of layers: committed file
        self.wall = self.cpu = 0.0
        os.makedirs(work)
        if not os.path.exists("/etc/overlaybd/overlaybd.json"):
            raise SystemExit("overlaybd-apply wants its default, /etc/overlaybd/overlaybd.json, to exist: any JSON object")
        self.service = os.path.join(work, "service.json")
        with open(self.service, "w", encoding="utf-8") as out:
            json.dump({"logConfig": {"logLevel": 3, "logPath": os.path.join(work, "log")},
                       "cacheConfig": {"cacheType": "file", "cacheDir": os.path.join(work, "cache"), "cacheSizeGB": 1},
                       "gzipCacheConfig": {"enable": False}, "ioEngine": 0, "enableAudit": False,
                       "credentialConfig": {"mode": "file", "path": os.path.join(work, "logins")},
                       "download": {"enable": False}}, out)
        with open(os.path.join(work, "logins"), "w", encoding="utf-8") as out:
            out.write('{"auths":{}}')

    def run(self, name, *words):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run([os.path.join(DIRECTORY, "overlaybd-" + name), *words], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        self.wall += time.monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode:
            raise SystemExit("overlaybd-%s: status %d\n%s%s" % (name, done.returncode, done.stdout, done.stderr))

    def layer(self, tar, lowers, commit):
        data, index, config = (os.path.join(self.work, name) for name in ("data", "index", "config.json"))
        self.run("create", "-s", data, index, "64")
        with open(config, "w", encoding="utf-8") as out:
            json.dump({"repoBlobUrl": "", "lowers": [{"file": lower} for lower in lowers],
                       "upper": {"data": data, "index": index}, "resultFile": os.path.join(self.work, "result")}, out)
        self.run("apply", "--service_config_path", self.service, *([] if lowers else ["--mkfs"]), tar, config)
        self.run("commit", data, index, commit)
        for path in (data, index, tar):
            os.unlink(path)

    def image(self, layout, tag):
        chain, lowers = "", []
        for descriptor in image_layers(layout, tag):
            chain = hashlib.sha256((chain + descriptor["digest"]).encode()).hexdigest()
            if chain not in self.commits:
                tar = os.path.join(self.work, "layer.tar")
                with open(tar, "wb") as out:
                    out.write(plain_tar(read_blob(layout, descriptor)))
                commit = os.path.join(self.work, chain)
                self.layer(tar, list(lowers), commit)
                self.commits[chain] = commit
            lowers.append(self.commits[chain])
