# SPDX-License-Identifier: MIT
"""OCI and Docker images made by hand: layers, documents, layouts, pushes. Same input, same bytes."""

import gzip
import hashlib
import http.client
import io
import json
import os
import subprocess
import tarfile

CREATED = "2025-10-31T00:00:00Z"
MTIME = 1761868800  # the same moment

OCI = {
    "index": "application/vnd.oci.image.index.v1+json",
    "manifest": "application/vnd.oci.image.manifest.v1+json",
    "config": "application/vnd.oci.image.config.v1+json",
    "plain": "application/vnd.oci.image.layer.v1.tar",
    "gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "zstd": "application/vnd.oci.image.layer.v1.tar+zstd",
}
DOCKER = {
    "index": "application/vnd.docker.distribution.manifest.list.v2+json",
    "manifest": "application/vnd.docker.distribution.manifest.v2+json",
    "config": "application/vnd.docker.container.image.v1+json",
    "gzip": "application/vnd.docker.image.rootfs.diff.tar.gzip",
}


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(document):
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


class Layer:
    """Builds one layer's tar; every method adds an entry, in order."""

    def __init__(self):
        self._out = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._out, mode="w", format=tarfile.PAX_FORMAT)

    def _add(self, path, kind, mode, data=b"", link="", owner=(0, 0), mtime=MTIME, xattrs=None):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.linkname, info.mtime = kind, mode, link, int(float(mtime))
        info.uid, info.gid = owner
        info.size = len(data)
        if isinstance(mtime, str):
            info.pax_headers["mtime"] = mtime
        for name, value in (xattrs or {}).items():
            info.pax_headers["SCHILY.xattr." + name] = value.decode()
        self._tar.addfile(info, io.BytesIO(data))

    def directory(self, path, mode=0o755, **more):
        self._add(path + "/", tarfile.DIRTYPE, mode, **more)

    def file(self, path, data, mode=0o644, **more):
        self._add(path, tarfile.REGTYPE, mode, data if isinstance(data, bytes) else data.encode(), **more)

    def symlink(self, path, target, **more):
        self._add(path, tarfile.SYMTYPE, 0o777, link=target, **more)

    def hardlink(self, path, target):
        self._add(path, tarfile.LNKTYPE, 0o644, link=target)

    def fifo(self, path, mode=0o644, **more):
        self._add(path, tarfile.FIFOTYPE, mode, **more)

    def whiteout(self, path):
        head, tail = os.path.split(path)
        self.file(os.path.join(head, ".wh." + tail), b"", mode=0)

    def opaque(self, path):
        self.file(os.path.join(path, ".wh..wh..opq"), b"", mode=0)

    def finish(self):
        self._tar.close()
        return self._out.getvalue()


def compress(tar, how):
    if how == "plain":
        return tar
    if how == "gzip":
        return gzip.compress(tar, 6, mtime=0)
    return subprocess.run(["zstd", "-q", "-3", "--single-thread", "-c"], input=tar, check=True,
                          stdout=subprocess.PIPE).stdout


class Store:
    """Blobs by digest, and which of them are documents (pushed as manifests)."""

    def __init__(self):
        self.blobs = {}
        self.media = {}      # of documents
        self.children = {}   # document -> digests it names
        self._compressed = {}

    def blob(self, media_type, data):
        self.blobs[digest(data)] = data
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def document(self, media_type, content, children):
        data = canonical(content)
        self.media[digest(data)] = media_type
        self.children[digest(data)] = [child["digest"] for child in children]
        return self.blob(media_type, data)

    def layer(self, media, tar, how):
        key = (digest(tar), how)
        if key not in self._compressed:
            self._compressed[key] = compress(tar, how)
        return self.blob(media[how], self._compressed[key])

    def manifest(self, media, tars, how, config, architecture="amd64"):
        layers = [self.layer(media, tar, how) for tar in tars]
        config = self.blob(media["config"], canonical({
            "architecture": architecture, "os": "linux", "created": CREATED, "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
            "history": [{"created": CREATED, "created_by": "layer %d" % i} for i in range(len(tars))],
        }))
        return self.document(media["manifest"], {
            "schemaVersion": 2, "mediaType": media["manifest"], "config": config, "layers": layers,
        }, [config] + layers)

    def index(self, media, entries):
        return self.document(media["index"], {
            "schemaVersion": 2, "mediaType": media["index"], "manifests": entries,
        }, entries)

    def attestation(self, subject):
        """What buildx puts beside an image: an unknown/unknown entry that is no image."""
        statement = self.blob("application/vnd.in-toto+json", canonical({
            "_type": "https://in-toto.io/Statement/v0.1", "predicateType": "https://slsa.dev/provenance/v0.2",
            "subject": [{"name": "demo", "digest": {"sha256": subject["digest"][7:]}}], "predicate": {}}))
        config = self.blob(OCI["config"], canonical({
            "architecture": "unknown", "os": "unknown", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [statement["digest"]]}}))
        entry = self.document(OCI["manifest"], {
            "schemaVersion": 2, "mediaType": OCI["manifest"], "config": config, "layers": [statement],
        }, [config, statement])
        return dict(entry, platform={"architecture": "unknown", "os": "unknown"}, annotations={
            "vnd.docker.reference.type": "attestation-manifest",
            "vnd.docker.reference.digest": subject["digest"]})

    def reachable(self, root):
        found = []
        for child in self.children.get(root, []):
            found += self.reachable(child)
        return found + [root]


def write_layout(path, store, images):
    """images: {tag: descriptor}"""
    os.makedirs(os.path.join(path, "blobs", "sha256"), exist_ok=True)
    for descriptor in images.values():
        for name in store.reachable(descriptor["digest"]):
            with open(os.path.join(path, "blobs", "sha256", name[7:]), "wb") as out:
                out.write(store.blobs[name])
    with open(os.path.join(path, "oci-layout"), "w") as out:
        out.write('{"imageLayoutVersion":"1.0.0"}')
    with open(os.path.join(path, "index.json"), "wb") as out:
        out.write(canonical({"schemaVersion": 2, "manifests": [
            dict(images[tag], annotations={"org.opencontainers.image.ref.name": tag})
            for tag in sorted(images)]}))


class Pusher:
    """Pushes over HTTP as the distribution specification says (Push)."""

    def __init__(self, port):
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._home = {}  # blob -> repository that has it

    def _request(self, method, target, body=b"", media="application/octet-stream", want=(201,)):
        self._connection.request(method, target, body, {"Content-Type": media})
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status not in want:
            raise SystemExit("%s %s: %d %s" % (method, target, reply.status, text[:300].decode()))
        return reply

    def _blob(self, repository, name, data):
        target = "/v2/%s/blobs/uploads/" % repository
        if name in self._home:
            target += "?mount=%s&from=%s" % (name, self._home[name])
        reply = self._request("POST", target, want=(201, 202))
        if reply.status == 202:
            upload = reply.getheader("Location").split("//", 1)[-1]
            upload = upload[upload.index("/"):]
            self._request("PUT", upload + ("&" if "?" in upload else "?") + "digest=" + name, data)
        self._home[name] = repository

    def push(self, store, descriptor, repository, tag):
        for name in store.reachable(descriptor["digest"]):
            data = store.blobs[name]
            if name not in store.media:
                self._blob(repository, name, data)
            else:
                reference = tag if name == descriptor["digest"] else name
                self._request("PUT", "/v2/%s/manifests/%s" % (repository, reference), data, store.media[name])
