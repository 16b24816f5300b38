# SPDX-License-Identifier: MIT
"""Compares our TOML reader with Python's tomllib: same files accepted, same values.

usage: toml_peer.py TOML_PRINT DIRECTORY [--mutate COUNT [SEED]]

DIRECTORY holds valid/ and invalid/. With --mutate, COUNT documents more are compared, made up or damaged
copies of its files. Where the two are known to differ (see `allowed`), the difference is checked to be that one.
"""
import datetime
import json
import math
import pathlib
import random
import re
import subprocess
import sys

try:
    import tomllib
except ImportError:
    print("python3 has no tomllib")
    sys.exit(77)


class Refused(Exception):
    pass


class Reader:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, data):
        self.process.stdin.write(b"%d\n" % len(data) + data)
        self.process.stdin.flush()
        word, rest = self.process.stdout.readline().decode("utf-8", "replace").split(" ", 1)
        return (untag(json.loads(rest)), None) if word == "ok" else (None, rest.strip())


def unescape(text):
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda m: bytes([int(m[1], 16)]), text.encode())
    return raw.decode()


def moment(text):
    """Date-time text as comparable fields, fractions cut to microseconds."""
    text = re.sub(r"(\.\d{1,6})\d*", r"\1", text)
    return re.sub(r"\.0+(?=$|[Z+-])", "", re.sub(r"(\.\d*?)0+(?=$|[Z+-])", r"\1", text)).replace(
        ".Z", "Z").rstrip(".")


def untag(node):
    if isinstance(node, list):
        return [untag(x) for x in node]
    if set(node) == {"type", "value"} and isinstance(node["type"], str):
        kind, value = node["type"], node["value"]
        if kind == "string":
            return "s:" + unescape(value)
        if kind == "float":
            return "f:" + repr(float(value))
        if kind.startswith(("date", "time")):
            return "t:" + moment(value).replace("+00:00", "Z").replace("-00:00", "Z")
        return kind[0] + ":" + value
    return {unescape(k): untag(v) for k, v in node.items()}


def tag(value):
    if isinstance(value, dict):
        return {k: tag(v) for k, v in value.items()}
    if isinstance(value, list):
        return [tag(x) for x in value]
    if isinstance(value, bool):
        return "b:" + str(value).lower()
    if isinstance(value, int):
        if not -2**63 <= value < 2**63:
            raise Refused("integer range")
        return "i:" + str(value)
    if isinstance(value, float):
        return "f:" + ("nan" if math.isnan(value) else repr(value))
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return "t:" + moment(value.isoformat()).replace("+00:00", "Z")
    return "s:" + value


def peer(data):
    try:
        text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8")
        return tag(tomllib.loads(text)), None
    except (Refused, ValueError, RecursionError, OverflowError) as problem:
        return None, str(problem)


def allowed(data, ours, our_problem):
    """Reads of TOML on which tomllib is stricter than the specification, or has no bound."""
    if our_problem and ("levels deep" in our_problem or "too long" in our_problem):
        return True
    if ours is not None and re.search(rb"\d:\d\d:60", data):
        return True  # a leap second, RFC 3339 section 5.7
    return ours is not None and re.search(rb"\d:\d\d:\d\d(\.\d+)?z", data) is not None


def compare(reader, name, data, wanted):
    ours, our_problem = reader.read(data)
    theirs, their_problem = peer(data)
    if wanted is not None and (ours is not None) != wanted:
        return f"{name}: should be {'accepted' if wanted else 'refused'}: {our_problem}"
    if our_problem and not re.match(r"input:\d+:\d+: ", our_problem):
        return f"{name}: no place in {our_problem!r}"
    if ours == theirs or allowed(data, ours, our_problem):
        return None
    return f"{name}: ours {our_problem or ours!r}, tomllib {their_problem or theirs!r}"


def mutated(random_source, data, others):
    data = bytearray(data)
    for _ in range(random_source.randint(1, 4)):
        at = random_source.randint(0, len(data))
        kind = random_source.randint(0, 5)
        if kind == 0 and data:
            del data[at:at + random_source.randint(1, 4)]
        elif kind == 1:
            data[at:at] = random_source.choice(PIECES)
        elif kind == 2 and at < len(data):
            data[at] = random_source.randint(0, 255) if random_source.random() < 0.2 else (
                random_source.choice(b"\"'[]{}=.,#\n \t\r0123456789abxeTZ+-_:\\"))
        elif kind == 3:
            end = random_source.randint(at, len(data))
            data[at:at] = data[at:end][:200]
        elif kind == 4:
            lines = bytes(data).split(b"\n")
            random_source.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        else:
            other = random_source.choice(others)
            start = random_source.randint(0, len(other))
            data[at:at] = other[start:start + random_source.randint(1, 60)]
    return bytes(data)


def generated(r):
    """A few lines about a handful of keys: most of what can be said twice, in every order."""
    def path():
        return ".".join(r.choice(["a", "b", "c", '"a"', "'b'"]) for _ in range(r.randint(1, 3)))

    def value(depth=0):
        kind = r.randint(0, 7 if depth < 3 else 3)
        if kind < 4:
            return r.choice(["1", "'x'", "true", "[]", "{}", "2.5"])
        if kind < 6:
            return "{" + ", ".join(f"{path()} = {value(depth + 1)}"
                                   for _ in range(r.randint(1, 3))) + "}"
        return "[" + ", ".join(value(depth + 1) for _ in range(r.randint(0, 3))) + "]"

    lines = []
    for _ in range(r.randint(2, 7)):
        kind = r.randint(0, 5)
        lines.append(f"[{path()}]" if kind < 2 else f"[[{path()}]]" if kind < 4
                     else f"{path()} = {value()}")
    return "\n".join(lines).encode()


PIECES = [b"\"\"\"", b"'''", b"[[a]]\n", b"[a.b]\n", b"\na.b.c = 1\n", b"{a = 1}", b"[1, 2,]",
          b"1979-05-27", b"T07:32:00", b"Z", b"+09:30", b"\\u00e9", b"\\U0010FFFF", b"\\", b"\r\n",
          b"\r", b"0x1f", b"1_000", b"6.02e+23", b"inf", b"nan", b"true", b"# x\n", b"\xc3\xa9",
          b"\xef\xbb\xbf", b"\x00", b"\x7f", b"\xff", b" = ", b"\n", b"[a]\n", b"a.b = 2\n",
          b"[[a.b]]\n", b"a = {}\n", b"a = []\n", b"9223372036854775808", b".5", b"e5", b"--", b"__"]


def main():
    reader = Reader(sys.argv[1])
    directory = pathlib.Path(sys.argv[2])
    files = [(p, p.read_bytes(), p.parent.name == "valid")
             for p in sorted(directory.glob("*valid/*.toml"))]
    problems = [compare(reader, p.name, data, wanted) for p, data, wanted in files]
    if "--mutate" in sys.argv:
        rest = sys.argv[sys.argv.index("--mutate") + 1:]
        source = random.Random(int(rest[1]) if len(rest) > 1 else 1)
        texts = [data for _, data, _ in files]
        for i in range(int(rest[0])):
            data = generated(source) if i % 3 == 0 else (
                mutated(source, source.choice(texts), texts))
            problem = compare(reader, f"mutation {i}", data, None)
            problems.append(problem and f"{problem}\n    {data!r}")
    problems = [p for p in problems if p]
    for problem in problems[:40]:
        print(problem)
    print(f"{len(files)} files, {len(problems)} differences")
    sys.exit(1 if problems or not files else 0)


main()
