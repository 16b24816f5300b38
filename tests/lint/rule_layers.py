# SPDX-License-Identifier: MIT
"""Includes point to lower levels; third-party headers stay at home (layers.txt)."""

import os

from tree import MODULES, includes

HERE = os.path.dirname(os.path.realpath(__file__))


def read_rules():
    levels, homes = {}, []
    with open(os.path.join(HERE, "layers.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    for height, row in enumerate(row for row in rows if row[0] == "level"):
        levels.update({module: height for module in row[1:]})
    homes = [(row[1], row[2:]) for row in rows if row[0] == "home"]
    return levels, homes


def judge(path, how, what, levels, homes):
    module, other = path.split("/")[0], what.split("/")[0]
    if how == "<":
        for start, files in homes:
            if (what == start or (start.endswith("/") and what.startswith(start))) and path not in files:
                return "<%s> belongs to %s alone" % (what, " and ".join(files))
        return None
    if "/" not in what:
        return 'write "%s/%s": includes start at the root of the tree' % (os.path.dirname(path), what)
    if other not in MODULES or other == module:
        return None
    if levels[other] >= levels[module]:
        return '%s (level %d) may not include "%s" (level %d)' % (module, levels[module], what, levels[other])
    if what.endswith("internal.h"):
        return '"%s" is private to %s' % (what, other)
    return None


def check(tree):
    levels, homes = read_rules()
    for path in tree.module_files():
        for line, how, what in includes(tree.read(path)):
            finding = judge(path, how, what, levels, homes)
            if finding:
                yield path, line, finding


EXAMPLES = [
    ("up", {"oci/a.c": '#include "bake/vm.h"\n'}, "oci/a.c:1: oci (level 1) may not include"),
    ("sideways", {"oci/a.c": '\n#include "blockdev/blockdev.h"\n'}, "oci/a.c:2: oci (level 1) may not"),
    ("private", {"bake/a.c": '#include "oci/internal.h"\n'}, "is private to oci"),
    ("homeless", {"bake/a.c": "#include <curl/curl.h>\n"}, "belongs to registry/http.c and registry/http_url.c alone"),
    ("local", {"bake/a.c": '#include "vm.h"\n'}, "includes start at the root"),
    ("good", {"bake/a.c": '#include "bake/vm.h"\n#include "oci/oci.h"\n#include <stdio.h>\n',
              "registry/http.c": "#include <curl/curl.h>\n"}, None),
]
