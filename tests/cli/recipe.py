#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`recipe check` and docs/formats/recipe.schema.json: the same verdict on good and bad recipes, and the key of each
mapping in both. What the schema cannot say (each name once, a path that exists, no more than 24h) is in its own list."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile

import jsonschema
import yaml

HERE = os.path.dirname(os.path.realpath(__file__))
DOCS = os.path.join(HERE, "..", "..", "docs", "formats")
PROGRAM = os.environ["TB2_BAKE"]

# YAML behind "name: x\n", which all have but those that begin with "name:".
GOOD = [
    "",
    "name: 0.1-a_b",
    "network: tap",
    "pipefail: true",
    "steps: []",
    "steps: [{run: x}]",
    "steps: [{run: [x, '', 1]}]",
    "steps: [{run: true}]",
    "steps: [{run: x, user: 1000, workdir: /a, timeout: 2m, env: {A: '', B: 1, C: true}}]",
    "steps: [{run: x, timeout: 0.5}, {run: x, timeout: 250ms}, {run: x, timeout: 24h}]",
    "steps: [{run: x, network: none, retries: 10, backoff: 5}]",
    "steps: [{run: x, secrets: []}, {run: x, secrets: [A, {name: b.c}, {name: D, env: E}]}]",
    "steps: [{env: {}}, {workdir: /}, {user: 'a:b'}]",
    "steps: [{copy: {from: tree, to: .}}]",
    "steps: [{copy: {from: ./tree/, to: /a/, owner: '0:0', mode: '0644', exclude: ['*.o', b/c]}}]",
    "steps: [{copy: {from: file, to: x, mode: 755}}]",
    "steps: [{copy: {from: tree, to: x, owner: '2147483647:2147483647', exclude: ['\\[', '[]]', '[!a-c[:digit:]]']}}]",
    "steps: [{graft: {directory: tree, at: /, exclude: [a], owner: 0, mode: '4755'}}]",
    "steps: [{graft: {tarball: good.tar, at: /opt}}, {graft: {image: 'a:b', at: /x}}]",
    "start: sleep 1\nready: test -d /x",
    "ready: {command: x, interval: 1, timeout: 1h, try_timeout: 10ms}",
    "ready: {port: 80}",
    "ready: {http: {port: 8080, path: '/a/b?c=d&e=%20', status: 204}}",
    "ready: {http: {port: 1}}",
]

BAD = [
    "name: X",
    "name: ''",
    "name: [x]",
    "name: " + "x" * 65,
    "colour: red",
    "network: host",
    "pipefail: 'yes'",
    "pipefail: 1",
    "steps: x",
    "steps: [x]",
    "steps: [{}]",
    "steps: [{run: ''}]",
    "steps: [{run: []}]",
    "steps: [{run: [[a]]}]",
    "steps: [{run: ['', a]}]",
    "steps: [{run: ~}]",
    "steps: [{run: x, shell: y}]",
    "steps: [{timeout: 3}]",
    "steps: [{user: a, workdir: /b}]",
    "steps: [{user: a b}]",
    "steps: [{user: -a}]",
    "steps: [{workdir: a}]",
    "steps: [{env: [A]}]",
    "steps: [{env: {A=B: c}}]",
    "steps: [{env: {'': c}}]",
    "steps: [{env: {A: [b]}}]",
    "steps: [{env: {A: ~}}]",
    "steps: [{run: x, timeout: 0}]",
    "steps: [{run: x, timeout: 86401}]",
    "steps: [{run: x, timeout: 5 minutes}]",
    "steps: [{run: x, timeout: -1}]",
    "steps: [{run: x, network: user}]",
    "steps: [{run: x, retries: 11}]",
    "steps: [{run: x, retries: -1}]",
    "steps: [{run: x, retries: many}]",
    "steps: [{run: x, backoff: 0}]",
    "steps: [{run: x, secrets: A}]",
    "steps: [{run: x, secrets: [a/b]}]",
    "steps: [{run: x, secrets: [.a]}]",
    "steps: [{run: x, secrets: [{env: A}]}]",
    "steps: [{run: x, secrets: [{name: A, file: b}]}]",
    "steps: [{run: x, secrets: [{name: A, env: B=C}]}]",
    "steps: [{copy: x}]",
    "steps: [{copy: {from: tree}}]",
    "steps: [{copy: {to: x}}]",
    "steps: [{copy: {from: tree, to: x, user: y}}]",
    "steps: [{copy: {from: tree, to: x, mode: '888'}}]",
    "steps: [{copy: {from: tree, to: x, mode: rwx}}]",
    "steps: [{copy: {from: tree, to: x, exclude: a}}]",
    "steps: [{copy: {from: tree, to: x, exclude: []}}]",
    "steps: [{copy: {from: tree, to: x}, user: y}]",
    "steps: [{graft: {at: /}}]",
    "steps: [{graft: {image: a}}]",
    "steps: [{graft: {image: a, at: b}}]",
    "steps: [{graft: {image: a, tarball: file, at: /}}]",
    "steps: [{graft: {tarball: file, at: /, exclude: [a]}}]",
    "start: ''",
    "start: [a]",
    "ready: {}",
    "ready: [a]",
    "ready: {command: x, port: 1}",
    "ready: {interval: 1}",
    "ready: {port: 0}",
    "ready: {port: 65536}",
    "ready: {http: {path: /}}",
    "ready: {http: {port: 1, path: a}}",
    "ready: {http: {port: 1, path: /a b}}",
    "ready: {http: {port: 1, path: \"/'\"}}",
    "ready: {http: {port: 1, status: 99}}",
    "ready: {http: {port: 1, method: POST}}",
]

# What a schema has no words for.
BEYOND = [
    "steps: [{run: x, timeout: 25h}]",
    "steps: [{run: x, secrets: [A, A]}]",
    "steps: [{run: x, secrets: [{name: A, env: V}, {name: B, env: V}]}]",
    "steps: [{copy: {from: missing, to: x}}]",
    "steps: [{copy: {from: deep, to: x}}]",
    "steps: [{copy: {from: tree, to: x, mode: 99}}]",
    "steps: [{copy: {from: tree, to: x, exclude: ['[']}}]",
    "steps: [{graft: {directory: tree, at: /x, exclude: ['*.o', 'a\\']}}]",
    "steps: [{copy: {from: tree, to: x, owner: 2147483648}}]",
    "steps: [{run: x, user: '0:4294967296'}]",
    "steps: [{user: '99999999999999999999999'}]",
    "steps: [{run: x}, {graft: {tarball: file, at: /x}}]",
    "steps: [{graft: {tarball: good.tar, at: /x}}, {graft: {tarball: up.tar.gz, at: /x}}]",
    "steps: [{graft: {tarball: link.tar, at: /x}}]",
    "steps: [{graft: {tarball: cut.tar, at: /x}}]",
]


class Loader(yaml.SafeLoader):
    """Booleans and numbers as YAML 1.2 has them: yes, no, on, off and 0644 are none."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:int",
                                                                    "tag:yaml.org,2002:timestamp")]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()}
Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("^(0|-?[1-9][0-9]*)$"), list("-0123456789"))


def document(text):
    return text if text.startswith("name:") else "name: x\n" + text


def check(home, text):
    path = os.path.join(home, "recipe.yaml")
    with open(path, "w", encoding="utf-8") as out:
        out.write(document(text))
    return subprocess.run([PROGRAM, "recipe", "check", path], capture_output=True, text=True)


def make_tarballs(home):
    """good.tar, and those that a bake refuses."""
    def make(name, *members):
        with tarfile.open(os.path.join(home, name), "w:gz" if name.endswith("gz") else "w") as out:
            for path, link in members:
                member = tarfile.TarInfo(path)
                member.size = 0 if link else 3000
                member.type, member.linkname = (tarfile.LNKTYPE, link) if link else (tarfile.REGTYPE, "")
                out.addfile(member, None if link else io.BytesIO(bytes(3000)))
    make("good.tar", ("a/b", ""), ("a/c", "a/b"))
    make("up.tar.gz", ("a/b", ""), ("a/../../../etc/passwd", ""))
    make("link.tar", ("a/c", "../../etc/passwd"))
    with open(os.path.join(home, "good.tar"), "rb") as whole, open(os.path.join(home, "cut.tar"), "wb") as out:
        out.write(whole.read(2000))


def keys_of(schema):
    """Every set of keys that a mapping of the schema may have."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield set(schema["properties"])
        for value in schema.values():
            yield from keys_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from keys_of(value)


def main():
    with open(os.path.join(DOCS, "recipe.schema.json"), encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    faults = []
    with tempfile.TemporaryDirectory() as home:
        os.makedirs(os.path.join(home, "tree", "b"))
        make_tarballs(home)
        with open(os.path.join(home, "file"), "w", encoding="utf-8") as out:
            out.write("a file\n")
        for wanted, texts in ((True, GOOD), (False, BAD)):
            for text in texts:
                done = check(home, text)
                if (done.returncode == 0) != wanted or done.returncode not in (0, 2):
                    faults.append("the program, status %d: %r: %s" % (done.returncode, text, done.stderr))
                if not wanted and not re.search(r"recipe\.yaml:\d+:\d+: ", done.stderr):
                    faults.append("no place: %r: %s" % (text, done.stderr))
                if wanted and "network" not in json.loads(done.stdout):
                    faults.append("no canonical form: %r: %s" % (text, done.stdout))
                if validator.is_valid(yaml.load(document(text), Loader)) != wanted:
                    faults.append("the schema: %r" % text)
        told = check(home, "steps: [{graft: {tarball: up.tar.gz, at: /x}}]").stderr
        if not re.search(r"recipe.yaml: line 2 of the recipe: graft of up.tar.gz: .*a/../../../etc/passwd", told):
            faults.append("not told: " + told)
        os.makedirs(os.path.join(home, "deep", *["d"] * 70))
        for text in BEYOND:
            done = check(home, text)
            if not re.search(r"recipe\.yaml:(\d+:\d+:| line \d+ )", done.stderr):
                faults.append("no place: %r: %s" % (text, done.stderr))
            if done.returncode != 2 or not validator.is_valid(yaml.load(document(text), Loader)):
                faults.append("beyond the schema: %r" % text)
        # What the program lists where a key is unknown is what the schema has.
        known = list(keys_of(schema))
        for text in ("zz: 1", "steps: [{run: x, zz: 1}]", "steps: [{zz: 1}]", "steps: [{copy: {zz: 1}}]",
                     "steps: [{graft: {zz: 1}}]", "ready: {zz: 1}", "ready: {http: {zz: 1}}"):
            listed = re.search("its keys are: (.*)", check(home, text).stderr)
            if not listed or set(listed.group(1).split(", ")) not in known:
                faults.append("keys: %r: %s" % (text, listed and listed.group(1)))
    for name in ("tb2", "demo"):
        path = os.path.join(HERE, "..", "..", "manifests", "recipes", name + ".yaml")
        with open(path, encoding="utf-8") as file:
            validator.validate(yaml.load(file, Loader))
        subprocess.run([PROGRAM, "recipe", "check", path], check=True, stdout=subprocess.DEVNULL)
    missing = subprocess.run([PROGRAM, "recipe", "check", "/no/such.yaml"], capture_output=True, text=True)
    if missing.returncode != 2:
        faults.append("a missing file: %s" % missing)
    print("\n".join(faults) or "%d recipes: one verdict" % (len(GOOD) + len(BAD) + len(BEYOND)))
    sys.exit(bool(faults))


main()
