# SPDX-License-Identifier: MIT
"""The table of docs/errors.md names the classes of enum err_class, in its order, and no others."""

import re

HEADER, PAGE = "base/err.h", "docs/errors.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \|", re.M)


def enum_names(text):
    body = re.search(r"enum err_class \{(.*?)\};", text, re.S)
    names = re.findall(r"\bERR_(\w+)", re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.S)) if body else []
    return [name for name in names if name not in ("NONE", "CLASS_COUNT")]


def check(tree):
    names = enum_names(tree.read(HEADER))
    rows = [(match.group(1), match.group(2)) for match in ROW.finditer(tree.read(PAGE))]
    if not names:
        yield HEADER, 1, "enum err_class not found"
    for name in names:
        if name not in [row[0] for row in rows]:
            yield PAGE, 1, "class %s has no row" % name
    for row in rows:
        if row[0] not in names:
            yield PAGE, 1, "class %s is not in enum err_class" % row[0]
        if row[1] != row[0].lower():
            yield PAGE, 1, "class %s is called %s in JSON, not %s" % (row[0], row[0].lower(), row[1])
    if sorted(names) == sorted(row[0] for row in rows) and names != [row[0] for row in rows]:
        yield PAGE, 1, "the rows are not in the order of the enum"


ENUM = "enum err_class {\n    ERR_NONE = 0,\n    ERR_SYS, /* not ERR_OTHER */\n    ERR_NET,\n    ERR_CLASS_COUNT\n};\n"
EXAMPLES = [
    ("missing row", {HEADER: ENUM, PAGE: "| `SYS` | `sys` | x |\n"}, "class NET has no row"),
    ("stale row", {HEADER: ENUM, PAGE: "| `SYS` | `sys` |\n| `NET` | `net` |\n| `OLD` | `old` |\n"},
     "class OLD is not in enum"),
    ("order", {HEADER: ENUM, PAGE: "| `NET` | `net` |\n| `SYS` | `sys` |\n"}, "not in the order"),
    ("good", {HEADER: ENUM, PAGE: "| `SYS` | `sys` | x |\n| `NET` | `net` | y |\n"}, None),
]
