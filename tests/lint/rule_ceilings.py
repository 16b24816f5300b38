# SPDX-License-Identifier: MIT
"""Sizes that a reader can hold: lines of a file and a function, parameters, nesting."""

from tree import tokens

FILE_LINES = 800
FUNCTION_LINES = 120
PARAMETERS = 6
NESTING = 4


def opening(found, closing):
    """Index of the bracket that the one at `closing` ends."""
    depth = 0
    for i in range(closing, -1, -1):
        depth += (found[i].text == ")") - (found[i].text == "(")
        if depth == 0:
            return i
    return None


def parameters(found, start, end):
    """Number of parameters between the brackets at `start` and `end`."""
    inner = found[start + 1:end]
    if not inner or (len(inner) == 1 and inner[0].text == "void"):
        return 0
    depth, count = 0, 1
    for token in inner:
        depth += (token.text in "([{") - (token.text in ")]}")
        count += token.text == "," and depth == 0
    return count


def functions(found):
    """(name token, parameters, index of '{', index of its '}') of each definition."""
    depth, body = 0, None
    for i, token in enumerate(found):
        if token.text == "{":
            if depth == 0 and i > 0 and found[i - 1].text == ")":
                start = opening(found, i - 1)
                if start and found[start - 1].kind == "name":
                    body = (found[start - 1], parameters(found, start, i - 1), i)
            depth += 1
        elif token.text == "}":
            depth -= 1
            if depth == 0 and body:
                yield body + (i,)
                body = None


def deepest(found, start, end):
    """(depth, line) of the deepest control block; braces of initialisers and bare blocks do not count."""
    stack, worst = [], (0, found[start].line)
    for i in range(start + 1, end):
        if found[i].text == "{":
            before = found[i - 1].text
            stack.append(before in (")", "else", "do") and not is_literal(found, i))
            worst = max(worst, (sum(stack), found[i].line), key=lambda pair: pair[0])
        elif found[i].text == "}":
            stack.pop()
    return worst


def is_literal(found, brace):
    """`(struct x){…}` is a compound literal, no block."""
    if found[brace - 1].text != ")":
        return False
    start = opening(found, brace - 1)
    return start is None or found[start - 1].kind != "name" or found[start - 1].text in ("return", "sizeof")


def check(tree):
    for path in tree.c_files():
        text = tree.read(path)
        if text.count("\n") > FILE_LINES:
            yield path, FILE_LINES + 1, "%d lines, at most %d" % (text.count("\n"), FILE_LINES)
        found = tokens(text)
        for name, count, start, end in functions(found):
            lines = found[end].line - name.line + 1
            depth, line = deepest(found, start, end)
            if lines > FUNCTION_LINES:
                yield path, name.line, "%s has %d lines, at most %d" % (name.text, lines, FUNCTION_LINES)
            if count > PARAMETERS:
                yield path, name.line, "%s has %d parameters, at most %d" % (name.text, count, PARAMETERS)
            if depth > NESTING:
                yield path, line, "%s nests %d deep, at most %d" % (name.text, depth, NESTING)


def nested(depth):
    return "void f(void)\n{\n" + "if (x) {\n" * depth + "g();\n" + "}\n" * depth + "}\n"


EXAMPLES = [
    ("long file", {"oci/a.c": "int x;\n" * 801}, "801 lines, at most 800"),
    ("long function", {"oci/a.c": "int f(int a)\n{\n" + "a++;\n" * 118 + "}\n"}, "oci/a.c:1: f has 121 lines"),
    ("parameters", {"oci/a.c": "static int\nf(int a, int b, int c, int d, int (*e)(int, int), int f, int g)\n{\n}\n"},
     "oci/a.c:2: f has 7 parameters"),
    ("nesting", {"oci/a.c": nested(5)}, "f nests 5 deep"),
    ("switch and else", {"oci/a.c": "void f(void)\n{\nfor (;;) { do { if (a) { } else { switch (b) { case 1: while (c) "
                                    "{ } } } } while (0); }\n}\n"}, "f nests 5 deep"),
    ("good", {"oci/a.c": "int x;\n" * 700 + nested(4),
              "oci/b.c": "int f(int a, int b, int c, int d, int (*e)(int, int, int), int f)\n{\n" + "a++;\n" * 117 + "}\n",
              "oci/c.c": "void f(void)\n{\nif (a) { if (b) { if (c) { if (d) { x = (struct y){.z = {1}}; } } } }\n}\n"},
     None),
]
