"""What producers and operators do with tasks, and the passing of much time."""

from __future__ import annotations

from typing import Any, ClassVar

from model.records import SETTLED, Attempt, Task
from model.service_model import WAIT_LIMIT
from model.walk import NOWHERE
from model.walk_attempts import KEYS
from model.walk_runs import TOO_LARGE, UNSETTLED, RunCalls
from support.play import Json

VERDICTS = ("succeeded", "failed", "requeue", "reconcile")
KEY_LIFE = 3_600  # seconds in which the walks repeat a key: less than any key is held
CROWD = 8
"""Unsettled tasks beyond which a walk seldom submits: few tasks that go far tell more than many that hardly start."""
SUBMIT: Json = {"type": "demo/hello", "schemaVersion": 1, "input": {}}


class TaskCalls(RunCalls):
    """All calls of a walk."""

    CALLS: ClassVar[dict[str, float]] = {
        "submit": 4,
        "batch": 0.5,
        "cancel": 1.3,
        "resolve": 4,
        "rerun": 2,
        "list": 0.5,
        "sweep": 2,
        "wait_limit": 0.3,
    }

    # submits

    async def _submit(self) -> None:
        live = sum(task.status not in SETTLED for task in self.model.tasks.values())
        chance = self.chance.random() * (0.5 if live > CROWD else 1)  # new work only where there is little
        body = self._body()
        wrong: list[tuple[Json, str]] = [
            ({"priority_": 1}, "INVALID_REQUEST"),
            ({"type": "nonsense"}, "INVALID_TYPE"),
            ({"input": TOO_LARGE}, "PAYLOAD_TOO_LARGE"),
            ({"type": "demo/nobody", "requireWorker": "registered"}, "TASK_TYPE_NOT_FOUND"),
            ({"type": "demo/nobody", "requireWorker": "online"}, "NO_ELIGIBLE_WORKER"),
        ]
        if chance < 0.12:
            fields, code = self.chance.choice(wrong)
            no = await self.call(self.play.http.producer, "POST", "/v1/tasks", SUBMIT | body | fields)
            self.refused("submit", no, code)
            return
        young = [(key, asked) for at, key, asked in self.keys if at > self.model.now - KEY_LIFE and "priority" in asked]
        key = None
        if young and chance < 0.25:
            key, asked = self.chance.choice(young)
            body = dict(asked) if self.odds(0.6) else body
        elif chance < 0.4:
            key = self._key(body)
        elif live > CROWD:
            return
        fields = {"idempotencyKey": key} if key else {}
        status, answer = await self.call(self.play.http.producer, "POST", "/v1/tasks", SUBMIT | body | fields)
        ok, again = status in (200, 201), bool(answer.get("deduplicated"))
        told = (answer.get("id"), answer.get("deduplicated"))
        self.judge(
            "submit", lambda: self.model.submit(str(answer.get("id")), body, key), told, None if ok else answer, again=again
        )
        if status == 201:
            warned = any(warning["code"] == "TYPE_NEVER_REGISTERED" for warning in answer["warnings"])
            assert warned == ("demo/hello" not in self.model.known)

    def _key(self, asked: dict[str, Any]) -> str:
        key = f"key-{len(self.keys)}"
        self.keys.append((self.model.now, key, asked))
        return key

    def _body(self) -> Json:
        pick = self.chance.choice
        body: Json = {
            "priority": pick([0, 0, 5]),
            "leaseSeconds": pick([20, 60, 300]),
            "retry": {"maxAttempts": pick([1, 2, 3, 4]), "initialDelaySeconds": pick([0, 0, 10]), "multiplier": 2, "jitter": 0},
        }
        if self.odds(0.25):
            key = pick(list(KEYS))
            body["concurrency"] = {"key": key, "limit": KEYS[key]}
        for name, values in {"delaySeconds": [5, 30], "timeoutSeconds": [15, 15, 50], "startDeadlineSeconds": [1, 40]}.items():
            if self.odds(0.2):
                body[name] = pick(values)
        return body

    async def _batch(self) -> None:
        bodies = [self._body() for _ in range(2)]
        key = f"batch-{len(self.model.tasks)}"
        fields: Json = {"tasks": [SUBMIT | body for body in bodies]}
        wrong = self.chance.choice(["", "", "INVALID_REQUEST", "INVALID_TYPE", "PAYLOAD_TOO_LARGE", "IDEMPOTENCY_CONFLICT"])
        broken = {
            "INVALID_REQUEST": {"priority": 101},
            "INVALID_TYPE": {"type": "nonsense"},
            "PAYLOAD_TOO_LARGE": {"input": TOO_LARGE},
            "IDEMPOTENCY_CONFLICT": {"idempotencyKey": key, "input": 2},
        }
        fields["tasks"][1] |= broken.get(wrong, {})
        if wrong == "IDEMPOTENCY_CONFLICT":
            fields["tasks"][0]["idempotencyKey"] = key
        answer = await self.call(self.play.http.producer, "POST", "/v1/tasks/batch", fields)
        if wrong:
            self.refused("batch", answer, wrong)
            return
        assert answer[0] == 201, answer
        for item, body in zip(answer[1]["items"], bodies, strict=True):
            self.model.submit(item["id"], body)
        self.count("batch", "taken")

    async def _rerun(self) -> None:
        likely = [task.id for task in self.model.tasks.values() if task.status in SETTLED and len(task.steps) > 1]
        if likely and self.odds(0.5):
            task: Task | None = self.model.tasks[self.chance.choice(likely)]
        else:
            unknown = self.rare(0.05, "rerun", "OUTCOME_UNKNOWN")
            status = ["outcome-unknown"] if unknown else UNSETTLED if self.rare(0.05, "rerun", "TASK_NOT_FINISHED") else SETTLED
            task = self.some_task(*status)
        if task is None:
            return
        if self.rare(0.03, "rerun", "NOT_FOUND"):
            no = await self.call(self.play.http.producer, "POST", f"/v1/tasks/{NOWHERE}/rerun", {})
            self.refused("rerun", no, "NOT_FOUND")
            return
        step = self.chance.choice(list(task.steps)[-3:]) if task.steps and self.odds(0.7) else None
        step = "nobody" if self.odds(0.05) else step
        asked: Json = {"rerunOf": task.id, "fromStep": step, "keepEffectKeys": self.odds(0.4)}
        young = [(key, before) for at, key, before in self.keys if at > self.model.now - KEY_LIFE and "rerunOf" in before]
        key = None
        if young and self.odds(0.25):
            key, before = self.chance.choice(young)
            asked, task = dict(before), self.model.tasks[before["rerunOf"]]
            asked |= {} if self.odds(0.6) else {"keepEffectKeys": not before["keepEffectKeys"]}  # another request
        elif self.odds(0.3):
            key = self._key(asked)
        step, keep = asked["fromStep"], asked["keepEffectKeys"]
        body = {"keepEffectKeys": keep} | ({"fromStep": step} if step else {}) | ({"idempotencyKey": key} if key else {})
        code, answer = await self.call(self.play.http.producer, "POST", f"/v1/tasks/{task.id}/rerun", body)
        ok, again = code in (200, 201), bool(answer.get("deduplicated"))

        def judge() -> tuple[str, bool]:
            return self.model.rerun(task, str(answer.get("id")), step, key, keep_keys=keep)

        told = (answer.get("id"), answer.get("deduplicated"))
        if self.judge("rerun", judge, told, None if ok else answer, again=again) and not again:
            kept = len(self.model.tasks[answer["id"]].steps)
            self.count("rerun from a step", "keeps" if kept else "nothing kept" if step else "not asked")

    # cancel, resolve

    async def _cancel(self) -> None:
        unknown = self.rare(0.1, "cancel", "OUTCOME_UNKNOWN")
        if (task := self.some_task(*(["outcome-unknown"] if unknown else ["queued", "running", "waiting"]))) is None:
            return
        never = [status for name, status in self.missing() if name == "cancel of a child"]
        if families := [t for t in self.model.tasks.values() if t.status in ("queued", "waiting") and self._has_child(t, never)]:
            task = self.chance.choice(families)
        if self.rare(0.03, "cancel", "NOT_FOUND"):
            self.refused(
                "cancel", await self.call(self.play.http.producer, "POST", f"/v1/tasks/{NOWHERE}/cancel", {}), "NOT_FOUND"
            )
            return
        await self._cancel_one(task)

    def _has_child(self, task: Task, status: list[str]) -> bool:
        """Whether a child in one of these states goes with it."""
        kids = [self.model.tasks[step.child or ""] for step in task.children().values() if not step.detached]
        return any(kid.status in status and kid.parent == task.id and not kid.cancel_requested for kid in kids)

    async def _cancel_one(self, task: Task) -> None:
        before = task.status
        code, answer = await self.call(self.play.http.producer, "POST", f"/v1/tasks/{task.id}/cancel", {"reason": "not needed"})
        again = bool(answer.get("duplicate"))
        error = None if code == 200 else answer
        if self.judge("cancel", lambda: self.model.cancel(task), answer.get("duplicate"), error, again=again):
            assert answer["status"] == task.status
            self.count(f"cancel of {before}", "again" if again else "taken")

    async def _resolve(self) -> None:
        likely = [t for t in self.model.tasks.values() if t.status == "outcome-unknown"]
        unknown = likely and self.odds(0.7)
        some = (self.chance.choice(likely[-10:]), None) if unknown else self._resolved()
        if some is None or some[0].attempt is None:
            return
        task, attempt = some[0], some[1] or some[0].attempt
        verdict = self.chance.choice(VERDICTS)
        started = [name for name, step in task.steps.items() if step.status == "started"]
        step = self.chance.choice(started) if started and self.odds(0.6) else None
        step = self.chance.choice([*task.steps, "nobody"]) if self.odds(0.05) else step
        before = None
        if task.resolved and self.odds(0.6 if task.status != "outcome-unknown" else 0.1):
            last, verdict, step, before = self.chance.choice(sorted(task.resolved, key=str))
            attempt = next(held for _, held, _, _ in self.held if held.id == last)
        given = self.chance.randint(0, 3) if verdict == "succeeded" else None
        result = {"result": before if given and before is not None else given} if verdict == "succeeded" else {}
        body = {"as": verdict, "attemptId": attempt.id, "note": "looked it up", **result} | ({"step": step} if step else {})
        path = f"/v1/tasks/{task.id}/resolve"
        if self.rare(0.02, "resolve", "NOT_FOUND"):
            nobody = {"as": "failed", "attemptId": attempt.id, "note": "n"}
            no = await self.call(self.play.http.operator, "POST", path.replace(task.id, NOWHERE), nobody)
            self.refused("resolve", no, "NOT_FOUND")
            return
        if self.rare(0.01, "resolve", "PAYLOAD_TOO_LARGE"):
            no = await self.call(self.play.http.operator, "POST", path, body | {"as": "succeeded", "result": TOO_LARGE})
            self.refused("resolve", no, "PAYLOAD_TOO_LARGE")
            return
        code, view = await self.call(self.play.http.operator, "POST", path, body)

        def judge() -> bool:
            return self.model.resolve(task, verdict, attempt, step, result.get("result"))

        again = bool(view.get("duplicate"))
        if self.judge("resolve", judge, view.get("duplicate"), None if code == 200 else view, again=again):
            assert view["status"] == task.status
            self.count(f"resolve {'a step ' if step else ''}as {verdict}", "again" if again else "taken")

    def _resolved(self) -> tuple[Task, Attempt] | None:
        """Any attempt of any task, most often of one that was resolved."""
        found = [held for held in self.held if held[0].resolved] if self.odds(0.7) else []
        if not self.held:
            return None
        task, attempt, _, _ = self.chance.choice(found or self.held)
        return task, attempt

    # lists

    async def _list(self) -> None:
        if self.odds(0.4):
            no = await self.call(self.play.http.producer, "GET", "/v1/tasks", params={"cursor": "nonsense"})
            self.refused("list", no, "INVALID_CURSOR")
            return
        status = self.chance.choice([*UNSETTLED, *SETTLED])
        code, page = await self.call(self.play.http.producer, "GET", "/v1/tasks", params={"status": status, "limit": 200})
        wanted = [t.id for t in self.model.tasks.values() if t.status == status]
        assert code == 200, page
        assert sorted(item["id"] for item in page["items"]) == sorted(wanted) if len(wanted) < 200 else page["nextCursor"]
        self.count("list", "taken")

    # time

    async def _advance(self) -> None:
        """Now and then something happens that is too late, before anybody has looked."""
        await super()._advance()
        overdue = self.overdue()
        families = [task for task in overdue if task.wait and task.wait.children]
        if ("wait", "time before the children") in self.missing() and families:
            overdue = families
        if not overdue or self.odds(0.3):
            return
        wait = (task := self.chance.choice(overdue)).wait
        if wait is None or not wait.children or (wait.signal is not None and self.odds(0.5)):
            await self._signal()
            return
        for name in dict.fromkeys(wait.children):
            child = self.model.tasks[task.steps[name].child or ""]
            held = [h for h in self.held if h[1] is child.attempt and h[2] == h[1].tokens]
            if child.status in ("queued", "waiting"):
                await self._cancel_one(child)
            elif child.status == "running" and held:
                await self._complete(held[-1], {"outcome": "succeeded", "result": 1}, None)
            self.compare()

    async def _sweep(self) -> None:
        await self._sweep_both()
        self.compare()
        await self._claim(exactly=True)

    async def _wait_limit(self) -> None:
        """Nobody serves anything for longer than the limit, and somebody sweeps before anybody claims."""
        queued = [task for task in self.model.tasks.values() if task.status == "queued"]
        asks = any(task.key is None and (task.reconcile is not None or task.is_open(False)) for task in queued)
        if not (queued and (asks or self.rare(0.1, "wait limit", "failed"))):
            return
        seconds = WAIT_LIMIT + KEY_LIFE
        self.clock.advance(seconds)
        self.model.now += seconds
        await self._sweep_both()

    async def _sweep_both(self) -> None:
        await self.play.sweep()
        self.model.sweep()
        query = "SELECT id::text FROM tasks WHERE failure::json ->> 'code' = 'WORKER_WAIT_LIMIT'"
        failed = {row[0] for row in self.truth.execute(query)}
        for task in self.model.starved():
            if task.key is None or task.id in failed:  # what its key keeps out waits without limit
                self.model.starve(task)
                self.count("wait limit", task.status)
        self.model.forget()
