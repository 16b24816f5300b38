#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ingest.py BUILD_DIR suite LAYOUT [TAG...]   [--rounds N] [--level L]
ingest.py BUILD_DIR growth                 [--base-mb N] [--top-mb N] [--images 1,10,80]
ingest.py BUILD_DIR memory                 [--gib N] [--jobs N]

What docs/benchmarks.md says of ingest. Everything runs on local OCI layouts into empty stores on the
file system of --work (/var/tmp); ratios are of one run, alternating; times are printed, never judged.

suite    images of LAYOUT (all its tags, or those named): ours, ingest and assembly of all of them at
         once, against `umoci unpack` and `mke2fs -d` of each (needs root), and against the floor: what
         inflating, hashing and compressing the same data take when each is timed alone.
growth   images that share all but a top layer: what the 1st, the 10th, the 80th costs.
memory   a layer with one large file: the most memory that ingest ever had.
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import io

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def timed(command, cwd=None):
    """Wall and CPU seconds of a command and of all it waited for."""
    subprocess.run(["sync"], check=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wall = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit("%s\nexit status %d\n%s" % (" ".join(command), done.returncode, done.stderr[-3000:]))
    return done.stdout, wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Bench:
    def __init__(self, options):
        self.options = options
        self.work = options.work
        self.store = os.path.join(self.work, "store")

    def program(self, name):
        return os.path.join(self.options.build, "tests", "bench", name)

    def ingest(self, images, *more, fresh=True):
        """Report of our program, with the disks' digests."""
        if fresh:
            shutil.rmtree(self.store, ignore_errors=True)
        command = [self.program("bench_ingest"), "-l", str(self.options.level), *more, self.store, *images]
        out, wall, cpu = timed(command)
        *disks, report = out.splitlines()
        return {**json.loads(report), "wall": wall, "cpu": cpu, "disks": disks}

    # ---- suite ----

    def peers(self, layout, tags):
        """umoci and mke2fs, one image after another."""
        wall = {"umoci": 0.0, "mke2fs": 0.0}
        cpu = {"umoci": 0.0, "mke2fs": 0.0}
        judge = os.path.join(self.work, "judge")
        if not os.path.exists(judge):
            make_judge(layout, tags, judge)
        for tag in tags:
            bundle, disk = os.path.join(self.work, "bundle"), os.path.join(self.work, "disk.raw")
            rootfs = os.path.join(bundle, "rootfs")
            for name, command in (
                    ("umoci", ["umoci", "unpack", "--image", "%s:%s" % (judge, tag), bundle]),
                    ("mke2fs", ["mke2fs", "-q", "-t", "ext4", "-d", rootfs, disk, "4G"])):
                _, seconds, used = timed(command)
                wall[name] += seconds
                cpu[name] += used
            shutil.rmtree(bundle)
            os.unlink(disk)
        return wall, cpu

    def suite(self, layout, tags):
        with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
            names = [m["annotations"]["org.opencontainers.image.ref.name"] for m in json.load(file)["manifests"]]
        tags = tags or names
        images = ["oci:%s:%s" % (layout, tag) for tag in tags]
        for top, _, files in os.walk(layout):  # all start from a warm page cache
            for name in files:
                with open(os.path.join(top, name), "rb") as file:
                    while file.read(1 << 20):
                        pass
        rows = []
        for _ in range(self.options.rounds):
            ours = self.ingest(images)
            out, _, _ = timed([self.program("bench_floor"), str(self.options.level), self.store, *images])
            floor = json.loads(out)
            wall, cpu = self.peers(layout, tags)
            rows.append((ours, floor, wall, cpu))
            print("ours %.2f s wall, %.2f s CPU; floor %.2f s CPU; umoci %.2f + mke2fs %.2f s wall, %.2f s CPU" % (
                ours["wall"], ours["cpu"], floor["total_s"], wall["umoci"], wall["mke2fs"], sum(cpu.values())),
                flush=True)
        ours, floor, _, _ = rows[-1]
        print("\n%d images, %.1f MB of distinct blobs, %.1f MB plain, %.1f MB of distinct chunks" % (
            len(tags), floor["blob_bytes"] / 1e6, floor["plain_bytes"] / 1e6, floor["unique_bytes"] / 1e6))
        print("| part of the floor | CPU s |\n|---|---|")
        for part in ("inflate", "blob_hash", "plain_hash", "chunk_hash", "compress"):
            print("| %s | %.2f |" % (part, statistics.median(row[1][part + "_s"] for row in rows)))
        print("\nstored: %.1f MB in chunks, %.1f MB in all; peak memory %.0f MiB" % (
            ours["chunk_bytes_new"] / 1e6, stored_bytes(self.store) / 1e6, max(row[0]["max_rss_mib"] for row in rows)))
        times = [sum(row[2].values()) / row[0]["wall"] for row in rows]
        print("umoci + mke2fs over ours, wall: median %.1f (%s)" % (
            statistics.median(times), ", ".join("%.1f" % t for t in times)))
        times = [sum(row[3].values()) / row[0]["cpu"] for row in rows]
        print("umoci + mke2fs over ours, CPU: median %.1f" % statistics.median(times))
        times = [row[0]["cpu"] / row[1]["total_s"] for row in rows]
        print("our CPU over the floor: median %.2f (%s)" % (
            statistics.median(times), ", ".join("%.2f" % t for t in times)))

    # ---- growth ----

    def growth(self):
        counts = [int(n) for n in self.options.images.split(",")]
        layout = Layout(os.path.join(self.work, "layout"))
        seed = random.Random(1)
        base = [layout.layer(tree(seed, "base%d" % n, self.options.base_mb // 4)) for n in range(4)]
        for n in range(max(counts)):
            top = layout.layer(tree(seed, "task", self.options.top_mb))
            layout.image("t%d" % n, base + [top])
        layout.close()
        print("base %d MB in 4 layers, top layers of %d MB" % (self.options.base_mb, self.options.top_mb))
        print("| image | wall s | CPU s | ingest s | assemble s | new chunks | stored MB |\n|---|---|---|---|---|---|---|")
        before = 0
        for n in range(max(counts)):
            report = self.ingest(["oci:%s:t%d" % (layout.path, n)], fresh=n == 0)
            size = stored_bytes(self.store) if n < 2 or n + 1 in counts or n + 2 in counts else None
            if n < 2 or n + 1 in counts:
                print("| %d | %.2f | %.2f | %.2f | %.2f | %d | %.1f |" % (
                    n + 1, report["wall"], report["cpu"], report["ingest_s"], report["assemble_s"],
                    report["chunks_new"], (size - before) / 1e6), flush=True)
            before = size or before

    # ---- memory ----

    def memory(self):
        layout = Layout(os.path.join(self.work, "layout"))
        size = int(self.options.gib * (1 << 30))
        layers = [layout.big_layer(size, n) for n in range(2)]
        layout.image("big", layers)
        layout.close()
        report = self.ingest(["oci:%s:big" % layout.path], "-j", str(self.options.jobs))
        print("2 layers, each a file of %.2f GiB, --jobs %d: %.0f MiB at most, %.1f s wall, %.1f s CPU" % (
            self.options.gib, self.options.jobs, report["max_rss_mib"], report["wall"], report["cpu"]))
        if report["max_rss_mib"] >= 200:
            sys.exit("more than 200 MiB")


def make_judge(layout, tags, path):
    """The same images for umoci, which reads OCI manifests with gzip layers alone. Not timed."""
    def read(descriptor):
        with open(os.path.join(layout, "blobs", *descriptor["digest"].split(":")), "rb") as file:
            return file.read()

    judge = Layout(path)
    with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
        index = {m["annotations"]["org.opencontainers.image.ref.name"]: m for m in json.load(file)["manifests"]}
    for tag in tags:
        manifest = json.loads(read(index[tag]))
        while "manifests" in manifest:
            manifest = json.loads(read([m for m in manifest["manifests"]
                                        if m.get("platform", {}).get("architecture") == "amd64"][0]))
        layers = []
        for layer in manifest["layers"]:
            data = read(layer)
            if data[:4] == b"\x28\xb5\x2f\xfd":
                data = subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, check=True).stdout
            if data[:2] != b"\x1f\x8b":
                data = gzip.compress(data, 6, mtime=0)
            layers.append((judge.blob(data, LAYER), None))
        judge.image(tag, layers, read(manifest["config"]))
    judge.close()


def stored_bytes(store):
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(store) for name in names)


def text(seed, size):
    """Bytes that compress about as well as programs do: words of a small dictionary, and noise."""
    words = [seed.randbytes(seed.randint(3, 12)) for _ in range(400)]
    out = bytearray()
    while len(out) < size:
        out += b"".join(seed.choices(words, k=400))
        out += seed.randbytes(600)
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

    def write_layer(self, fill):
        """`fill` writes a tar to what it is given; descriptor and diff_id of it as gzip."""
        path = os.path.join(self.blobs, "new")
        with open(path, "wb") as file:
            packed = HashingWriter(file)
            with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0, filename="") as zipped:
                plain = HashingWriter(zipped)
                fill(plain)
        os.rename(path, os.path.join(self.blobs, packed.hash.hexdigest()))
        return {"mediaType": LAYER, "digest": packed.digest(), "size": packed.size}, plain.digest()

    def layer(self, files):
        def fill(out):
            with tarfile.open(fileobj=out, mode="w|") as tar:
                for name, data in files:
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return self.write_layer(fill)

    def big_layer(self, size, number):
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
        return self.write_layer(fill)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("what", choices=["suite", "growth", "memory"])
    parser.add_argument("layout", nargs="?")
    parser.add_argument("tags", nargs="*")
    parser.add_argument("--work", default="/var/tmp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--base-mb", type=int, default=400)
    parser.add_argument("--top-mb", type=int, default=20)
    parser.add_argument("--images", default="1,10,80")
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    if options.what == "suite" and not options.layout:
        parser.error("suite needs a LAYOUT")
    options.build = os.path.realpath(options.build)
    options.work = tempfile.mkdtemp(prefix="tb2-bench-", dir=options.work)
    bench = Bench(options)
    try:
        if options.what == "suite":
            bench.suite(os.path.realpath(options.layout), options.tags)
        else:
            getattr(bench, options.what)()
    finally:
        shutil.rmtree(options.work, ignore_errors=True)


if __name__ == "__main__":
    main()
