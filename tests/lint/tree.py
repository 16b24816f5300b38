# SPDX-License-Identifier: MIT
"""The source tree as the rules see it, and C source as tokens."""

import os
import re

MODULES = ("base", "oci", "blockdev", "manifests", "registry", "bake", "cli")

TOKEN = re.compile(r"""
    (?P<skip>/\*.*?\*/|//[^\n]*|\s+)
  | (?P<string>L?"(?:\\.|[^"\\\n])*"|L?'(?:\\.|[^'\\\n])*')
  | (?P<name>[A-Za-z_]\w*)
  | (?P<number>\.?\d(?:[\w.]|[eEpP][+-])*)
  | (?P<mark>->|\+\+|--|<<=|>>=|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||\.\.\.|.)
""", re.X | re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<how>[<"])(?P<what>[^>"]+)[>"]', re.M)


class Token:
    __slots__ = ("kind", "text", "line")

    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line


def tokens(text):
    """Tokens of C source without comments and preprocessor directives."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = DIRECTIVE.sub(blank, COMMENT.sub(lambda m: blank(m) if m.group()[0] == "/" else m.group(), text))
    line, found = 1, []
    for match in TOKEN.finditer(text):
        if match.lastgroup != "skip":
            found.append(Token(match.lastgroup, match.group(), line))
        line += match.group().count("\n")
    return found


def includes(text):
    """(line, how, what) of each include; how is '"' or '<'."""
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group("how"), match.group("what")


class Tree:
    def __init__(self, root):
        self.root = root
        self.paths = []
        for top, directories, files in os.walk(root):
            relative = os.path.relpath(top, root)
            directories[:] = sorted(
                d for d in directories
                if d != "__pycache__" and not (relative == "." and (d.startswith("build") or d in (".git", ".cache"))))
            self.paths += [os.path.normpath(os.path.join(relative, name)) for name in files]
        self.paths.sort()

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def has(self, path):
        return os.path.exists(os.path.join(self.root, path))

    def c_files(self, suffixes=(".c", ".h")):
        """C sources of the product and its tests; data are not sources."""
        return [path for path in self.paths
                if path.endswith(suffixes) and not path.startswith("tests/data/")
                and path.split("/")[0] in MODULES + ("tests",)]

    def module_files(self, suffixes=(".c", ".h")):
        return [path for path in self.c_files(suffixes) if path.split("/")[0] in MODULES]
