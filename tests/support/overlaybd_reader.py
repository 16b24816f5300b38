#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A reader of OverlayBD images that shares nothing with ours: written from docs/formats/overlaybd.md.

overlaybd_reader.py HOST/REPOSITORY:TAG OUT   the disk of an image in a registry (plain HTTP), as a raw file
overlaybd_reader.py LAYER... OUT              of layers in files, bottom first

It checks everything that can be checked, and keeps layers in memory: for tests, not for use.
"""

import bisect
import hashlib
import itertools
import json
import os
import struct
import sys
import urllib.request

import lz4.block
import zstandard

SECTOR = 512
LSMT_MAGIC = b"LSMT\x00\x01\x02\x00" + bytes.fromhex("657e63d29444084ca2d2c8ec4fcfae8a")
ZFILE_MAGIC = b"ZFile\x00\x01\x00" + b"tuji.yyf@Alibaba"
ANNOTATION = "containerd.io/snapshot/overlaybd/"


def check(good, what):
    if not good:
        raise ValueError(what)


def crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


CRC = crc_table()


def crc32c(state, data):
    """CRC-32C without the usual inversion."""
    table = CRC
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return state


def unwrap(blob):
    """The payload of the tar wrapper, if there is one."""
    if blob[257:262] != b"ustar":
        return blob
    if blob[156:157] != b"x":
        size = int(blob[124:136].strip(b"\0 "), 8)
        return blob[512:512 + size]
    records = blob[512:512 + int(blob[124:136].strip(b"\0 "), 8)].split(b"\n")
    sizes = [int(record.split(b"size=")[1]) for record in records if b" size=" in record]
    check(len(sizes) == 1 and blob[1024:1024 + 16] == b"overlaybd.commit", "not the wrapper of an OverlayBD layer")
    return blob[1536:1536 + sizes[0]]


class ZFile:
    """Plain bytes of a ZFile, block by block."""

    def __init__(self, data, crcs=True):
        self.data = data
        head = data[:512]
        flags, = struct.unpack_from("<Q", head, 32)
        if not flags & 8:
            head = data[-512:]
            check(head[:24] == ZFILE_MAGIC, "no trailer")
        self.flags, table, self.count, self.size = struct.unpack_from("<4Q", head, 32)
        self.block, self.kind = struct.unpack_from("<IB", head, 72)
        self.verify = head[88]
        self.crcs = crcs and self.verify
        if self.flags & 16:
            check(struct.unpack_from("<I", head, 28)[0] == crc32c(0, head[:28] + b"\0" * 4 + head[32:]), "header CRC")
        check(self.kind in (1, 2) and self.block & (self.block - 1) == 0, "compression")
        lengths = struct.unpack_from("<%dI" % self.count, data, table)
        if self.flags & 16:
            crc, = struct.unpack_from("<I", head, 64)
            check(crc == crc32c(0, data[table:table + 4 * self.count]), "CRC of the table")
        self.starts = [512]
        for length in lengths:
            self.starts.append(self.starts[-1] + length)
        check(self.starts[-1] == table, "the table does not fit the blocks")
        check(self.count == (self.size + self.block - 1) // self.block, "number of blocks")
        self.zstd = zstandard.ZstdDecompressor()
        self.last = (None, b"")

    def plain(self, number):
        if self.last[0] == number:
            return self.last[1]
        packed = self.data[self.starts[number]:self.starts[number + 1]]
        if self.verify:
            packed, crc = packed[:-4], struct.unpack("<I", packed[-4:])[0]
            # In Python a CRC of every byte takes minutes: every 16th block has to do.
            check(not self.crcs or number % 16 or crc == crc32c(100007, packed), "CRC of block %d" % number)
        want = min(self.block, self.size - number * self.block)
        if self.kind == 1:
            data = lz4.block.decompress(packed, uncompressed_size=want)
        else:
            data = self.zstd.decompress(packed, max_output_size=want)
        check(len(data) == want, "block %d has %d bytes" % (number, len(data)))
        self.last = (number, data)
        return data

    def read(self, off, size):
        out = []
        while size > 0:
            data = self.plain(off // self.block)
            part = data[off % self.block:off % self.block + size]
            check(part, "read past the end")
            out.append(part)
            off += len(part)
            size -= len(part)
        return b"".join(out)


class Plain:
    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read(self, off, size):
        check(off + size <= self.size, "read past the end")
        return self.data[off:off + size]


class Layer:
    """An LSMT file: `entries` are (sector, count, sector in the file or None for zeros), in order."""

    def __init__(self, blob):
        data = unwrap(blob)
        self.file = ZFile(data) if data[:24] == ZFILE_MAGIC else Plain(data)
        header, trailer = self.file.read(0, 4096), self.file.read(self.file.size - 4096, 4096)
        for record, wanted in ((header, 3), (trailer, 6)):
            check(record[:24] == LSMT_MAGIC, "not an LSMT file")
            check(struct.unpack_from("<I", record, 28)[0] & 7 & wanted == wanted, "flags")
        index, count, self.disk_size = struct.unpack_from("<3Q", trailer, 32)
        self.uuid = trailer[56:92]
        self.entries, end = [], 0
        for first, second in struct.iter_unpack("<2Q", self.file.read(index, 16 * count)):
            sector, length, at = first & (1 << 50) - 1, first >> 50, second & (1 << 55) - 1
            if sector == (1 << 50) - 1 and length == 0:
                continue
            zeros = second >> 55 & 1
            check(sector >= end, "entries are out of order")
            check(8 <= at and (at if zeros else at + length) * SECTOR <= index, "an entry points outside the data")
            end = sector + length
            self.entries.append((sector, length, None if zeros else at))


def write_disk(blobs, path):
    """Stacks layers, bottom first, into a sparse raw file; returns the disk's size."""
    layers = [Layer(blob) for blob in blobs]
    size = next(layer.disk_size for layer in reversed(layers) if layer.disk_size)
    with open(path, "xb") as out:
        out.truncate(size)
        for number, layer in enumerate(layers):
            for sector, count, at in layer.entries:
                if at is None:
                    for start, end in hidden(layers[:number], sector, sector + count):
                        out.seek(start * SECTOR)
                        out.write(bytes((end - start) * SECTOR))
                else:
                    out.seek(sector * SECTOR)
                    out.write(layer.file.read(at * SECTOR, count * SECTOR))
    return size


def hidden(layers, start, end):
    """What of these sectors lower layers have data in: the rest is zeros already."""
    for layer in layers:
        first = max(bisect.bisect_left(layer.entries, (start,)) - 1, 0)
        for sector, count, at in itertools.islice(layer.entries, first, None):
            if sector >= end:
                break
            if at is not None and sector + count > start:
                yield max(sector, start), min(sector + count, end)


def fetch(url, accept=None):
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def read_manifest(reference):
    host, _, rest = reference.partition("/")
    repository, _, tag = rest.rpartition(":")
    body = fetch("http://%s/v2/%s/manifests/%s" % (host, repository, tag), "application/vnd.oci.image.manifest.v1+json")
    return json.loads(body), "http://%s/v2/%s/blobs/" % (host, repository)


def fetch_blob(place, descriptor):
    blob = fetch(place + descriptor["digest"])
    check(len(blob) == descriptor["size"], "size of %s" % descriptor["digest"])
    check("sha256:" + hashlib.sha256(blob).hexdigest() == descriptor["digest"], "%s is something else" % descriptor)
    return blob


def read_image(reference, path):
    """Writes the disk of an image; returns its manifest and config."""
    manifest, place = read_manifest(reference)
    config = json.loads(fetch_blob(place, manifest["config"]))
    for layer in manifest["layers"]:
        annotations = layer["annotations"]
        check(layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar", layer)
        check(annotations[ANNOTATION + "blob-digest"] == layer["digest"], layer)
        check(annotations[ANNOTATION + "blob-size"] == str(layer["size"]), layer)
    check(config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]], config)
    write_disk([fetch_blob(place, layer) for layer in manifest["layers"]], path)
    return manifest, config


def content(path):
    """Size of a file, and a digest of its blocks that are not zeros, with their places."""
    sums = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY)
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA) // 4096 * 4096
            except OSError:  # no more data
                break
            at = os.lseek(fd, start, os.SEEK_HOLE)
            for off in range(start, at, 1 << 20):
                data = os.pread(fd, min(1 << 20, at - off), off)
                for n in range(0, len(data), 4096):
                    block = data[n:n + 4096]
                    if block.count(0) != len(block):
                        sums.update(b"%d " % (off + n) + block)
        return size, sums.hexdigest()
    finally:
        os.close(fd)


def main():
    *layers, out = sys.argv[1:]
    if len(layers) == 1 and not os.path.exists(layers[0]):
        read_image(layers[0], out)
        return
    blobs = []
    for layer in layers:
        with open(layer, "rb") as file:
            blobs.append(file.read())
    write_disk(blobs, out)


if __name__ == "__main__":
    main()
