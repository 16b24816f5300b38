#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Remote stores in a real registry and behind a web server: published, read by others' tools, taken over."""

import functools
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need  # noqa: E402

TITLE = "org.opencontainers.image.title"


def totals(run):
    return next(event for event in run.events() if event["event"] == "run_finished")


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def published(bakery, url):
    """The first baker does all and publishes it; the second one does nothing."""
    first = bakery.bake("--remote", url, store="first").expect()
    sent = totals(first)["remote"]
    check(sent["templates_sent"] == 1 and sent["layers_sent"] == totals(first)["layers_ingested"], sent)
    second = bakery.bake("--remote", url, store="second").expect()
    check(second.outcomes() == {name: "unchanged" for name in first.outcomes()}, second.outcomes())
    check(totals(second)["layers_ingested"] == 0 and totals(second)["vm_tasks"] == 0, totals(second))
    check(totals(second)["remote"]["chunks_sent"] == 0, totals(second)["remote"])
    return next(iter(first.tasks().values()))["alias"]


def skopeo(bakery, reference):
    """What others make of the artifacts: a manifest, and blobs that are the store's files."""
    layer = bakery.facts["tasks"][0]["diff_ids"][0].split(":")[1]
    source = "docker://%s:layer-%s" % (reference, layer)
    raw = subprocess.run(["skopeo", "inspect", "--tls-verify=false", "--raw", source], check=True,
                         stdout=subprocess.PIPE).stdout
    manifest = json.loads(raw)
    check(manifest["artifactType"] == "application/vnd.tb2-bake.layer.v1", manifest)
    subprocess.run(["skopeo", "copy", "-q", "--src-tls-verify=false", source, "oci:%s:x" % bakery.path("copied")],
                   check=True)
    kinds = set()
    for blob in manifest["layers"]:
        data = read(bakery.path("copied", "blobs", "sha256"), blob["digest"].split(":")[1])
        check(len(data) == blob["size"] and hashlib.sha256(data).hexdigest() in blob["digest"], blob)
        kinds.add(blob["mediaType"].split(".")[-2])
        if blob["mediaType"] == "application/vnd.tb2-bake.file.v1":
            check(data == read(bakery.path("first"), blob["annotations"][TITLE]), blob)
    check(kinds == {"file", "chunks", "pack"}, kinds)


def chunks(bakery, store):
    return {name for _, _, files in os.walk(bakery.path(store, "chunks")) for name in files}


def used(bakery, url, alias, store):
    """A host that never baked runs it, and reads only what it needs."""
    run = bakery.tb2("run", "--remote", url, alias, "--", "cat", "/made-by", store=store).expect()
    check(run.out.startswith("e2e for"), run.out)
    check(chunks(bakery, store) < chunks(bakery, "first"), "it has read everything")


class Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


class Brief(Quiet):
    protocol_version = "HTTP/1.0"  # no connection outlives the server


class Far:
    """A store behind a web server, which can go away and come back at the same address."""

    def __init__(self, directory):
        self.handler = functools.partial(Brief, directory=directory)
        self.server, self.port = None, 0
        self.start()
        self.url = "http://127.0.0.1:%d" % self.port

    def start(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self.handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def read_device(device, offset):
    """Status of reading a block, by way of a client that knows nothing of us."""
    return subprocess.run(["qemu-io", "-r", "-f", "raw", "-c", "read -v %d 4096" % offset, "nbd://" + device],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=100).returncode


def attached(bakery, alias):
    """A disk whose chunks are elsewhere: read while that is away for a while, then fetched whole."""
    far = Far(bakery.path("first"))
    device = bakery.tb2("attach", "--remote", far.url, "--nbd-tcp", "127.0.0.1:0", alias, store="device").expect()
    device = device.out.strip()
    check(not device.endswith(":0"), device)
    other = bakery.tb2("attach", "--remote", "http://localhost:%d" % far.port, "--nbd-tcp", "127.0.0.1:0", alias,
                       store="device").expect(4)
    check("get their chunks from" in other.err, other.err)
    bakery.tb2("disk", "export", alias, "--raw", bakery.path("raw"), store="first").expect()
    far.stop()
    statuses = []
    reader = threading.Thread(target=lambda: statuses.append(read_device(device, 1 << 30)))
    reader.start()  # of the first layer's first chunk, unless the boot's trace has brought it
    far.start()
    reader.join()
    check(statuses == [0], statuses)
    bakery.tb2("detach", device, store="device").expect()
    whole = bakery.tb2("attach", "--remote", far.url, "--complete", "--nbd-tcp", "127.0.0.1:0", alias,
                       store="device").expect().out.strip()
    wanted = bakery.tb2("disk", "map", alias, "--json", store="first").expect()
    names = set(re.findall("sha256:([0-9a-f]{64})", wanted.out)) & chunks(bakery, "first")
    end = time.monotonic() + 60
    while not names <= chunks(bakery, "device"):
        check(time.monotonic() < end, "the disk is not completed")
        time.sleep(0.05)
    far.stop()
    subprocess.run(["qemu-img", "compare", "-f", "raw", "-F", "raw", bakery.path("raw"), "nbd://" + whole],
                   check=True, timeout=100)
    bakery.tb2("detach", whole, store="device").expect()


def booted(bakery, alias):
    """Its disk, booted elsewhere: what a boot read at the bake is there before it is asked for."""
    far = Far(bakery.path("first"))
    run = bakery.tb2("run", "--cold", "--remote", far.url, alias, "--", "cat", "/made-by", store="cold").expect()
    check(run.out.startswith("e2e for"), run.out)
    far.stop()
    record = json.loads(bakery.tb2("show", "--json", alias, store="cold").expect().out)
    check(record["boot_trace"] and record["restore_trace"], "the record has no traces")


def behind_web_server(bakery, alias):
    handler = functools.partial(Quiet, directory=bakery.path("first"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = "http://127.0.0.1:%d" % server.server_port
        used(bakery, url, alias, "web")
        bakery.tb2("remote", "pull", "--remote", url, alias, store="whole").expect()
        missing, other = sorted(chunks(bakery, "whole") - chunks(bakery, "web"))[:2]
        victim = bakery.path("first", "chunks", missing[:2], missing)
        good = read(victim)
        with open(victim, "wb") as out:
            out.write(read(bakery.path("first", "chunks", other[:2], other)))
        bad = bakery.tb2("remote", "pull", "--remote", url, alias, store="web").expect(3)
        check("sha256:" + missing in bad.err and "from the remote store" in bad.err, bad.err)
        with open(victim, "wb") as out:
            out.write(good)
        bakery.tb2("remote", "pull", "--remote", url, alias, store="web").expect()
        refused = bakery.tb2("remote", "push", "--remote", url, alias, store="web").expect(3)
        check("only read" in refused.err, refused.err)
        server.shutdown()
    bakery.tb2("verify", alias, store="web").expect()  # the web server is gone


def main():
    need("skopeo", "qemu-img", "qemu-io")
    with Bakery(tasks=1) as bakery:
        reference = "127.0.0.1:%d/shared/tb2" % bakery.facts["port"]
        alias = published(bakery, "oci://" + reference)
        skopeo(bakery, reference)
        used(bakery, "oci://" + reference, alias, "far")
        behind_web_server(bakery, alias)
        attached(bakery, alias)
        booted(bakery, alias)


main()
