# SPDX-License-Identifier: MIT
"""Includes point to lower levels and earlier folders; third-party headers stay at home (layers.txt)."""

import os

from tree import MODULES, includes

HERE = os.path.dirname(os.path.realpath(__file__))


def read_rules():
    levels = {}
    with open(os.path.join(HERE, "layers.txt"), encoding="utf-8") as file:
        rows = [line.split() for line in file if line.strip() and not line.startswith("#")]
    for height, row in enumerate(row for row in rows if row[0] == "level"):
        levels.update({module: height for module in row[1:]})
    homes = [(row[1], row[2:]) for row in rows if row[0] == "home"]
    folders = {row[1]: row[2:] for row in rows if row[0] == "folders"}
    return levels, homes, folders


def folder_of(path):
    """The folder of a module that a file lies in; None: it lies in the module itself."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else None


def judge_folder(path, what, order):
    """An include within a module that has folders."""
    here, there = folder_of(path), folder_of(what)
    for folder in (here, there):
        if folder is not None and folder not in order:
            return "layers.txt has no folder %s" % folder
    if there is None or there == here:
        return None
    if here is None:
        return 'a public header may not include "%s"' % what
    if what.endswith("/internal.h"):
        return '"%s" is private to %s' % (what, there)
    if order.index(there) > order.index(here):
        return '%s comes before %s and may not include "%s"' % (here, there, what)
    return None


def judge(path, how, what, rules):
    levels, homes, folders = rules
    module, other = path.split("/")[0], what.split("/")[0]
    if how == "<":
        for start, files in homes:
            if (what == start or (start.endswith("/") and what.startswith(start))) and path not in files:
                return "<%s> belongs to %s alone" % (what, " and ".join(files))
        return None
    if "/" not in what:
        return 'write "%s/%s": includes start at the root of the tree' % (os.path.dirname(path), what)
    if other not in MODULES:
        return None
    if other == module:
        return judge_folder(path, what, folders[module]) if module in folders else None
    if levels[other] >= levels[module]:
        return '%s (level %d) may not include "%s" (level %d)' % (module, levels[module], what, levels[other])
    if what.endswith("internal.h") or folder_of(what):
        return '"%s" is private to %s' % (what, other)
    return None


def check(tree):
    rules = read_rules()
    for path in tree.module_files():
        for line, how, what in includes(tree.read(path)):
            finding = judge(path, how, what, rules)
            if finding:
                yield path, line, finding


EXAMPLES = [
    ("up", {"oci/a.c": '#include "bake/vm.h"\n'}, "oci/a.c:1: oci (level 1) may not include"),
    ("sideways", {"oci/a.c": '\n#include "blockdev/blockdev.h"\n'}, "oci/a.c:2: oci (level 1) may not"),
    ("private", {"bake/a.c": '#include "oci/internal.h"\n'}, "is private to oci"),
    ("homeless", {"bake/a.c": "#include <curl/curl.h>\n"}, "belongs to registry/http.c and registry/http_url.c alone"),
    ("private folder", {"cli/a.c": '#include "bake/vm/qmp.h"\n'}, "is private to bake"),
    ("later folder", {"bake/vm/a.c": '#include "bake/guest/guest.h"\n'}, "bake/vm/a.c:1: vm comes before guest and may"),
    ("folder's own", {"bake/guest/a.c": '#include "bake/channel/internal.h"\n'}, "is private to channel"),
    ("public header", {"bake/bake.h": '#include "bake/vm/qmp.h"\n'}, "a public header may not include"),
    ("new folder", {"bake/misc/a.c": '#include "bake/vm/qmp.h"\n'}, "layers.txt has no folder misc"),
    ("local", {"bake/a.c": '#include "vm.h"\n'}, "includes start at the root"),
    ("good", {"bake/a.c": '#include "bake/vm.h"\n#include "oci/oci.h"\n#include <stdio.h>\n',
              "bake/guest/a.c": '#include "bake/guest/internal.h"\n#include "bake/vm/driver.h"\n#include "bake/push.h"\n',
              "registry/http.c": "#include <curl/curl.h>\n"}, None),
]
