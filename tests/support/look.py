#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""look.py PROGRAM LOOK_UI DIR: pictures for people to look at, of made-up runs: the report as a browser shows it, and what a
terminal shows while a bake runs and at its end; light and dark, narrow and wide.

Chromium, without a network; terminals are tmux'. No two pictures may be the same.
"""

import html
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import make_journal  # noqa: E402

# Chromium's preferredColorScheme: 0 dark, 1 light.
SCHEMES = {"dark": 0, "light": 1}
WIDTHS = {"narrow": 420, "wide": 1280}
COLUMNS = (60, 80, 120, 160)
LINES = 40

TERMINAL = """\
<!doctype html><meta charset="utf-8"><style>
:root {{ color-scheme: light dark }}
body {{ margin: 0; background: #fff; color: #222 }}
pre {{ margin: 8px; font: 14px/18px "DejaVu Sans Mono", monospace; width: {columns}ch; outline: 1px solid #8888 }}
.bold {{ font-weight: bold }} .red {{ color: #c01c28 }}
@media (prefers-color-scheme: dark) {{ body {{ background: #1d1d1d; color: #ddd }} .red {{ color: #ff7b72 }} }}
</style><pre>{text}</pre>
"""


def picture(page, path, scheme, size):
    subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--host-resolver-rules=MAP * ~NOTFOUND", "--blink-settings=preferredColorScheme=%d" % SCHEMES[scheme],
                    "--window-size=%d,%d" % size, "--screenshot=" + path, "file://" + page],
                   check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(path)
    with open(path, "rb") as file:
        return file.read()


def report(program, where):
    journal, page = os.path.join(where, "run.jsonl"), os.path.join(where, "report.html")
    with open(journal, "w", encoding="utf-8") as out:
        out.write(make_journal.make())
    subprocess.run([program, "report", journal, "--html", page], check=True)
    return [picture(page, os.path.join(where, "%s-%s.png" % (scheme, width)), scheme, (pixels, 2400))
            for scheme in SCHEMES for width, pixels in WIDTHS.items()]


def tmux(*words):
    return subprocess.run(["tmux", "-L", "tb2-look-%d" % os.getpid(), "-f", "/dev/null", *words], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def screen(command, columns, wait):
    """What a terminal of so many columns shows, with its colours, some time after the command began."""
    tmux("new-session", "-d", "-x", str(columns), "-y", str(LINES), "TERM=xterm-256color exec %s; sleep 100" % command)
    try:
        time.sleep(wait)
        return tmux("capture-pane", "-e", "-p")
    finally:
        tmux("kill-server")


def as_html(text):
    """The few attributes that are used: bold red, and their end."""
    text = html.escape(text.rstrip())
    text = re.sub("\x1b\\[(?:1;31|1m\x1b\\[31)m", '<span class="bold red">', text)
    text = re.sub("\x1b\\[(?:0|0;10)?m", "</span>", text)
    text = re.sub("\x1b\\[(?:39|49)m", "", text)
    assert "\x1b" not in text, repr(text)
    return text


def terminals(look_ui, where):
    found = []
    for what, wait in (("live", 3), ("limited", 6), ("end", 1)):
        for columns in COLUMNS if what != "limited" else COLUMNS[1:2]:
            words = "%s %s" % (look_ui, "end" if what == "end" else "live")
            if what == "end":
                words = "sh -c '%s; sleep 100'" % words
            text = screen(words, columns, wait)
            page = os.path.join(where, "terminal.html")
            with open(page, "w", encoding="utf-8") as out:
                out.write(TERMINAL.format(columns=columns, text=as_html(text)))
            size = (columns * 9 + 24, 18 * (len(text.rstrip().splitlines()) + 2))
            found += [picture(page, os.path.join(where, "terminal-%s-%d-%s.png" % (what, columns, scheme)), scheme, size)
                      for scheme in SCHEMES]
    return found


def main():
    program, look_ui, where = map(os.path.realpath, sys.argv[1:4])
    os.makedirs(where, exist_ok=True)
    pictures = report(program, where) + terminals(look_ui, where)
    return 1 if len(set(pictures)) < len(pictures) else 0


if __name__ == "__main__":
    sys.exit(main())
