# SPDX-License-Identifier: MIT
"""Links between the project's documents, and from them to files, lead somewhere."""

import os
import re

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(text):
    """Anchors of the headings, as GitHub makes them."""
    heads = re.findall(r"^#+\s+(.*)$", FENCE.sub("", text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def check(tree):
    for path in [path for path in tree.paths if path.endswith(".md") and not path.startswith("tests/data/")]:
        text = FENCE.sub(lambda match: "\n" * match.group().count("\n"), tree.read(path))
        for match in LINK.finditer(text):
            line, target = text.count("\n", 0, match.start()) + 1, match.group(1)
            if re.match(r"[a-z]+:", target):
                continue
            place, _, anchor = target.partition("#")
            full = os.path.normpath(os.path.join(os.path.dirname(path), place)) if place else path
            if not tree.has(full):
                yield path, line, "link to %s, which is not there" % target
            elif anchor and full.endswith(".md") and anchor not in anchors(tree.read(full)):
                yield path, line, "link to %s, a heading that is not there" % target


EXAMPLES = [
    ("file", {"README.md": "a\n[x](docs/none.md)\n"}, "README.md:2: link to docs/none.md"),
    ("heading", {"README.md": "[x](docs/a.md#gone)\n", "docs/a.md": "# Here\n"}, "a heading that is not there"),
    ("good", {"README.md": "[x](docs/a.md#two-words) [y](https://example.com) [z](docs/)\n```\n[x](no)\n```\n",
              "docs/a.md": "# Two `words`\n[up](../README.md)\n"}, None),
]
