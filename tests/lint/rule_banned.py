# SPDX-License-Identifier: MIT
"""Calls that this project does not make (banned.txt)."""

import os

from tree import tokens

HERE = os.path.dirname(os.path.realpath(__file__))


def read_rules():
    rules = {}
    with open(os.path.join(HERE, "banned.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                name, where, instead = [part.strip() for part in line.split("|")]
                rules[name] = (where.split(), instead)
    return rules


def allowed(path, where):
    return any(path == place or path.startswith(place + "/") for place in where)


def check(tree):
    rules = read_rules()
    for path in tree.c_files():
        found = tokens(tree.read(path))
        for i, token in enumerate(found[:-1]):
            if token.kind != "name" or token.text not in rules or found[i + 1].text != "(":
                continue
            if i > 0 and found[i - 1].text in (".", "->"):
                continue
            where, instead = rules[token.text]
            if not allowed(path, where):
                yield path, token.line, "%s() is banned; use %s" % (token.text, instead)


EXAMPLES = [
    ("sprintf", {"base/a.c": "void f(char *b)\n{\n    sprintf(b, \"x\");\n}\n"}, "base/a.c:3: sprintf() is banned"),
    ("malloc", {"oci/a.c": "void *p = malloc (3);\n"}, "use mem_zalloc"),
    ("open", {"oci/a.c": "int f(void) { return open(\"x\", 0); }\n"}, "use file_open"),
    ("exit", {"bake/a.c": "void f(void) { exit(1); }\n"}, "exit() is banned"),
    ("after an odd string", {"bake/a.c": "char a[] = \"/*\"; char c = '\"'; void f(void) { exit(1); }\n"},
     "exit() is banned"),
    ("good", {"base/mem.c": "void *f(void) { return malloc(1); }\n", "cli/main.c": "void f(void) { exit(0); }\n",
              "oci/a.c": "/* sprintf(x) */\nint f(struct o *o) { return o->open(\"system(1)\") + openat(1); }\n"
                         "// atoi(x)\n#define ATOI \"atoi(x)\"\n"}, None),
]
