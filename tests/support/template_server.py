# SPDX-License-Identifier: MIT
"""e2b_server.py as a process of its own, for tests in Python."""

import json
import os
import subprocess
import sys
import urllib.request

HERE = os.path.dirname(os.path.realpath(__file__))
KEY = "e2b_5ec2e7c0ffee5ec2e7c0ffee"


class Server:
    def __enter__(self):
        self.child = subprocess.Popen([sys.executable, os.path.join(HERE, "e2b_server.py")],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = "http://127.0.0.1:%d" % int(self.child.stdout.readline())
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.wait(30)
        self.child.stdout.close()

    def setup(self, **what):
        request = urllib.request.Request(self.url + "/_setup", json.dumps({"key": KEY, **what}).encode(),
                                         {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=30).close()

    def report(self):
        with urllib.request.urlopen(self.url + "/_report", timeout=30) as answer:
            return json.load(answer)
