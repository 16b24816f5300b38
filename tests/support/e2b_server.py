# SPDX-License-Identifier: MIT
"""A template server for tests that keeps to the API's contract: AgentENV at every point that a client can get
wrong, or, with mode "cloud", E2B Cloud. Prints its port, serves until stdin is closed.

POST /_setup starts over with what is said:
  mode       "agentenv" (default) or "cloud"
  key        the one API key
  polls      status calls that answer "building" before a build ends
  build_ms   time that a build takes, instead; a build from another template takes `resume_ms` (0)
  manual     true: time stands still but for POST /_clock {"ms"}
  capacity   builds at once; more are refused with `capacity_answer` {"status", "code", "message", "retry_after"}
             at the call `capacity_at`: "create" or "start" (default)
  log_lines  of each build (cloud); `forgets_offset`: the log cursor is not looked at
  fail       {"step", "message"}: builds end in error; {"image": TEXT, ...}: those of that image alone; {"times": N}
  taken      alias owned by someone else (cloud: 403 and 409)
  conflict   {"status", "code", "message"} for a name that is bound, instead of the usual words
  name_field "name" (default), "alias" (and nothing unknown), "both"
  templates  records that exist: {"alias", "status", "age_s", "polls", "source"}
  answers    [{"on": "METHOD /prefix", "status", "type", "body", "headers"}], each used once, in order
  race       alias that another client makes, ready, just before our POST /v3/templates
  hang       true: builds never end
  exits      {"text of a command": exit status}, instead of running it
  unready    aliases whose sandboxes cannot be started
GET /_report -> calls ["METHOD path"], bodies (of builds), requests [{"call", "headers", "body"}], problems, aliases,
  sandboxes (alive), log [[ms, what, alias]], peak (builds at once)
"""
import datetime
import http.server
import json
import os
import re
import sys
import threading
import time
import urllib.parse
import uuid

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from e2b_sandboxes import Sandboxes  # noqa: E402
from e2b_templates import Refusal, Templates  # noqa: E402

LOCK = threading.RLock()
BODY_MAX = 2 << 20


class State:
    def __init__(self, setup):
        self.setup = setup
        self.cloud = setup.get("mode", "agentenv") == "cloud"
        self.key = setup.get("key", "e2b_0123456789abcdef")
        self.answers = list(setup.get("answers", []))
        self.race = setup.get("race")
        self.calls, self.bodies, self.requests, self.problems, self.log = [], [], [], [], []
        self.manual = setup.get("manual", False)
        self.manual_ms = 0
        self.start = time.monotonic()
        self.wall = datetime.datetime.now(datetime.timezone.utc)
        self.counter = 0
        self.templates = Templates(self)
        self.sandboxes = Sandboxes(self)

    def now_ms(self):
        return self.manual_ms if self.manual else int((time.monotonic() - self.start) * 1000)

    def stamp(self, ms):
        return (self.wall + datetime.timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def new_uuid(self):
        self.counter += 1
        return str(uuid.UUID(int=(0x01890000_0000_7000_8000 << 48) + self.counter))

    def note(self, what, alias):
        self.log.append([self.now_ms(), what, alias])

    def report(self):
        return {"calls": self.calls, "bodies": self.bodies, "requests": self.requests, "problems": self.problems,
                "log": self.log, "aliases": sorted(t.alias for t in self.templates.all.values() if t.alias),
                "peak": self.templates.peak, "sandboxes": self.sandboxes.alive()}


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from strings(v)
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state = State({})

    def log_message(self, *args):
        pass

    # ---- answers

    def answer(self, status, body=None, kind="application/json", headers=None):
        data = b"" if body is None else body if isinstance(body, bytes) else (
            body.encode() if isinstance(body, str) else json.dumps(body).encode())
        self.send_response(status)
        if data:
            self.send_header("Content-Type", kind)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def problem(self, text):
        self.state.problems.append(f"{self.command} {self.path}: {text}")

    # ---- dispatch

    def handle_any(self):
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self.read_chunks()
        path, _, query = self.path.partition("?")
        port = self.headers.get("e2b-sandbox-port") or self.headers.get("x-agentenv-target-port")
        if port and not path.startswith("/_"):
            return self.state.sandboxes.proxy(self, path, data, port)  # takes its time, outside the lock
        with LOCK:
            try:
                return self.locked(path, dict(urllib.parse.parse_qsl(query)), data)
            except Refusal as refusal:
                return self.answer(refusal.status, refusal.body, refusal.kind, refusal.headers)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = do_HEAD = handle_any

    def read_chunks(self):
        data = b""
        while True:
            size = int(self.rfile.readline().split(b";")[0], 16)
            data += self.rfile.read(size)
            self.rfile.readline()
            if size == 0:
                return data

    def locked(self, path, query, data):
        if path == "/_setup":
            Handler.state = State(json.loads(data))
            return self.answer(200, {})
        s = self.state
        if path == "/_clock":
            s.manual_ms = max(s.manual_ms, json.loads(data)["ms"])
            return self.answer(200, {})
        if path == "/_report":
            s.templates.settle()
            return self.answer(200, s.report())
        call = f"{self.command} {path}"
        s.calls.append(call)
        s.templates.settle()
        if s.answers and call.startswith(s.answers[0]["on"]):
            a = s.answers.pop(0)
            return self.answer(a["status"], a.get("body"), a.get("type", "application/json"), a.get("headers"))
        if not self.headers.get("Host"):
            return self.answer(400)
        if path == "/health":
            return self.answer(200, "Health check successful", "text/plain") if s.cloud else self.answer(204)
        # Exactly once, and right; nothing is said about why not.
        if (self.headers.get_all("X-API-Key") or []) != [s.key]:
            return self.answer(401, {"code": 401, "message": "Invalid API key"}) if s.cloud else self.answer(401)
        body = self.read_body(data) if self.command in ("POST", "PUT", "PATCH") else None
        if body is None and data:
            self.problem("a body where none belongs")
        s.requests.append({"call": call, "headers": {k.lower(): v for k, v in self.headers.items()}, "body": body})
        return self.route(path, query, body)

    def read_body(self, data):
        """What is refused before any handler sees it is told in plain text."""
        if (self.headers.get("Content-Type") or "").split(";")[0] != "application/json":
            raise Refusal.text(415, "Expected request with `Content-Type: application/json`")
        if len(data) > BODY_MAX:
            raise Refusal.text(413, "length limit exceeded")
        try:
            body = json.loads(data)
        except ValueError:
            raise Refusal.text(400, "Failed to parse the request body as JSON") from None
        if not isinstance(body, dict):
            raise Refusal.text(422, "Failed to deserialize the JSON body into the target type")
        if not self.state.cloud and any(re.search(r"<[A-Za-z/!?]|\0", text) for text in strings(body)):
            raise Refusal.text(400, "request body failed validation: possible xss")
        return body

    def route(self, path, query, body):
        s, t = self.state, self.state.templates
        parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
        result = None
        known = True
        match (self.command, *parts):
            case ("POST", "v3", "templates"):
                s.bodies.append(body)
                result = t.create(body)
            case ("POST", "v2", "templates", template, "builds", build):
                s.bodies.append(body)
                result = t.begin(template, build, body)
            case ("GET", "templates", "aliases", alias):
                result = t.by_name(alias)
            case ("GET", "v2", "templates"):
                result = t.list(query, paged=True)
            case ("GET", "templates"):
                result = t.list(query, paged=False)
            case ("GET", "templates", template):
                result = t.show(template, query)
            case ("DELETE", "templates", template):
                result = t.delete(template, s.sandboxes)
            case ("GET", "templates", template, "builds", build, "status"):
                result = t.status(template, build, query)
            case ("GET", "templates", template, "builds", build, "logs") if s.cloud:
                result = t.logs(template, build)
            case ("GET", "templates", template, "files", _) if s.cloud:
                result = t.file_link(template)
            case ("GET", "templates", template, "tags") if s.cloud:
                result = t.tags(template)
            case ("POST", "templates", "tags") if s.cloud:
                result = t.assign_tags(body)
            case ("POST", "sandboxes"):
                result = s.sandboxes.create(body)
            case ("POST", "sandboxes-cold") if not s.cloud:
                result = s.sandboxes.create_cold(body)
            case ("POST", "sandboxes", sandbox, "snapshots"):
                result = s.sandboxes.snapshot(sandbox, body)
            case ("GET", "snapshots"):
                result = t.snapshots()
            case ("GET", "v2", "sandboxes") | ("GET", "sandboxes"):
                result = 200, s.sandboxes.list()
            case ("GET", "sandboxes", sandbox):
                result = 200, s.sandboxes.show(sandbox)
            case ("DELETE", "sandboxes", sandbox):
                result = s.sandboxes.kill(sandbox)
            case _:
                known = False
        if not known:
            self.problem("no such call")
            return self.answer(404, "404", "text/plain")
        return self.answer(result[0], *result[1:2], headers=result[2] if len(result) > 2 else None)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main():
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    Handler.state.sandboxes.close()


if __name__ == "__main__":
    main()
