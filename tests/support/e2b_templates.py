# SPDX-License-Identifier: MIT
"""Templates and builds of the contract server (e2b_server.py): what is refused, and with which words and status."""
import base64
import re

STEP_TYPES = ("RUN", "ENV", "ARG", "WORKDIR", "USER", "EXPOSE", "VOLUME", "LABEL")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
NAME = re.compile(r"[A-Za-z0-9_-]+")
LOG_PAGE_MAX = 100
CREATE_MEMBERS = {"name", "tags", "cpuCount", "memoryMB"}
TEAM = "team"


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, code, message=None, status=None, headers=None, error_code=None):
        super().__init__(message)
        self.status, self.kind, self.headers = status or code, "application/json", headers
        self.body = {"code": code, "message": message}
        if error_code:
            self.body["error_code"] = error_code

    @staticmethod
    def text(status, message):
        refusal = Refusal(status)
        refusal.kind, refusal.body = "text/plain; charset=utf-8", message
        return refusal


class Build:
    def __init__(self, build_id, created_ms, polls):
        self.id, self.status, self.polls = build_id, "waiting", polls
        self.created_ms = self.updated_ms = created_ms
        self.ends_ms = None  # of a build that ends by the clock
        self.lines = 0
        self.failure = None
        self.spec = {}


class Template:
    def __init__(self, template_id, alias, body, source="Template"):
        self.id, self.alias, self.source = template_id, alias, source
        self.cpus, self.memory = body.get("cpuCount", 2), body.get("memoryMB", 1024)
        self.builds = []
        self.tags = {"default": None}

    def ready(self):
        """The build that sandboxes start from."""
        good = [b for b in self.builds if b.status == "ready"]
        return good[-1] if good else None


def type_check(body, name, kind):
    if name in body and (not isinstance(body[name], kind) or isinstance(body[name], bool) != (kind is bool)):
        raise Refusal.text(422, f"Failed to deserialize the JSON body into the target type: {name}: invalid type")


class Templates:
    def __init__(self, state):
        self.state, self.cloud = state, state.cloud
        self.all = {}  # id -> Template, in the order of their making
        self.peak = 0
        self.failures = (state.setup.get("fail") or {}).get("times", -1)
        for t in state.setup.get("templates", []):
            self.add_existing(t)

    # ---- the state of builds

    def add_existing(self, t):
        template = self.by_alias(t["alias"]) or self.new(t["alias"], t)
        template.source = t.get("source", "Template")
        build = self.new_build(template, t.get("polls", self.state.setup.get("polls", 0)))
        build.status = t["status"]
        build.created_ms = -1000 * t.get("age_s", 0)
        if build.status == "building":
            self.schedule(build)

    def new(self, alias, body):
        self.state.counter += self.cloud
        template_id = "tpl%09dabc" % self.state.counter if self.cloud else self.state.new_uuid()
        self.all[template_id] = Template(template_id, alias, body)
        return self.all[template_id]

    def new_build(self, template, polls):
        build = Build(self.state.new_uuid() if self.cloud else template.id, self.state.now_ms(), polls)
        template.builds.append(build)
        return build

    def building(self):
        return sum(b.status == "building" for t in self.all.values() for b in t.builds)

    def waiting(self):
        return sum(b.status == "waiting" for t in self.all.values() for b in t.builds)

    def schedule(self, build):
        setup = self.state.setup
        quick = bool(build.spec.get("fromTemplate"))
        if "build_ms" in setup:
            build.ends_ms = self.state.now_ms() + (setup.get("resume_ms", 0) if quick else setup["build_ms"])
        elif quick:
            build.polls = 0

    def settle(self):
        """Ends the builds whose time has come."""
        now = self.state.now_ms()
        for t in self.all.values():
            for b in t.builds:
                if b.status == "building" and b.ends_ms is not None and b.ends_ms <= now:
                    self.end(t, b, b.ends_ms)

    def end(self, template, build, at_ms=None):
        fail = self.state.setup.get("fail")
        hit = fail and ("image" not in fail or fail["image"] == build.spec.get("fromImage"))
        if hit and self.failures != 0:
            self.failures -= 1
            build.failure = {k: v for k, v in fail.items() if k in ("step", "message")}
        build.status = "error" if build.failure else "ready"
        build.lines = max(build.lines, self.state.setup.get("log_lines", 0))
        build.updated_ms = self.state.now_ms() if at_ms is None else at_ms
        if build.status == "ready":
            template.tags["default"] = build.id
        self.state.log.append([build.updated_ms, build.status, template.alias])

    def by_alias(self, alias):
        return next((t for t in self.all.values() if t.alias == alias), None)

    # ---- names

    def clean_name(self, name):
        """What a name in a path or a body means; cloud: `[namespace/]alias[:tag]`, in lower case."""
        if not self.cloud:
            if not NAME.fullmatch(name):
                return None
            return name
        found = re.fullmatch(r"(?:([a-z0-9_-]+)/)?([a-z0-9_-]+)(?::([a-z0-9_.-]+))?", name.strip().lower())
        return found and found[2]

    def find(self, id_or_name):
        """By id or alias. AgentENV tells a malformed one as a 500 around a 400."""
        if id_or_name in self.all:
            return self.all[id_or_name]
        name = self.clean_name(id_or_name)
        if not name:
            raise Refusal(400, "invalid template id or alias", status=None if self.cloud else 500)
        return self.by_alias(name)

    # ---- POST /v3/templates

    def capacity(self, at):
        setup = self.state.setup
        busy = self.building() + (self.waiting() if at == "create" else 0)
        if "capacity" not in setup or setup.get("capacity_at", "start") != at or busy < setup["capacity"]:
            return
        a = setup.get("capacity_answer", {})
        headers = {"Retry-After": str(a["retry_after"])} if "retry_after" in a else None
        raise Refusal(a.get("code", a.get("status", 429)), a.get("message", "too many concurrent builds"),
                      status=a.get("status", 429), headers=headers)

    def create_name(self, body):
        field = self.state.setup.get("name_field", "name")
        if field == "alias" and set(body) - {"alias", "tags", "cpuCount", "memoryMB"}:
            raise Refusal(400, f"unknown field \"{sorted(set(body) - {'alias', 'tags', 'cpuCount', 'memoryMB'})[0]}\"")
        name = body.get("name")
        if name is None and (field in ("alias", "both") or self.cloud):
            name = body.get("alias")
        if name is None:
            raise Refusal(400, "template name must be provided")
        return name

    def create(self, body):
        s = self.state
        known = CREATE_MEMBERS | ({"alias", "teamID"} if self.cloud or s.setup.get("name_field") else set())
        if set(body) - known:
            s.problems.append(f"unknown members {sorted(set(body) - known)}")
        for name, kind in (("name", str), ("alias", str), ("tags", list), ("cpuCount", int), ("memoryMB", int)):
            type_check(body, name, kind)
        name = self.create_name(body)
        if not self.cloud and len(name) > 128:
            raise Refusal.text(400, "name: length is greater than 128")
        alias = self.clean_name(name)
        if not alias:
            raise Refusal(400, "invalid template name")
        if not self.cloud and body.get("tags"):
            raise Refusal(400, "tags are not supported")
        self.check_resources(body)
        if s.race == alias:
            s.race = None
            self.add_existing({"alias": alias, "status": "ready"})
        self.capacity("create")
        if self.cloud and s.setup.get("taken") == alias:
            raise Refusal(409, "alias is used by another team")
        template = self.by_alias(alias)
        if template and not self.cloud:
            c = s.setup.get("conflict", {"status": 400, "message": f"name '{alias}' is already bound to a snapshot"})
            raise Refusal(c.get("code", c["status"]), c["message"], status=c["status"])
        template = template or self.new(alias, body)
        template.cpus, template.memory = body.get("cpuCount", 2), body.get("memoryMB", 1024)
        build = self.new_build(template, s.setup.get("polls", 0))
        s.note("claimed", alias)
        full = f"{TEAM}/{alias}" if self.cloud else alias
        return 202, {"templateID": template.id, "buildID": build.id, "public": not self.cloud, "names": [full],
                     "aliases": [alias], "tags": ["default"] if self.cloud else []}

    def check_resources(self, body):
        cpus, memory = body.get("cpuCount", 2), body.get("memoryMB", 1024)
        if cpus < 1 or memory < 128:
            raise Refusal.text(400, "cpuCount or memoryMB: less than the minimum")
        if self.cloud and (cpus > 32 or (cpus > 1 and cpus % 2) or memory % 2):
            raise Refusal(400, "CPU count must be 1 or even and at most 32, memory even")

    # ---- POST /v2/templates/{id}/builds/{id}

    def begin(self, template_id, build_id, body):
        if not self.cloud and template_id != build_id:
            raise Refusal(400, "template id and build id differ")
        if not self.cloud and not UUID.fullmatch(template_id):
            raise Refusal(400, "invalid template id")
        template = self.all.get(template_id)
        build = template and next((b for b in template.builds if b.id == build_id), None)
        if not build:
            raise Refusal(404, "template not found")
        if build.status != "waiting":
            raise Refusal(400, "the build is not waiting to be started")
        self.check_build(template, body)
        self.capacity("start")
        if self.cloud:  # a newer build of the same tag ends the older ones
            for other in template.builds:
                if other is not build and other.status == "building":
                    other.status, other.failure = "error", {"message": "build cancelled by a newer one"}
        build.spec, build.status, build.updated_ms = body, "building", self.state.now_ms()
        self.schedule(build)
        self.peak = max(self.peak, self.building())
        self.state.note("building", template.alias)
        return (202,)

    def check_build(self, template, body):
        known = {"fromImage", "fromTemplate", "fromImageRegistry", "steps", "force", "startCmd", "readyCmd"}
        if set(body) - known:
            self.state.problems.append(f"unknown members {sorted(set(body) - known)}")
        for name, kind in (("fromImage", str), ("fromTemplate", str), ("steps", list), ("force", bool),
                           ("startCmd", str), ("readyCmd", str)):
            type_check(body, name, kind)
        image, base = body.get("fromImage", "").strip(), body.get("fromTemplate", "").strip()
        if image and base:
            raise Refusal(400, "fromImage and fromTemplate exclude each other")
        if base:
            found = self.by_alias(base) or self.all.get(base) if self.clean_name(base) else None
            if not found or not found.ready():
                raise Refusal(400, f"base template '{base}' is not there or not ready")
            if (found.cpus, found.memory) != (template.cpus, template.memory):
                raise Refusal(400, "cpu and memory differ from the base template's")
        for step in body.get("steps", []):
            self.check_step(step)

    def check_step(self, step):
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise Refusal.text(422, "Failed to deserialize the JSON body into the target type: steps")
        if set(step) - {"type", "args", "force", "filesHash", "forceUpload"}:
            self.state.problems.append(f"unknown members in step {step}")
        kind, args = step["type"].upper(), step.get("args", [])
        if not isinstance(args, list) or not all(isinstance(a, str) for a in args):
            raise Refusal.text(422, "Failed to deserialize the JSON body into the target type: args")
        if self.cloud and kind in ("COPY", "ADD"):
            return
        if (step.get("filesHash") or "").strip() or kind not in STEP_TYPES:
            raise Refusal(400, f"step type {kind} is not supported")
        if kind == "RUN" and (not args or not args[0].strip()):
            raise Refusal(400, "RUN needs a command")
        if kind in ("ENV", "ARG", "LABEL") and (not args or len(args) % 2 or not all(a.strip() for a in args[::2])):
            raise Refusal(400, f"{kind} needs pairs")
        if kind in ("WORKDIR", "USER", "EXPOSE", "VOLUME") and len(args) != 1:
            raise Refusal(400, f"{kind} needs one argument")

    # ---- looking

    def by_name(self, alias):
        if self.cloud and self.state.setup.get("taken") == self.clean_name(alias):
            raise Refusal(403, "no access to this alias")
        name = self.clean_name(alias)
        if not name:
            raise Refusal(400, "invalid alias")
        template = self.by_alias(name)
        tag = alias.partition(":")[2] if self.cloud else ""
        if not template or (tag and tag not in template.tags):
            raise Refusal(404, "template alias not found")
        return 200, {"templateID": template.id, "public": False}

    def status(self, template_id, build_id, query):
        template = None
        if self.cloud:
            template = self.all.get(template_id)
        elif template_id == build_id:  # ids must be equal; an alias does as well
            template = self.find(template_id)
        build = template and next((b for b in template.builds if b.id == build_id or build_id == template.alias), None)
        if not build:
            raise Refusal(400 if self.cloud else 404, "no such build")
        if self.cloud:
            limit, offset = int(query.get("limit", LOG_PAGE_MAX)), int(query.get("logsOffset", 0))
            if not 0 <= limit <= LOG_PAGE_MAX or offset < 0:
                raise Refusal(400, "limit or logsOffset is out of range")
        if build.status == "building" and build.ends_ms is None and not self.state.setup.get("hang"):
            build.lines += 1
            build.polls -= 1
            if build.polls < 0:
                self.end(template, build)
        answer = {"templateID": template.id, "buildID": build.id, "status": build.status, "logs": [], "logEntries": []}
        if self.cloud:
            answer["logEntries"] = self.log_page(build, 0 if self.state.setup.get("forgets_offset") else offset, limit)
        if build.status == "error":
            answer["reason"] = dict(build.failure or {"message": "gone wrong before"})
            if self.cloud:
                answer["reason"]["logEntries"] = []
        return 200, answer

    def log_page(self, build, offset, limit):
        return [{"timestamp": self.state.stamp(build.created_ms + n), "message": f"line {n}\x1b[0m", "level": "info"}
                for n in range(build.lines)][offset:offset + limit]

    def logs(self, template_id, build_id):
        template = self.all.get(template_id)
        build = template and next((b for b in template.builds if b.id == build_id), None)
        if not build:
            raise Refusal(404, "no such build")
        return 200, {"logs": self.log_page(build, 0, LOG_PAGE_MAX)}

    def list(self, query, paged):
        limit = query.get("limit") if paged else None
        if limit is not None and not (limit.isdigit() and 1 <= int(limit) <= 100):
            raise Refusal.text(400, "limit: out of range")
        size = int(limit) if limit else (100 if self.cloud and paged else None)
        found = sorted((t for t in self.all.values() if t.source == "Template"),
                       key=lambda t: (-t.builds[0].created_ms, t.id))
        start = 0
        if paged and "nextToken" in query:
            try:
                after = base64.urlsafe_b64decode(query["nextToken"]).decode().split("__")[1]
                start = [t.id for t in found].index(after) + 1
            except (ValueError, IndexError):
                raise Refusal(400, "invalid cursor") from None
        page = found[start:] if size is None else found[start:start + size]
        headers = None
        if page and start + len(page) < len(found):
            text = f"{self.state.stamp(page[-1].builds[0].created_ms)}__{page[-1].id}"
            headers = {"x-next-token": base64.urlsafe_b64encode(text.encode()).decode()}
        return 200, [self.item(t) for t in page], headers

    def item(self, t):
        build = t.ready() or t.builds[-1]
        item = {"templateID": t.id, "buildID": build.id, "cpuCount": t.cpus, "memoryMB": t.memory, "diskSizeMB": 10240,
                "public": not self.cloud, "names": [t.alias or t.id], "createdAt": self.state.stamp(t.builds[0].created_ms),
                "updatedAt": self.state.stamp(build.updated_ms), "lastSpawnedAt": None, "spawnCount": 0,
                "buildCount": len(t.builds), "envdVersion": "0.2.4" if t.ready() else "unknown",
                "buildStatus": build.status}
        if self.cloud:
            item.update(names=[f"{TEAM}/{t.alias}"], aliases=[t.alias], createdBy=None)
        return item

    def show(self, template_id, query):
        t = self.find(template_id)
        if not t:
            raise Refusal(404, "template not found")
        builds = [] if "nextToken" in query and not self.cloud else [
            {"buildID": b.id, "status": b.status, "createdAt": self.state.stamp(b.created_ms),
             "updatedAt": self.state.stamp(b.updated_ms), "cpuCount": t.cpus, "memoryMB": t.memory,
             "diskSizeMB": 10240} for b in reversed(t.builds)]
        return 200, {"templateID": t.id, "public": not self.cloud,
                     "names": [f"{TEAM}/{t.alias}" if self.cloud else t.alias or t.id],
                     "createdAt": self.state.stamp(t.builds[0].created_ms),
                     "updatedAt": self.state.stamp(t.builds[-1].updated_ms), "lastSpawnedAt": None, "spawnCount": 0,
                     "builds": builds}

    def delete(self, template_id, sandboxes):
        t = self.find(template_id)
        if self.cloud and t and sandboxes.of_template(t.id):
            raise Refusal(400, "there are sandboxes of this template")
        if self.cloud and not t:
            raise Refusal(404, "template not found")
        if t:
            del self.all[t.id]
            self.state.note("deleted", t.alias)
        return (204,)  # AgentENV: also when there was nothing

    def snapshots(self):
        return 200, [{"snapshotID": t.id, "names": [t.alias or t.id]} for t in self.all.values() if t.source == "Sandbox"]

    # ---- cloud alone

    def file_link(self, template_id):
        if template_id not in self.all:
            raise Refusal(404, "template not found")
        return 201, {"present": True}

    def tags(self, template_id):
        t = self.find(template_id)
        if not t:
            raise Refusal(404, "template not found")
        return 200, [{"tag": tag, "buildID": build, "createdAt": self.state.stamp(0)}
                     for tag, build in t.tags.items() if build]

    def assign_tags(self, body):
        t = self.find(body.get("target", "").partition(":")[0])
        if not t or not t.ready():
            raise Refusal(404, "template not found")
        for tag in body.get("tags", []):
            t.tags[tag] = t.ready().id
        return 201, {"buildID": t.ready().id, "tags": body.get("tags", [])}
