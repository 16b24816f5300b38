# SPDX-License-Identifier: MIT
"""Each source starts with one SPDX line (second after #!), and has no licence banner."""

SUFFIXES = (".c", ".h", ".S", ".py", ".sh", ".yaml", ".yml", ".cmake")
NAMES = ("CMakeLists.txt", "dev", ".ci/run")
LINE = "SPDX-License-Identifier: MIT"


def check(tree):
    for path in tree.paths:
        named = path in NAMES or path.endswith("/CMakeLists.txt")
        if path.startswith("tests/data/") or not (named or path.endswith(SUFFIXES)):
            continue
        lines = tree.read(path).split("\n", 2)
        first = 1 if lines[0].startswith("#!") else 0
        if len(lines) <= first or LINE not in lines[first]:
            yield path, first + 1, "no '%s'" % LINE


EXAMPLES = [
    ("source", {"oci/a.c": "int x;\n"}, "oci/a.c:1: no 'SPDX"),
    ("script", {"tests/a.sh": "#!/bin/sh\necho\n"}, "tests/a.sh:2: no 'SPDX"),
    ("late", {"oci/CMakeLists.txt": "\n# SPDX-License-Identifier: MIT\n"}, "oci/CMakeLists.txt:1"),
    ("good", {"oci/a.c": "/* SPDX-License-Identifier: MIT */\n", "tests/data/x.c": "int x;\n",
              "dev": "#!/bin/bash\n# SPDX-License-Identifier: MIT\n", "docs/a.md": "x\n"}, None),
]
