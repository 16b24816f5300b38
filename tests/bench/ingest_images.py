# SPDX-License-Identifier: MIT
"""Images for measuring ingest: OCI layouts of made-up files, the same bytes each time."""

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import tarfile

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def text(seed, size):
    """Bytes that compress about as well as programs do: phrases of some 200 bytes, and noise."""
    words = [seed.randbytes(seed.randint(3, 12)) for _ in range(400)]
    phrases = [b"".join(seed.choices(words, k=25)) for _ in range(400)]
    out = bytearray()
    while len(out) < size:
        out += b"".join(seed.choices(phrases, k=16))
        out += seed.randbytes(800)
    return bytes(out[:size])


def tree(seed, top, megabytes):
    """Files as images have them: most are small, most bytes are in the large ones."""
    left, n = megabytes * 1000 * 1000, 0
    while left > 0:
        size = min(left, seed.choice([200, 900, 3000, 7000, 20000, 20000, 150000, 1200000]))
        yield "%s/d%d/f%d" % (top, n // 50, n), text(seed, size)
        left -= size
        n += 1


class HashingWriter:
    """Writes through to a file, and hashes."""

    def __init__(self, file):
        self.file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, data):
        self.hash.update(data)
        self.size += len(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()

    def digest(self):
        return "sha256:" + self.hash.hexdigest()


class Layout:
    """An OCI layout in the making."""

    def __init__(self, path):
        self.path, self.manifests = path, []
        self.blobs = os.path.join(path, "blobs", "sha256")
        os.makedirs(self.blobs)

    def blob(self, data, media):
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(self.blobs, digest), "wb") as file:
            file.write(data)
        return {"mediaType": media, "digest": "sha256:" + digest, "size": len(data)}

    def write_layer(self, fill, level=1):
        """`fill` writes a tar to what it is given; descriptor and diff_id of it as gzip."""
        path = os.path.join(self.blobs, "new")
        with open(path, "wb") as file:
            packed = HashingWriter(file)
            with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=level, mtime=0, filename="") as zipped:
                plain = HashingWriter(zipped)
                fill(plain)
        os.rename(path, os.path.join(self.blobs, packed.hash.hexdigest()))
        return {"mediaType": LAYER, "digest": packed.digest(), "size": packed.size}, plain.digest()

    def write_wide_layer(self, fill):
        """The same with zstd and a window of 128 MiB, the largest that is read."""
        path = os.path.join(self.blobs, "new")
        with open(path, "wb") as file:
            child = subprocess.Popen(["zstd", "-q", "-1", "--long=27", "-c"], stdin=subprocess.PIPE, stdout=file)
            plain = HashingWriter(child.stdin)
            fill(plain)
            child.stdin.close()
            if child.wait():
                raise SystemExit("zstd failed")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.rename(path, os.path.join(self.blobs, digest))
        size = os.path.getsize(os.path.join(self.blobs, digest))
        return {"mediaType": LAYER.replace("gzip", "zstd"), "digest": "sha256:" + digest, "size": size}, plain.digest()

    def layer(self, files, level=1):
        def fill(out):
            with tarfile.open(fileobj=out, mode="w|") as tar:
                for name, data in files:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return self.write_layer(fill, level)

    def big_layer(self, size, number, wide=False):
        """One file; a few MiB of text over and over, with a number in each 64 KiB."""
        body = text(random.Random(number), 4 << 20)

        def fill(out):
            info = tarfile.TarInfo("big%d" % number)
            info.size = size
            out.write(info.tobuf(tarfile.GNU_FORMAT))
            for at in range(0, size, len(body)):
                piece = bytearray(body)
                for step in range(0, len(piece), 64 << 10):
                    piece[step:step + 8] = (at + step).to_bytes(8, "big")
                out.write(bytes(piece[:size - at]))
            out.write(bytes(-size % 512 + 1024))
        return self.write_wide_layer(fill) if wide else self.write_layer(fill)

    def image(self, tag, layers, config=None):
        if not config:
            config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {
                "type": "layers", "diff_ids": [diff_id for _, diff_id in layers]}}).encode()
        config = self.blob(config, "application/vnd.oci.image.config.v1+json")
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                    "config": config, "layers": [layer for layer, _ in layers]}
        manifest = self.blob(json.dumps(manifest).encode(), manifest["mediaType"])
        self.manifests.append({**manifest, "annotations": {"org.opencontainers.image.ref.name": tag}})

    def close(self):
        with open(os.path.join(self.path, "oci-layout"), "w", encoding="utf-8") as file:
            json.dump({"imageLayoutVersion": "1.0.0"}, file)
        with open(os.path.join(self.path, "index.json"), "w", encoding="utf-8") as file:
            json.dump({"schemaVersion": 2, "manifests": self.manifests}, file)
