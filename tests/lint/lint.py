#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs one house rule over the source tree.

  lint.py RULE [--root DIR]      prints `path:line: finding`, exit status 1 if there are any
  lint.py RULE --self-test       the rule must catch its own bad examples and pass its good ones

A rule is a module rule_RULE.py with `check(tree)`, which yields (path, line, finding), and
EXAMPLES: a list of (name, {path: content}, text that a finding must hold, or None for no finding).
"""

import argparse
import importlib
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
from tree import Tree  # noqa: E402


def write_example(root, files):
    for path, content in files.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as out:
            out.write(content)


def self_test(rule):
    wrong = 0
    for name, files, expected in rule.EXAMPLES:
        with tempfile.TemporaryDirectory() as root:
            write_example(root, files)
            found = ["%s:%d: %s" % finding for finding in rule.check(Tree(root))]
        good = any(expected in line for line in found) if expected else not found
        if not good:
            wrong += 1
            print("example '%s': expected %s, got %s" % (name, repr(expected or "no finding"), found or "none"))
    bad = sum(1 for example in rule.EXAMPLES if example[2])
    print("%d examples, %d of them bad, %d judged wrongly" % (len(rule.EXAMPLES), bad, wrong))
    return 1 if wrong or not bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rule")
    parser.add_argument("--root", default=os.path.dirname(os.path.dirname(HERE)))
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    rule = importlib.import_module("rule_" + options.rule)
    if options.self_test:
        return self_test(rule)
    count = 0
    for path, line, finding in rule.check(Tree(options.root)):
        print("%s:%d: %s" % (path, line, finding))
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
