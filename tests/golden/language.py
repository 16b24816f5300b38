# SPDX-License-Identifier: MIT
"""The layer language: images as text, and the text as tars and blobs. README.md describes it.

Everything here writes bytes by hand: what is odd on purpose must not be set right by a library."""

import base64
import bz2
import gzip
import hashlib
import json
import lzma
import re
import struct
import subprocess
import zlib

BLOCK = 512
ZSTD_SKIPPABLE = b"\x50\x2a\x4d\x18"
MEDIA = "application/vnd.oci.image.layer.v1.tar"
TYPES = {"file": b"0", "hardlink": b"1", "symlink": b"2", "char": b"3", "block": b"4", "dir": b"5", "fifo": b"6"}
MODES = {"dir": 0o755, "symlink": 0o777}


class Wrong(Exception):
    """A text that is not of the language."""


# ---- Words ----

WORD = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^\s"])+')
PART = re.compile(r'"((?:[^"\\]|\\.)*)"(?:\*(\d+))?(?:\+|$)')
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.S)


def unescape(text):
    names = {b"n": b"\n", b"t": b"\t", b"0": b"\0", b"\\": b"\\", b'"': b'"'}
    return ESCAPE.sub(lambda m: bytes([int(m[1][1:], 16)]) if m[1][:1] == b"x" and len(m[1]) == 3 else names[m[1]],
                      text.encode("utf-8"))


def value(text):
    """Bytes: as they stand, or text"text"*COUNT+"text"."""
    if '"' not in text:
        return unescape(text)
    found, at = b"", 0
    while at < len(text):
        if text[at] != '"' and '"' in text[at:]:
            found, at = found + unescape(text[at:text.index('"', at)]), text.index('"', at)
        part = PART.match(text, at)
        if not part:
            raise Wrong("not a value: " + text)
        found += unescape(part[1]) * int(part[2] or 1)
        at = part.end()
    return found


def words(line):
    found = WORD.findall(line)
    if "".join(found) != "".join(line.split()) and '"' not in line:
        raise Wrong(line)
    return found


# ---- Numbers and headers ----

def padded(data):
    return data + bytes(-len(data) % BLOCK)


def octal(number, width):
    return b"%0*o\0" % (width - 1, number)


def base256(number, width):
    data = (number & ((1 << (8 * width)) - 1)).to_bytes(width, "big")
    return bytes([data[0] | 0x80]) + data[1:]


def number_field(number, width, forced):
    if forced or number < 0 or number >= 8 ** (width - 1):
        return base256(number, width)
    return octal(number, width)


def checksum(header, kind="right"):
    blank = bytes(header[:148]) + b" " * 8 + bytes(header[156:])
    total = sum(blank)
    if kind == "signed":
        total = sum(byte - 256 * (byte > 127) for byte in blank)
    if kind == "bad":
        total += 1
    field = {"spaces": b"%7o\0" % total, "blank": b" " * 8, "seven": b"%07o\0" % total}.get(kind, b"%06o\0 " % (total & 0o777777))
    return blank[:148] + field + blank[156:]


MAGIC = {"pax": b"ustar\00000", "ustar": b"ustar\00000", "gnu": b"ustar  \0", "v7": bytes(8)}


class Header:
    """One entry's own header."""

    def __init__(self, name, kind, dialect):
        self.name, self.kind, self.dialect, self.prefix = name, kind, dialect, b""
        self.mode, self.uid, self.gid, self.size, self.mtime = 0o644, 0, 0, 0, 0
        self.link, self.uname, self.gname, self.device = b"", b"", b"", None
        self.forced, self.patches, self.sum = set(), [], "right"

    def encode(self):
        def number(field, width):
            return number_field(getattr(self, field), width, field in self.forced)
        major, minor = self.device or (0, 0)
        devices = number_field(major, 8, "dev" in self.forced) + number_field(minor, 8, "dev" in self.forced)
        header = bytearray(self.name[:100].ljust(100, b"\0") + number("mode", 8) + number("uid", 8) + number("gid", 8) +
                           number("size", 12) + number("mtime", 12) + b" " * 8 + self.kind +
                           self.link[:100].ljust(100, b"\0") + MAGIC[self.dialect] + self.uname.ljust(32, b"\0") +
                           self.gname.ljust(32, b"\0") + (devices if self.device else bytes(16)) +
                           self.prefix.ljust(155, b"\0") + bytes(12))
        for offset, data in self.patches:
            header[offset:offset + len(data)] = data
        assert len(header) == BLOCK
        return checksum(header, self.sum)


def record(key, data):
    rest = b" " + key + b"=" + data + b"\n"
    length = len(rest) + 1
    while length != len(b"%d" % length) + len(rest):
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def extended(kind, body, name=b"PaxHeaders/x"):
    header = Header(name, kind, "pax")
    header.size = len(body)
    return header.encode() + padded(body)


def gnu_long(kind, text):
    header = Header(b"././@LongLink", kind, "gnu")
    header.size = len(text) + 1
    return header.encode() + padded(text + b"\0")


# ---- Sparse files ----

def read_map(text):
    """OFFSET:VALUE,OFFSET:VALUE"""
    found = []
    for part in re.findall(r'(\d+):((?:"(?:[^"\\]|\\.)*"(?:\*\d+)?\+?)*)(?:,|$)', text):
        found.append((int(part[0]), value(part[1]) if part[1] else b""))
    return found


class Sparse:
    """A file with holes in one of the four forms."""

    def __init__(self, form, parts, real):
        self.form, self.parts, self.real = form, parts, real
        self.data = b"".join(data for _, data in parts)

    def records(self, name):
        count = b"%d" % len(self.parts)
        if self.form == "0.0":
            yield b"GNU.sparse.size", b"%d" % self.real
            yield b"GNU.sparse.numblocks", count
            for offset, data in self.parts:
                yield b"GNU.sparse.offset", b"%d" % offset
                yield b"GNU.sparse.numbytes", b"%d" % len(data)
        if self.form == "0.1":
            yield b"GNU.sparse.size", b"%d" % self.real
            yield b"GNU.sparse.numblocks", count
            yield b"GNU.sparse.name", name
            yield b"GNU.sparse.map", b",".join(b"%d,%d" % (offset, len(data)) for offset, data in self.parts)
        if self.form == "1.0":
            yield b"GNU.sparse.major", b"1"
            yield b"GNU.sparse.minor", b"0"
            yield b"GNU.sparse.name", name
            yield b"GNU.sparse.realsize", b"%d" % self.real

    def body(self):
        if self.form != "1.0":
            return self.data
        table = b"%d\n" % len(self.parts) + b"".join(b"%d\n%d\n" % (offset, len(data)) for offset, data in self.parts)
        return padded(table) + self.data

    def old_header(self, header, forced):
        """Patches of the header, and the extension blocks."""
        rows = [number_field(offset, 12, forced) + number_field(len(data), 12, forced) for offset, data in self.parts]
        header.patches.append((386, b"".join(rows[:4])))
        header.patches.append((482, bytes([len(rows) > 4])))
        header.patches.append((483, number_field(self.real, 12, forced)))
        blocks, rows = b"", rows[4:]
        while rows:
            blocks += (b"".join(rows[:21]).ljust(504, b"\0") + bytes([len(rows) > 21])).ljust(BLOCK, b"\0")
            rows = rows[21:]
        return blocks


# ---- Entries ----

class Entry:
    def __init__(self, kind, name, dialect):
        self.kind, self.records, self.raw_records = kind, [], None
        self.header = Header(name, TYPES.get(kind, b"0"), dialect)
        self.header.mode = MODES.get(kind, 0o644)
        self.data, self.body, self.sparse, self.map, self.pad = b"", None, None, "", True
        self.long = {}
        self.size = None
        self.nanoseconds = None

    def option(self, key, text):
        simple = {"data": "data", "body": "body", "paxraw": "raw_records"}
        fields = {"link": "link", "uname": "uname", "gname": "gname", "prefix": "prefix", "type": "kind"}
        numbers = {"uid", "gid"}
        if key in simple:
            setattr(self, simple[key], value(text))
        elif key in fields:
            setattr(self.header, fields[key], value(text))
        elif key in numbers:
            setattr(self.header, key, int(text))
        elif key == "mode":
            self.header.mode = int(text, 8)
        elif key == "mtime":
            self.set_time(text)
        elif key == "size":
            self.size = int(text)
        elif key == "dev":
            self.header.device = tuple(int(part) for part in text.split(":"))
        elif key == "as":
            self.header.dialect = text
        elif key == "base256":
            self.header.forced = set(text.split(","))
        elif key == "checksum":
            self.header.sum = text
        elif key == "sparse":
            self.sparse = text
        elif key == "map":
            self.map = text
        elif key == "pad":
            self.pad = text != "no"
        else:
            self.prefixed_option(key, text)

    def prefixed_option(self, key, text):
        group, _, rest = key.partition(".")
        name = value(rest) if rest else b""
        if group == "pax":
            self.records.append((name, value(text)))
        elif group == "xattr":
            self.records.append((b"SCHILY.xattr." + name, value(text)))
        elif group == "lxattr":
            self.records.append((b"LIBARCHIVE.xattr." + name, base64.b64encode(value(text)).rstrip(b"=")))
        elif group == "gnu":
            self.long[name] = value(text)
        elif group == "at":
            self.header.patches.append((int(rest), value(text)))
        else:
            raise Wrong("no option " + key)

    def set_time(self, text):
        whole = re.fullmatch(r"-?\d+", text)
        if whole and self.header.dialect != "pax":
            self.header.mtime = int(text)
        elif whole and 0 <= int(text) < 8 ** 11:
            self.header.mtime = int(text)
        else:
            self.records.append((b"mtime", text.encode()))

    def spill(self):
        """What the header has no room for goes into PAX records or GNU's long names."""
        h = self.header
        before = []
        for field, key, kind in (("name", b"path", b"L"), ("link", b"linkpath", b"K")):
            text = getattr(h, field)
            if len(text) <= 100:
                continue
            if h.dialect == "gnu":
                self.long.setdefault(kind, text)
            elif h.dialect == "ustar" and field == "name":
                cut = text.rindex(b"/", 0, 156)
                h.prefix, h.name = text[:cut], text[cut + 1:]
            elif not any(k == key for k, _ in self.records):
                before.append((key, text))
        if h.dialect == "pax":
            for field, limit in (("uid", 8 ** 7), ("gid", 8 ** 7), ("size", 8 ** 11)):
                if getattr(h, field) >= limit and field not in h.forced:
                    before.append((field.encode(), b"%d" % getattr(h, field)))
                    setattr(h, field, 0)
        self.records = before + self.records

    def encode(self):
        h = self.header
        body = self.data if self.body is None else self.body
        h.size = len(self.data)
        blocks = b""
        if self.sparse:
            sparse = Sparse(self.sparse, read_map(self.map), self.size or 0)
            body = sparse.body()
            h.size = len(body)
            if self.sparse == "old":
                h.kind, h.dialect = b"S", "gnu"
                blocks = sparse.old_header(h, "size" in h.forced)
            else:
                self.records = list(sparse.records(h.name)) + self.records
                if self.sparse != "0.0":
                    h.name = b"GNUSparseFile.0/" + h.name
        elif self.size is not None:
            h.size = self.size
        self.spill()
        out = b"".join(gnu_long(kind, text) for kind, text in self.long.items())
        records = b"".join(record(key, data) for key, data in self.records)
        if self.raw_records is not None:
            records = self.raw_records
        if records:
            out += extended(b"x", records)
        return out + h.encode() + blocks + (padded(body) if self.pad else body)


def read_entry(line, dialect):
    """The bytes that one line of a layer stands for."""
    kind, *rest = words(line)
    if kind == "bytes":
        return b"".join(value(part) for part in rest)
    if kind == "longname":
        return gnu_long(rest[0].encode(), value(rest[1]))
    if kind == "zeros":
        return bytes(BLOCK * int(rest[0]))
    if kind in ("global", "extended", "volume"):
        entry = Entry("file", b"", "pax")
        name = rest.pop(0).encode() if kind == "volume" else b""
        for part in rest:
            entry.option(*part.split("=", 1))
        if kind == "volume":
            entry.header.name, entry.header.kind = name, b"V"
            return entry.header.encode()
        records = entry.raw_records
        if records is None:
            records = b"".join(record(key, data) for key, data in entry.records)
        return extended(b"g" if kind == "global" else b"x", records)
    name = value(rest.pop(0))
    if kind == "opaque":
        kind, name = "file", name + (b"/" if name else b"") + b".wh..wh..opq"
    if kind == "whiteout":
        head, slash, tail = name.rpartition(b"/")
        kind, name = "file", head + slash + b".wh." + tail
    if kind not in TYPES:
        raise Wrong("no entry " + kind)
    entry = Entry(kind, name, dialect)
    for part in rest:
        if re.fullmatch(r"0[0-7]+", part):
            entry.header.mode = int(part, 8)
        elif re.fullmatch(r"\d+:\d+", part):
            entry.header.uid, entry.header.gid = (int(number) for number in part.split(":"))
        elif "=" in part:
            entry.option(*part.split("=", 1))
        else:
            raise Wrong("what is %s? (%s)" % (part, line))
    return entry.encode()


# ---- Blobs ----

def gzip_member(data, full=False, level=6):
    member = gzip.compress(data, level, mtime=0)
    if not full:
        return member
    head = member[:3] + bytes([4 | 8 | 16 | 2]) + member[4:10] + b"\x06\0AB\x02\0xy" + b"name\0" + b"comment\0"
    return head + struct.pack("<H", zlib.crc32(head) & 0xffff) + member[10:]


def zstd_frame(data, *options):
    done = subprocess.run(["zstd", "-q", "-c", *options], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout


def skippable(length, nibble=0):
    return bytes([0x50 | nibble]) + ZSTD_SKIPPABLE[1:] + struct.pack("<I", length) + b"s" * length


class Layer:
    def __init__(self, rest):
        self.form, self.options, self.tar, self.dialect = "plain", {}, bytearray(), "pax"
        for part in words(rest):
            if part in ("plain", "gzip", "zstd", "xz", "bzip2", "estargz", "chunked"):
                self.form = part
            else:
                key, _, text = part.partition("=")
                self.options[key] = text
        self.dialect = self.options.get("as", "pax")
        self.starts = []

    def add(self, line):
        repeat = re.match(r"repeat (\d+) (.*)", line)
        count, line = (int(repeat[1]), repeat[2]) if repeat else (1, line)
        for i in range(count):
            self.starts.append(len(self.tar))
            self.tar += read_entry(line.replace("%d", str(i)) if repeat else line, self.dialect)

    def plain(self):
        tar = bytes(self.tar) + bytes(BLOCK * int(self.options.get("end", 2)))
        tar += value(self.options.get("trail", ""))
        cut = int(self.options.get("tarcut", 0))
        return tar[:len(tar) - cut] if cut else tar

    def pieces(self, tar):
        cuts = [0] + [int(cut) for cut in self.options.get("split", "").split(",") if cut] + [len(tar)]
        return [tar[a:b] for a, b in zip(cuts, cuts[1:])]

    def compress(self, tar):
        if self.form == "gzip":
            return b"".join(gzip_member(piece, "full" in self.options) for piece in self.pieces(tar))
        if self.form == "zstd":
            long = ["--long=" + self.options["window"]] if "window" in self.options else []
            lengths = [int(n) for n in self.options.get("skippable", "").split(",") if n]
            blob = b""
            for i, piece in enumerate(self.pieces(tar)):
                blob += skippable(lengths[i], i % 16) if i < len(lengths) else b""
                blob += zstd_frame(piece, *long)
            return blob + b"".join(skippable(n) for n in lengths[len(self.pieces(tar)):])
        if self.form in ("estargz", "chunked"):
            return self.indexed(tar)
        return {"xz": lzma.compress, "bzip2": bz2.compress, "plain": bytes}[self.form](tar)

    def indexed(self, tar):
        """eStargz: a gzip member for each entry, and a footer; zstd:chunked: frames and a footer."""
        cuts = sorted(set(self.starts + [len(tar)]))
        pieces = [tar[a:b] for a, b in zip(cuts, cuts[1:])]
        if self.form == "estargz":
            blob = b"".join(gzip_member(piece) for piece in pieces)
            extra = b"SG" + struct.pack("<H", 22) + b"%016xSTARGZ" % len(blob)
            return (blob + b"\x1f\x8b\x08\x04\0\0\0\0\0\xff" + struct.pack("<H", len(extra)) + extra +
                    b"\x01\0\0\xff\xff" + bytes(8))
        blob = b"".join(zstd_frame(piece) for piece in pieces)
        manifest = zstd_frame(json.dumps({"version": 1, "entries": []}).encode())
        footer = struct.pack("<QQQQ", len(blob) + 8, len(manifest), 27, 1) + b"GNUlInUx"
        for data in (manifest, footer):
            blob += ZSTD_SKIPPABLE + struct.pack("<I", len(data)) + data
        return blob

    def media(self):
        ends = {"gzip": "+gzip", "estargz": "+gzip", "zstd": "+zstd", "chunked": "+zstd"}
        return self.options.get("media", MEDIA + ends.get(self.form, ""))

    def build(self):
        """(blob, its descriptor with the key diff_id)"""
        tar = self.plain()
        blob = value(self.options["blob"]) if "blob" in self.options else self.compress(tar)
        if "blob" in self.options and self.form == "plain":
            tar = blob
        blob += value(self.options.get("tail", ""))
        if self.form == "plain":
            tar = blob
        cut = int(self.options.get("cut", 0))
        blob = blob[:len(blob) - cut] if cut else blob
        if "damage" in self.options:
            at = int(self.options["damage"])
            blob = blob[:at] + bytes([blob[at] ^ 0x55]) + blob[at + 1 if at != -1 else len(blob):]
        if self.form == "plain" and cut:
            tar = blob
        diff_id = hashlib.sha256(tar + (b"x" if self.options.get("diff") == "wrong" else b"")).hexdigest()
        digest = hashlib.sha256(blob + (b"x" if self.options.get("digest") == "wrong" else b"")).hexdigest()
        size = len(blob) + int(self.options.get("size", 0))
        return blob, {"mediaType": self.media(), "digest": "sha256:" + digest, "size": size,
                      "diff_id": "sha256:" + diff_id}


# ---- Cases ----

class Case:
    """One `case`: its text by parts, each with the number of its line."""

    def __init__(self, path, line, name, about):
        self.path, self.line, self.name, self.about = path, line, name, about
        self.layers, self.expected, self.refused, self.count = [], None, None, None
        self.holds, self.lacks, self.umoci, self.expect_at = [], [], None, None
        self.lines = []

    def build(self):
        found = []
        for options, lines in self.layers:
            layer = Layer(options)
            for line in lines:
                layer.add(line)
            found.append(layer.build())
        return found


def read_cases(path):
    cases, case, place = [], None, None
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                place = None if place == "expect" else place
                continue
            word, _, rest = line.partition(" ")
            if word == "case":
                name, _, about = rest.partition(": ")
                case, place = Case(path, number, name, about), None
                cases.append(case)
            elif word == "layer":
                case.layers.append((rest, []))
                place = "layer"
            elif word == "expect":
                case.expected, case.expect_at, place = [], number, "expect"
            elif word == "refuse":
                case.refused, place = value(rest).decode(), None
            elif word == "count":
                case.count = int(rest)
            elif word in ("holds", "lacks"):
                getattr(case, word).append(rest)
            elif word == "umoci":
                case.umoci = rest
            elif place == "expect":
                case.expected.append(line)
            elif place == "layer":
                case.layers[-1][1].append(line)
            else:
                raise Wrong("%s:%d: %s" % (path, number, line))
    return cases
