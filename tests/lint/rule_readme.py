# SPDX-License-Identifier: MIT
"""What the documents tell people to type exists: `./dev` commands, tb2-bake's commands and options.

tb2-bake is asked (`--help`) when TB2_BAKE names it.
"""

import os
import re
import subprocess

SHELL = re.compile(r"^```(?:sh|console|bash)\n(.*?)^```", re.M | re.S)


def typed_lines(text):
    """(line, words) of each command in a shell block; a leading `$ ` and a comment are cut off."""
    for block in SHELL.finditer(text):
        first = text.count("\n", 0, block.start(1)) + 1
        console = "\n$ " in "\n" + block.group(1)
        for i, line in enumerate(block.group(1).splitlines()):
            if console and not line.startswith("$ "):
                continue
            words = re.sub(r"\s#.*", "", line.removeprefix("$ ")).split()
            if words and not words[0].startswith("#"):
                yield first + i, words


def dev_commands(tree):
    return set(re.findall(r"^do_(\w+)\(\)", tree.read("dev"), re.M)) if tree.has("dev") else set()


def help_text(*command):
    """What `tb2-bake [command] --help` prints; None without a program to ask."""
    program = os.environ.get("TB2_BAKE")
    if not program or not os.path.exists(program):
        return None
    return subprocess.run([program, *command, "--help"], text=True, capture_output=True).stdout


def judge_call(words):
    """A command line of tb2-bake, up to `--`; the line without a command word is a bake."""
    own = [word.strip("[]()").split("=")[0] for word in (words[:words.index("--")] if "--" in words else words)]
    command = own[0] if own and re.match(r"[a-z]+$", own[0]) else "bake"
    if not re.search(r"^  %s\b" % command, help_text(), re.M):
        return "tb2-bake has no command %s" % command
    known = help_text(command)
    for option in [word for word in own if re.match(r"--[a-z]", word)]:
        if not re.search(re.escape(option) + r"\b", known):
            return "tb2-bake %s --help knows no %s" % (command, option)
    return None


def judge(words, dev):
    if words[0] == "./dev" and len(words) > 1 and words[1] not in dev:
        return "./dev has no command %s" % words[1]
    if os.path.basename(words[0]) == "tb2-bake" and help_text() is not None:
        return judge_call(words[1:])
    return None


def check(tree):
    dev = dev_commands(tree)
    for path in [path for path in tree.paths if path.endswith(".md") and not path.startswith("tests/data/")]:
        for line, words in typed_lines(tree.read(path)):
            finding = judge(words, dev)
            if finding:
                yield path, line, finding


EXAMPLES = [
    ("command", {"README.md": "x\n```sh\n./dev nothing\n```\n", "dev": "do_test()\n"},
     "README.md:3: ./dev has no command nothing"),
    ("console", {"README.md": "```console\nout\n$ ./dev nothing   # why\n```\n", "dev": ""}, "no command nothing"),
    ("good", {"README.md": "```sh\n./dev test  # all\n```\n```console\n$ ./dev test quick\n./dev nothing\n```\n",
              "dev": "do_test()\n{\n}\n"}, None),
]
