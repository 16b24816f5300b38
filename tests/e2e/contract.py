#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The contract server does what the contract says: a row for each point, for AgentENV and for E2B Cloud."""

import http.client
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "support"))
from bakery import HERE, check  # noqa: E402

KEY = "e2b_0123456789abcdef"
GOOD = {"name": "a", "cpuCount": 2, "memoryMB": 2048}
ID = "01890000-0000-7000-8000-000000000001"
READY = {"templates": [{"alias": "a", "status": "ready"}]}
WAITING = {"templates": [{"alias": "a", "status": "waiting"}]}
START = "/v2/templates/%s/builds/%s" % (ID, ID)
OTHER = "01890000-0000-7000-8000-00000000dead"


def step(kind, *args, **more):
    return {"steps": [{"type": kind, "args": list(args), **more}]}


# (name, setup, method, path, body, status, code inside or text of the body, None: not looked at)
AGENTENV = [
    ("health needs no key", {}, "GET", "/health", None, 204, None),
    ("a name is needed", {}, "POST", "/v3/templates", {}, 400, 400),
    ("an alias is not a name", {}, "POST", "/v3/templates", {"alias": "a"}, 400, 400),
    ("no tag in a name", {}, "POST", "/v3/templates", {"name": "a:b"}, 400, 400),
    ("no namespace", {}, "POST", "/v3/templates", {"name": "n/a"}, 400, 400),
    ("case is kept", {}, "POST", "/v3/templates", {"name": "A_b-1"}, 202, "A_b-1"),
    ("long names", {}, "POST", "/v3/templates", {"name": "a" * 129}, 400, "length"),
    ("no tags", {}, "POST", "/v3/templates", {**GOOD, "tags": ["x"]}, 400, 400),
    ("empty tags", {}, "POST", "/v3/templates", {**GOOD, "tags": []}, 202, None),
    ("odd CPUs", {}, "POST", "/v3/templates", {**GOOD, "cpuCount": 33}, 202, None),
    ("no CPU", {}, "POST", "/v3/templates", {**GOOD, "cpuCount": 0}, 400, "minimum"),
    ("little memory", {}, "POST", "/v3/templates", {**GOOD, "memoryMB": 127}, 400, "minimum"),
    ("wrong type", {}, "POST", "/v3/templates", {**GOOD, "cpuCount": "2"}, 422, "deserialize"),
    ("no JSON", {}, "POST", "/v3/templates", b"{", 400, "parse"),
    ("too big", {}, "POST", "/v3/templates", b"{\"name\": \"" + b"a" * (2 << 20) + b"\"}", 413, "length"),
    ("markup", WAITING, "POST", START, {**step("RUN", "cat <file"), "fromImage": "i"}, 400, "xss"),
    ("a '<' that is none", WAITING, "POST", START, {**step("RUN", "cat < file"), "fromImage": "i"}, 202, None),
    ("bound once", READY, "POST", "/v3/templates", GOOD, 400, 400),
    ("bound by a failed one", {"templates": [{"alias": "a", "status": "error"}]}, "POST", "/v3/templates", GOOD, 400, 400),
    ("ids differ", WAITING, "POST", "/v2/templates/%s/builds/%s" % (ID, OTHER), {}, 400, 400),
    ("ids are UUIDs", WAITING, "POST", "/v2/templates/x/builds/x", {}, 400, 400),
    ("no record", WAITING, "POST", "/v2/templates/%s/builds/%s" % (OTHER, OTHER), {}, 404, 404),
    ("started before", READY, "POST", START, {}, 400, 400),
    ("image and template", WAITING, "POST", START, {"fromImage": "i", "fromTemplate": "a"}, 400, 400),
    ("neither", WAITING, "POST", START, {}, 202, None),
    ("a template that is not there", WAITING, "POST", START, {"fromTemplate": "b"}, 400, 400),
    ("a tag in fromTemplate", WAITING, "POST", START, {"fromTemplate": "a:b"}, 400, 400),
    ("blank RUN", WAITING, "POST", START, step("RUN", " "), 400, 400),
    ("lower case type", WAITING, "POST", START, step("run", "x"), 202, None),
    ("odd ENV", WAITING, "POST", START, step("ENV", "A"), 400, 400),
    ("COPY", WAITING, "POST", START, step("COPY", "a", "b"), 400, 400),
    ("filesHash", WAITING, "POST", START, step("RUN", "x", filesHash="h"), 400, 400),
    ("an alias for both ids", READY, "GET", "/templates/a/builds/a/status", None, 200, "ready"),
    ("different ids", READY, "GET", "/templates/a/builds/b/status", None, 404, 404),
    ("logs are empty", READY, "GET", "/templates/a/builds/a/status?limit=999", None, 200, '"logEntries": []'),
    ("malformed id, in a 500", READY, "GET", "/templates/a:b", None, 500, 400),
    ("malformed id to delete", READY, "DELETE", "/templates/a:b", None, 500, 400),
    ("deleting nothing", {}, "DELETE", "/templates/a", None, 204, None),
    ("alias of an unbuilt one", WAITING, "GET", "/templates/aliases/a", None, 200, ID),
    ("alias unknown", {}, "GET", "/templates/aliases/a", None, 404, 404),
    ("alias malformed", {}, "GET", "/templates/aliases/a:b", None, 400, 400),
    ("limit out of range", {}, "GET", "/v2/templates?limit=101", None, 400, None),
    ("bad cursor", READY, "GET", "/v2/templates?nextToken=x", None, 400, 400),
    ("snapshots are not listed", {"templates": [{"alias": "a", "status": "ready", "source": "Sandbox"}]}, "GET",
     "/v2/templates", None, 200, "[]"),
    ("but found", {"templates": [{"alias": "a", "status": "ready", "source": "Sandbox"}]}, "GET", "/templates/aliases/a",
     None, 200, ID),
    ("sandbox of nothing", {}, "POST", "/sandboxes", {"templateID": "a"}, 400, 400),
    ("sandbox of an unbuilt one", WAITING, "POST", "/sandboxes", {"templateID": "a"}, 500, 400),
    ("sandbox without its artifact", {**READY, "unready": ["a"]}, "POST", "/sandboxes", {"templateID": "a"}, 500, 404),
    ("sandbox", READY, "POST", "/sandboxes", {"templateID": "a", "secure": True}, 201, "envdAccessToken"),
    ("killing nothing", READY, "DELETE", "/sandboxes/x", None, 404, 404),
    ("cold sandbox, small disk", READY, "POST", "/sandboxes-cold", {"image": "i", "diskSizeMB": 1000}, 400, None),
    ("cold sandbox", READY, "POST", "/sandboxes-cold", {"image": "i"}, 201, "sandboxID"),
    ("no tags endpoint", READY, "GET", "/templates/a/tags", None, 404, None),
]
CLOUD = [
    ("health says something", {}, "GET", "/health", None, 200, "success"),
    ("namespace, case, tag", {}, "POST", "/v3/templates", {"name": "Team/A:v1"}, 202, '"a"'),
    ("alias instead of a name", {}, "POST", "/v3/templates", {"alias": "a"}, 202, None),
    ("built again", READY, "POST", "/v3/templates", GOOD, 202, None),
    ("odd CPUs", {}, "POST", "/v3/templates", {**GOOD, "cpuCount": 3}, 400, 400),
    ("many CPUs", {}, "POST", "/v3/templates", {**GOOD, "cpuCount": 34}, 400, 400),
    ("odd memory", {}, "POST", "/v3/templates", {**GOOD, "memoryMB": 2049}, 400, 400),
    ("someone else's", {"taken": "a"}, "POST", "/v3/templates", GOOD, 409, 409),
    ("someone else's, looked up", {"taken": "a"}, "GET", "/templates/aliases/a", None, 403, 403),
    ("too many builds", {"capacity": 0, "capacity_at": "create"}, "POST", "/v3/templates", GOOD, 429, 429),
    ("a tag that is not there", READY, "GET", "/templates/aliases/a:v9", None, 404, 404),
    ("unknown build", READY, "GET", "/templates/a/builds/x/status", None, 400, 400),
    ("deleting nothing", {}, "DELETE", "/templates/a", None, 404, 404),
    ("tags", READY, "GET", "/templates/a/tags", None, 200, None),
    ("sandbox of nothing", {}, "POST", "/sandboxes", {"templateID": "a"}, 404, 404),
]


class Server:
    def __enter__(self):
        self.child = subprocess.Popen([sys.executable, os.path.join(HERE, "e2b_server.py")],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = int(self.child.stdout.readline())
        return self

    def __exit__(self, *_):
        self.child.stdin.close()
        self.child.wait(30)
        self.child.stdout.close()

    def ask(self, method, path, body=None, headers=(("X-API-Key", KEY),)):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        if data is not None:
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers


def check_row(server, mode, row):
    name, setup, method, path, body, status, expected = row
    server.ask("POST", "/_setup", {"mode": mode, "key": KEY, **setup})
    found, text, _ = server.ask(method, path, body)
    check(found == status, "%s: status %s, wanted %s: %s" % (name, found, status, text[:300]))
    if isinstance(expected, int):
        check(json.loads(text)["code"] == expected, "%s: %s" % (name, text))
    elif expected:
        check(expected in text, "%s: %s" % (name, text[:300]))


def keys(server):
    """Exactly once, and right, or 401 without a word."""
    server.ask("POST", "/_setup", {"key": KEY})
    for headers in ((), (("X-API-Key", "e2b_00"),), (("X-API-Key", KEY), ("X-API-Key", KEY))):
        status, text, _ = server.ask("GET", "/v2/templates", None, headers)
        check((status, text) == (401, ""), (headers, status, text))


def pages(server):
    server.ask("POST", "/_setup", {"templates": [{"alias": "t%d" % n, "status": "ready", "age_s": n} for n in range(7)]})
    seen, path = [], "/v2/templates?limit=3"
    while path:
        _, text, headers = server.ask("GET", path)
        seen += [t["names"][0] for t in json.loads(text)]
        token = headers.get("x-next-token")
        path = "/v2/templates?limit=3&nextToken=" + token if token else None
    check(seen == ["t%d" % n for n in range(7)], seen)


def life_of_a_sandbox(server, mode, state):
    """Time pauses it on AgentENV unless it was told not to, and kills it on Cloud."""
    server.ask("POST", "/_setup", {"mode": mode, "manual": True, **READY})
    sandbox = json.loads(server.ask("POST", "/sandboxes", {"templateID": "a", "timeout": 5})[1])["sandboxID"]
    server.ask("POST", "/_clock", {"ms": 6000})
    status, text, _ = server.ask("GET", "/sandboxes/" + sandbox)
    check((json.loads(text).get("state") if status == 200 else None) == state, text)


def main():
    with Server() as server:
        for row in AGENTENV:
            check_row(server, "agentenv", row)
        for row in CLOUD:
            check_row(server, "cloud", row)
        keys(server)
        pages(server)
        life_of_a_sandbox(server, "agentenv", "paused")
        life_of_a_sandbox(server, "cloud", None)


main()
