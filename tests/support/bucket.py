# SPDX-License-Identifier: MIT
"""A bucket of a real S3 server (s3_server.sh) for the end-to-end tests."""

import os
import subprocess

from bakery import HERE, check, skip

LEASE = 3
KEYS = {"AWS_ACCESS_KEY_ID": "tb2-test-key", "AWS_SECRET_ACCESS_KEY": "tb2-test-secret",
        "TB2_BAKE_REMOTE_LEASE": str(LEASE)}
SERVER = os.path.join(HERE, "s3_server.sh")


class Bucket:
    def __init__(self, bakery, binaries):
        self.bakery, self.binaries = bakery, binaries

    def __enter__(self):
        os.makedirs(self.bakery.path("s3", "shared"))
        done = subprocess.run([SERVER, "start", self.binaries, self.bakery.home], check=True, text=True,
                              stdout=subprocess.PIPE)
        self.url = "s3://shared/store?endpoint=http://127.0.0.1:%s" % done.stdout.strip()
        return self

    def __exit__(self, *_):
        subprocess.run([SERVER, "stop", self.bakery.home], check=True)

    def names(self, top):
        found = []
        for here, _, files in os.walk(self.bakery.path("s3", "shared", "store", top)):
            found += [os.path.join(here, name) for name in files]
        return found

    def requests(self):
        """(operation, object, status) of each request so far."""
        with open(self.bakery.path("s3.log"), encoding="utf-8") as file:
            lines = [line.split() for line in file if " s3_" in line]
        found = []
        for line in lines:
            at = next(i for i, word in enumerate(line) if word.startswith("s3_"))
            found.append((line[at][3:], line[at + 1], line[at + 3]))
        return found

    def check_nothing_sent_twice(self):
        """No object but pointers and claims was written by two requests."""
        puts = [name for operation, name, status in self.requests() if operation == "PutObject" and status == "200"]
        kept = [name for name in puts if "/claims/" not in name]
        check(len(kept) == len(set(kept)), "sent twice: %s" % [name for name in kept if kept.count(name) > 1][:3])


def need_server(binaries):
    """Builds the server unless it is there, and sets what its clients need."""
    if os.environ.get("TB2_NO_S3") == "1":
        skip("TB2_NO_S3 is set")
    subprocess.run([SERVER, "build", binaries], check=True)
    os.environ.update(KEYS)
