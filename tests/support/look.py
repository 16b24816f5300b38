#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""look.py PROGRAM DIR: pictures of the report of a made-up run as a browser shows it, for people to look at.

Chromium, without a network. All four must differ.
"""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import make_journal  # noqa: E402

# Chromium's preferredColorScheme: 0 dark, 1 light.
SCHEMES = {"dark": 0, "light": 1}
WIDTHS = {"narrow": 420, "wide": 1280}


def main():
    program, where = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
    os.makedirs(where, exist_ok=True)
    journal, page = os.path.join(where, "run.jsonl"), os.path.join(where, "report.html")
    with open(journal, "w", encoding="utf-8") as out:
        out.write(make_journal.make())
    subprocess.run([program, "report", journal, "--html", page], check=True)
    sizes = {}
    for scheme, number in SCHEMES.items():
        for width, pixels in WIDTHS.items():
            picture = os.path.join(where, "%s-%s.png" % (scheme, width))
            subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                            "--host-resolver-rules=MAP * ~NOTFOUND", "--blink-settings=preferredColorScheme=%d" % number,
                            "--window-size=%d,2400" % pixels, "--screenshot=" + picture, "file://" + page],
                           check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(picture, "rb") as file:
                sizes[scheme, width] = file.read()
            print(picture)
    return 1 if len(set(sizes.values())) < 4 else 0


if __name__ == "__main__":
    sys.exit(main())
