# SPDX-License-Identifier: MIT
"""Tests that docs/cases.md names exist, and each case has a test or says what is missing."""

import re

DOCUMENT = "docs/cases.md"
ROW = re.compile(r"^\| (\d+) (K-[A-Z0-9-]+) \| [^|]+ \| ([^|]*) \|$")


def judge(tree, cell):
    """Findings about one row's tests: `file`: `name`, `name`, ...; later: text."""
    tests, _, later = cell.partition("later: ")
    path, named = None, 0
    for what, colon in re.findall(r"`([^`]+)`(:?)", tests):
        if colon:
            path = "tests/" + what
            if not tree.has(path):
                yield "there is no " + path
                path = None
        elif path:
            named += 1
            if not re.search(r"(?<!\w)%s(?!\w)" % re.escape(what), tree.read(path)):
                yield "%s has no %s" % (path, what)
    if not named and not later:
        yield "neither a test nor what is missing"


def check(tree):
    if not tree.has(DOCUMENT):
        return
    seen = set()
    for line, text in enumerate(tree.read(DOCUMENT).splitlines(), 1):
        if not text.startswith("| ") or text.startswith("| case |"):
            continue
        row = ROW.match(text)
        if not row:
            yield DOCUMENT, line, "no row of the form | NUMBER KIND | about | tests |"
            continue
        if row.group(1) in seen:
            yield DOCUMENT, line, "case %s again" % row.group(1)
        seen.add(row.group(1))
        for finding in judge(tree, row.group(3)):
            yield DOCUMENT, line, finding


SOURCE = {"tests/unit/a.c": "static void case_001(void **state)\n{\n}\n"}
EXAMPLES = [
    ("file", {DOCUMENT: "| 1 K-A | x | `unit/b.c`: `case_001` |\n"}, "docs/cases.md:1: there is no tests/unit/b.c"),
    ("name", {DOCUMENT: "\n| 1 K-A | x | `unit/a.c`: `case_00` |\n", **SOURCE}, "docs/cases.md:2: tests/unit/a.c has no"),
    ("second", {DOCUMENT: "| 1 K-A | x | `unit/a.c`: `case_001`, `case_002` |\n", **SOURCE}, "has no case_002"),
    ("empty", {DOCUMENT: "| 1 K-A | x | |\n"}, "no row of the form"),
    ("nothing", {DOCUMENT: "| 1 K-A | x | some day |\n"}, "neither a test nor what is missing"),
    ("twice", {DOCUMENT: "| 1 K-A | x | later: y |\n| 1 K-A | x | later: y |\n"}, "docs/cases.md:2: case 1 again"),
    ("good", {DOCUMENT: "| case | about | tests |\n|---|---|---|\n| 1 K-A | x | `unit/a.c`: `case_001`; later: y |\n"
                        "| 2 K-B | x | later: z |\n", **SOURCE}, None),
]
