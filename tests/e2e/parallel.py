#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One worker or four, in empty stores: the same disks."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import Bakery, check  # noqa: E402


def main():
    with Bakery(tasks=2) as bakery:
        serial = bakery.bake("--jobs", "1", store="one").expect()
        parallel = bakery.bake("--jobs", "4", store="four").expect()
        check(serial.base_disks() == parallel.base_disks(),
              "disks differ: %s %s" % (serial.base_disks(), parallel.base_disks()))
        check(all(serial.base_disks().values()), "no digest in the report")


main()
