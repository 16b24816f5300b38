#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much faster a task is ready when it is restored from its template than when booted cold.

Same machine, same run, one at a time; the median of three of each. Prints the figures, judges none.
"""

import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery  # noqa: E402

TASK, TIMES = "fix-links", 3


def cold_ms(bakery):
    """Start of the kernel to the agent's hello, and start command to ready; steps are left out."""
    stages = bakery.bake("--jobs", "1", "--force", "--no-boot-image", tasks=[TASK]).expect().tasks()[TASK]["stage_ms"]
    return stages["boot"] + stages["ready"]


def warm_ms(bakery):
    return json.loads(bakery.tb2("verify", "--json", TASK).expect().out)["restore_ms"]


def main():
    with Bakery(tasks=2) as bakery:
        bakery.bake("--jobs", "1", tasks=[TASK]).expect()  # fetches and probes what is only done once
        pairs = [(cold_ms(bakery), warm_ms(bakery)) for _ in range(TIMES)]
        cold, warm = (statistics.median(column) for column in zip(*pairs))
        print("cold and warm, ms: %s; medians %d and %d, ratio %.1f" % (pairs, cold, warm, cold / warm))


main()
