#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A recipe provider for trainers that keep their recipe in a module `tb2_sandbox_e2b` (radixark/miles, in its OpenEnv
example): imports it from a checkout of yours and prints, for each task, what it would build, and under which alias.

    tb2-bake --tasks-dir DIR --all --recipe-from 'python3 miles.py CHECKOUT'

CHECKOUT is the checkout, or the directory of the module in it. Nothing of it is copied: its own function that makes a
template is called with a stand-in for the `e2b` package, which writes down what it is told and builds nothing. Tasks
are read from stdin, a JSON object {"task", "directory"} a line, or are directories on the command line.
"""
import contextlib
import json
import os
import sys
import types
from pathlib import Path

MODULE = "tb2_sandbox_e2b"
MAKER = "ensure_task_template"


class Recorder:
    """Takes the calls of a template builder; what is not known here ends the program rather than being lost."""

    def __init__(self, *_, **__):
        self.said = {"image": None, "user": None, "commands": [], "start": None, "ready": None}

    def from_image(self, image, *_, **__):
        self.said["image"] = image
        return self

    def set_user(self, user):
        if self.said["commands"] and self.said["user"] != user:
            raise SystemExit(f"{MODULE} changes the user between commands: not supported")
        self.said["user"] = user
        return self

    def run_cmd(self, command, user=None, **__):
        commands = [command] if isinstance(command, str) else list(command)
        if user is not None:
            self.set_user(user)
        self.said["commands"] += commands
        return self

    def set_start_cmd(self, start, ready=None):
        self.said["start"], self.said["ready"] = start, ready if isinstance(ready, str) else None
        return self

    def set_ready_cmd(self, ready):
        self.said["ready"] = ready
        return self

    def __getattr__(self, name):
        raise SystemExit(f"{MODULE} uses Template.{name}, which this provider does not know")


class Template(Recorder):
    built = None

    @staticmethod
    def alias_exists(*_, **__):
        return False

    @staticmethod
    def build(template, name=None, *_, alias=None, cpu_count=None, memory_mb=None, **__):
        Template.built = {**template.said, "alias": name or alias,
                          "resources": {"cpu_count": cpu_count, "memory_mb": memory_mb}}
        return types.SimpleNamespace(template_id="none", build_id="none")


def stand_in():
    """A module `e2b` that builds nothing."""
    module = types.ModuleType("e2b")
    module.Template = Template
    module.default_build_logger = lambda *_, **__: None
    module.wait_for_timeout = lambda *_: None
    sys.modules["e2b"] = module
    os.environ.setdefault("E2B_API_KEY", "e2b_" + "0" * 40)  # is asked for, goes nowhere


def find_module(checkout):
    found = [Path(checkout)] if (Path(checkout) / (MODULE + ".py")).is_file() else sorted(
        path.parent for path in Path(checkout).rglob(MODULE + ".py"))
    if len(found) != 1:
        raise SystemExit(f"{checkout}: {len(found)} files named {MODULE}.py; name the directory of one")
    sys.path.insert(0, str(found[0]))
    return __import__(MODULE)


def describe(module, name, directory):
    Template.built = None
    with contextlib.redirect_stdout(sys.stderr):
        alias = getattr(module, MAKER)(Path(directory))
    if not Template.built:
        raise SystemExit(f"{MODULE}.{MAKER} has built nothing for {name}")
    answer = {"task": name, **Template.built}
    answer["alias"] = alias if isinstance(alias, str) else answer["alias"]
    answer["resources"] = {k: v for k, v in answer["resources"].items() if v is not None}
    return {k: v for k, v in answer.items() if v is not None}


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    stand_in()
    module = find_module(sys.argv[1])
    tasks = [(Path(d).resolve().name, d) for d in sys.argv[2:]]
    if not tasks:
        tasks = [(t["task"], t["directory"]) for t in map(json.loads, filter(str.strip, sys.stdin))]
    for name, directory in tasks:
        print(json.dumps(describe(module, name, directory), ensure_ascii=False), flush=True)


main()
