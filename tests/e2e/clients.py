#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Real clients agree: what skopeo, umoci and buildah push comes back as the tree that they unpack,
from the registry and from archives; and what was seen once is found again without a network."""

import gzip
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check, need, skip  # noqa: E402
from compare_trees import differences, scan  # noqa: E402

need("skopeo", "umoci", "buildah", "mount")

TASK = "fix-links"


def quiet(*command):
    done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, capture_output=True)
    check(done.returncode == 0, "%s: status %d\n%s\n%s" % (
        " ".join(command), done.returncode, done.stdout[-2000:], done.stderr[-2000:]))
    return done.stdout.strip()


class Clients:
    """The programs, with the files of one bakery."""

    def __init__(self, bakery):
        self.bakery = bakery
        self.host = "127.0.0.1:%d" % bakery.facts["port"]
        self.layout = bakery.path("layout")
        shutil.copytree(os.path.join(bakery.set, "judge"), self.layout)

    def skopeo(self, source, target, *options):
        quiet("skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false",
              *options, source, target)

    def push(self, source, name, *options):
        """Pushes with skopeo; returns the reference."""
        reference = "%s/clients/%s" % (self.host, name)
        self.skopeo(source, "docker://" + reference, *options)
        return reference

    def buildah(self, *words):
        return quiet("buildah", "--root", self.bakery.path("buildah"), "--runroot", self.bakery.path("buildah-run"),
                     "--storage-driver", "vfs", *words)

    def tree(self, reference, *options, store="store"):
        return self.bakery.tb2("image", "tree", reference, *options, store=store).expect().out


def same_bytes(bakery, a, b):
    """Both trees are the same, content included; the stores of both references are empty."""
    bakery.tb2("image", "diff", a, b, store="looking").expect()


def judge(clients, reference, rootfs, name):
    """The disk of the image, mounted, is what the client has unpacked."""
    bakery = clients.bakery
    raw, mount = bakery.path(name + ".raw"), bakery.path("mount-" + name)
    bakery.tb2("disk", "export", reference, "--raw", raw).expect()
    os.mkdir(mount)
    quiet("mount", "-o", "loop,ro,noload", raw, mount)
    try:
        ours = scan(mount, skip=["lost+found"])
    finally:
        quiet("umount", mount)
    os.unlink(raw)
    theirs = scan(rootfs)
    for tree in (ours, theirs):
        tree["."].pop("dirmtime"), tree["."].pop("mode")  # no layer lists the root: each has its own default
    found = list(differences(ours, theirs))
    check(not found, "%s:\n%s" % (name, "\n".join(found[:50])))
    lines = clients.tree(reference).splitlines()
    check(len(lines) == len(theirs), "%s: a tree of %d lines, %d paths" % (name, len(lines), len(theirs)))


def change(rootfs):
    """What a user does to a tree: remove, add, replace, relabel, link."""
    os.makedirs(os.path.join(rootfs, "opt/new/deep"))
    with open(os.path.join(rootfs, "opt/new/deep/file"), "w", encoding="utf-8") as out:
        out.write("made by a client\n" * 5000)
    os.link(os.path.join(rootfs, "opt/new/deep/file"), os.path.join(rootfs, "opt/new/again"))
    os.symlink("/opt/new", os.path.join(rootfs, "opt/link"))
    os.chown(os.path.join(rootfs, "opt/new/deep"), 1000, 70000)
    os.chmod(os.path.join(rootfs, "opt/new/again"), 0o4750)
    os.utime(os.path.join(rootfs, "opt/new/again"), ns=(0, 1700000000123456789))


def plain_layers(clients):
    """Layers that are not compressed, pushed by hand: no client of Debian leaves them so."""
    source = clients.bakery.path("plain")
    quiet("skopeo", "copy", "-q", "--insecure-policy", "--dest-oci-accept-uncompressed-layers",
          "oci:%s:%s" % (clients.layout, TASK), "oci:%s:1" % source)
    with open(os.path.join(source, "index.json"), encoding="utf-8") as file:
        root = json.load(file)["manifests"][0]["digest"]

    def blob(digest):
        with open(os.path.join(source, "blobs", "sha256", digest.split(":")[1]), "rb") as file:
            return file.read()

    def send(method, path, data, kind):
        connection = http.client.HTTPConnection(clients.host)
        connection.request(method, path, data, {"Content-Type": kind})
        answer = connection.getresponse()
        answer.read()
        check(answer.status in (201, 202), "%s %s: status %d" % (method, path, answer.status))
        return answer.getheader("Location")

    def push(data):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        place = send("POST", "/v2/clients/plain/blobs/uploads/", b"", "")
        place = place[place.index("/v2/"):]
        send("PUT", place + ("&" if "?" in place else "?") + "digest=" + digest, data, "application/octet-stream")
        return digest, len(data)

    manifest = json.loads(blob(root))
    push(blob(manifest["config"]["digest"]))
    for layer in manifest["layers"]:
        data = blob(layer["digest"])
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        layer["digest"], layer["size"] = push(data)
        layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar"
    send("PUT", "/v2/clients/plain/manifests/1", json.dumps(manifest).encode(), manifest["mediaType"])
    return clients.host + "/clients/plain:1"


def from_skopeo(clients):
    """The same image in every form that skopeo makes; returns one of them."""
    source = "oci:%s:%s" % (clients.layout, TASK)
    wanted = clients.tree(source)
    check(wanted.startswith("/ dir 0755 0:0 "), wanted[:200])
    made = [clients.push(source, "skopeo:oci", "--format", "oci"),
            clients.push(source, "skopeo:v2s2", "--format", "v2s2"),
            clients.push(source, "skopeo:zstd", "--format", "oci", "--dest-compress-format", "zstd"), plain_layers(clients)]
    for reference in made:
        check(clients.tree(reference) == wanted, "%s has another tree" % reference)
        same_bytes(clients.bakery, source, reference)
    return made[1]


def from_umoci(clients):
    """A layer of umoci's upon an image; umoci's own tree is the judge."""
    bundle = clients.bakery.path("bundle")
    quiet("umoci", "unpack", "--image", "%s:%s" % (clients.layout, TASK), bundle)
    rootfs = os.path.join(bundle, "rootfs")
    change(rootfs)
    shutil.rmtree(os.path.join(rootfs, "etc"))
    os.symlink("opt", os.path.join(rootfs, "etc"))
    quiet("umoci", "repack", "--image", clients.layout + ":umoci", bundle)
    again = clients.bakery.path("again")
    quiet("umoci", "unpack", "--image", clients.layout + ":umoci", again)
    judge(clients, clients.push("oci:%s:umoci" % clients.layout, "umoci:1"), os.path.join(again, "rootfs"), "umoci")


def from_buildah(clients):
    """Two layers from scratch, the second with whiteouts, pushed by buildah itself."""
    content = clients.bakery.path("content")
    os.makedirs(os.path.join(content, "data/old/deep"))
    for name in ("keep", "data/gone", "data/old/deep/file"):
        with open(os.path.join(content, name), "w", encoding="utf-8") as out:
            out.write(name * 1000)
    first = clients.buildah("from", "scratch")
    clients.buildah("copy", first, content, "/")
    clients.buildah("config", "--env", "MADE=buildah", "--workingdir", "/data", first)
    clients.buildah("commit", "-q", first, "one")
    second = clients.buildah("from", "--pull-never", "localhost/one")
    rootfs = clients.buildah("mount", second)
    change(rootfs)
    os.unlink(os.path.join(rootfs, "data/gone"))
    shutil.rmtree(os.path.join(rootfs, "data/old"))
    clients.buildah("commit", "-q", second, "two")
    reference = clients.host + "/clients/buildah:2"
    clients.buildah("push", "-q", "--tls-verify=false", "localhost/two", "docker://" + reference)
    third = clients.buildah("from", "--pull-never", "localhost/two")
    judge(clients, reference, clients.buildah("mount", third), "buildah")
    archive = clients.bakery.path("buildah.tar")
    clients.buildah("push", "-q", "localhost/two", "docker-archive:%s:localhost/two:latest" % archive)
    same_bytes(clients.bakery, reference, "docker-archive:%s:localhost/two" % archive)
    # One layer of the same files: compared by content, that of the store's chunks with that of a tar.
    squashed = clients.bakery.path("squashed.tar")
    clients.buildah("commit", "-q", "--squash", third, "squashed")
    clients.buildah("push", "-q", "localhost/squashed", "docker-archive:%s:localhost/squashed:latest" % squashed)
    clients.bakery.tb2("image", "diff", reference, "docker-archive:" + squashed).expect()
    seen = clients.bakery.tb2("image", "inspect", reference).expect().out
    check("MADE=buildah" in seen and "/data" in seen, seen)


def from_archives(clients, reference):
    bakery = clients.bakery
    wanted = clients.tree(reference)
    docker, packed = bakery.path("docker.tar"), bakery.path("packed.tar")
    clients.skopeo("docker://" + reference, "docker-archive:%s:demo/%s:1" % (docker, TASK))
    clients.skopeo("docker://" + reference, "oci-archive:%s:mine" % packed)
    with open(packed, "rb") as source, gzip.open(packed + ".gz", "wb", 1) as target:
        shutil.copyfileobj(source, target)
    for name in ("docker-archive:" + docker, "docker-archive:%s:demo/%s:1" % (docker, TASK),
                 "docker-archive:%s:@0" % docker, "oci-archive:" + packed, "oci-archive:%s:mine" % packed,
                 "oci-archive:%s.gz" % packed):
        check(clients.tree(name, store="archives") == wanted, "%s has another tree" % name)
    same_bytes(bakery, reference, "docker-archive:" + docker)
    check(not bakery.leftovers("archives"), "an unpacked archive is left")
    check(not os.listdir(bakery.path("archives", "layers")), "looking at a tree has ingested layers")
    one = bakery.tb2("disk", "export", reference, "--raw", bakery.path("one.raw")).expect().out
    two = bakery.tb2("disk", "export", "docker-archive:" + docker, "--raw", bakery.path("two.raw"),
                     store="archives").expect().out
    check(one == two, "the archive's disk is another one")


def offline(clients, reference):
    """What the store has seen is found without a request; what it has not is named."""
    bakery = clients.bakery
    before = len(bakery.requests())
    wanted = clients.tree(reference, "--offline")
    check(wanted == clients.tree("oci:%s:%s" % (clients.layout, TASK), "--offline"), "another tree offline")
    bakery.tb2("image", "inspect", reference, "--offline").expect()
    raw = bakery.path("offline.raw")
    bakery.tb2("disk", "export", reference, "--offline", "--raw", raw).expect()
    for missing in (clients.host + "/clients/skopeo:none", clients.host + "/never/seen"):
        done = bakery.tb2("image", "tree", missing, "--offline").expect(3)
        check(missing in done.err and "what the tag stands for" in done.err and "without --offline" in done.err, done.err)
    done = bakery.tb2("image", "tree", reference, "--offline", store="empty").expect(3)
    check("what the tag stands for" in done.err, done.err)
    shutil.copytree(bakery.path("store", "refs"), bakery.path("empty", "refs"))
    done = bakery.tb2("image", "tree", reference, "--offline", store="empty").expect(3)
    check("sha256:" in done.err and "without --offline" in done.err, done.err)
    shutil.copytree(bakery.path("store", "blobs"), bakery.path("empty", "blobs"), dirs_exist_ok=True)
    for name in os.listdir(bakery.path("empty", "blobs")):
        path = bakery.path("empty", "blobs", name)
        if os.path.isfile(path) and os.path.getsize(path) > 20000:
            os.unlink(path)
    done = bakery.tb2("disk", "export", reference, "--offline", "--raw", raw + "2", store="empty").expect(3)
    check("(sha256:" in done.err and "without --offline" in done.err, done.err)
    check(len(bakery.requests()) == before, "a request was made: %s" % bakery.requests()[before:])


def differ(clients, reference):
    done = clients.bakery.tb2("image", "diff", reference, clients.host + "/clients/umoci:1").expect(1)
    lines = done.out.splitlines()
    check("~ /etc type=dir>symlink" in lines, done.out)
    check("+ /opt/new/deep dir 0755 1000:70000" in done.out, done.out)
    check(any(line.startswith("- /etc/") for line in lines), done.out)


def main():
    if os.getuid() != 0:
        skip("umoci, buildah and a loop mount need root")
    if subprocess.run(["losetup", "-f"], capture_output=True).returncode:
        skip("no loop devices here")
    with Bakery(tasks=2) as bakery:
        clients = Clients(bakery)
        reference = from_skopeo(clients)
        from_umoci(clients)
        from_buildah(clients)
        from_archives(clients, reference)
        differ(clients, reference)
        offline(clients, reference)


main()
