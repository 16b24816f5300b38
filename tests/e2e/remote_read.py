#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Remote stores in a real registry and behind a web server: published, read by others' tools, taken over."""

import functools
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading

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
    need("skopeo")
    with Bakery(tasks=1) as bakery:
        reference = "127.0.0.1:%d/shared/tb2" % bakery.facts["port"]
        alias = published(bakery, "oci://" + reference)
        skopeo(bakery, reference)
        used(bakery, "oci://" + reference, alias, "far")
        behind_web_server(bakery, alias)


main()
