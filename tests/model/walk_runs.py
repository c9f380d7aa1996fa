"""Steps, children and signals, and what is read of them."""

from __future__ import annotations

from typing import Any, ClassVar

from model.records import UNENDED, UNSAFE, Step, Task
from model.runs_model import BIG
from model.walk import NOWHERE, Body, Held
from model.walk_attempts import AttemptCalls
from support.play import Json, ids

NAMES = ("a", "b", "c", "d")
KIDS = ("k1", "k2", "k3")
TOO_LARGE = "x" * (256 * 1024)
PARTS = ("steps", "children", "journal", "")
UNSETTLED = ("running", "queued", "waiting", "outcome-unknown")


class RunCalls(AttemptCalls):
    """Calls of durable runs."""

    CALLS: ClassVar[dict[str, float]] = {"step_of": 10, "child": 3, "signal": 5, "read": 2.5, "get": 1.5}
    ASKED: ClassVar[dict[str, str]] = {"step": "step_of", **dict.fromkeys(("list journal", "list steps", "list children"), "get")}

    async def _step_of(self) -> None:
        if (some := self.some_full("step") or self.some(*UNENDED)) is None:
            return
        task, attempt, token, item = some
        name = self._name(some, "step")
        known = task.steps.get(name)
        status = self.chance.choices(["started", "succeeded", "failed"], [4, 3, 2])[0]
        fields: Json = {"name": name, "status": status}
        if (safety := self.chance.choice([None, None, None, "pure", UNSAFE])) is not None:
            fields["effectSafety"] = safety
        if self.odds(0.5):
            fields["reconciles"] = True
        big = status == "succeeded" and self.odds(0.06)
        if status == "succeeded":
            fields["output"] = "x" * BIG if big else self.chance.choice([None, 0, "", [1], {"n": 1}])
        elif status == "failed":
            fields["error"] = {"code": "BAD", "message": "m"}
            fields |= {"final": True} if self.odds(0.2) else {}
            fields |= {"tries": max(1, (known.tries if known else 0) + self.chance.choice([0, 1]))} if self.odds(0.5) else {}
        if self.rare(0.01, "step", "PAYLOAD_TOO_LARGE"):
            too_large = {**fields, "status": "succeeded", "output": TOO_LARGE}
            self.refused("step", await self._of_attempt(item, "steps", too_large), "PAYLOAD_TOO_LARGE")
            return
        if await self._stranger_of(item, "step", "steps", fields):
            return
        code, answer = await self._of_attempt(item, "steps", fields)

        def judge() -> tuple[Any, ...]:
            step, kept = self.model.store_step(
                task,
                attempt,
                token,
                name,
                status,
                safety=safety,
                reconciles=fields.get("reconciles", False),
                final=fields.get("final", False),
                tries=fields.get("tries"),
                output=fields.get("output"),
                big=big,
            )
            return (*_told(step), kept)

        told = None if code != 200 else tuple(answer.get(field) for field in (*TOLD, "duplicate"))
        self.judge("step", judge, told, answer if code != 200 else None, again=bool(answer.get("duplicate")))

    async def _child(self) -> None:
        full = self.some_full("child")
        if (some := full or self.some(*UNENDED)) is None:
            return
        task, attempt, token, item = some
        if full is None and task.parent is not None and self.odds(0.6):
            return  # few generations
        name, detached = self._name(some, "child"), self.odds(0.25)
        body: Json = {
            "priority": self.chance.choice([0, 0, 5]),
            "leaseSeconds": self.chance.choice([20, 60, 300]),
            "retry": {"maxAttempts": self.chance.choice([1, 2]), "initialDelaySeconds": 0, "multiplier": 2, "jitter": 0},
        }
        for field, values in {"delaySeconds": [5, 30], "startDeadlineSeconds": [1, 40]}.items():
            body |= {field: self.chance.choice(values)} if self.odds(0.15) else {}
        fields = {"name": name, "type": "demo/child", "schemaVersion": 1, "input": {}, "detached": detached, **body}
        if self.rare(0.01, "child", "PAYLOAD_TOO_LARGE"):
            self.refused("child", await self._of_attempt(item, "children", {**fields, "input": TOO_LARGE}), "PAYLOAD_TOO_LARGE")
            return
        if await self._stranger_of(item, "child", "children", fields):
            return
        code, answer = await self._of_attempt(item, "children", fields)
        told, again = (answer.get("taskId"), answer.get("duplicate")), bool(answer.get("duplicate"))

        def judge() -> tuple[Any, bool]:
            return self.model.spawn(task, attempt, token, name, str(answer.get("taskId")), body, detached=detached)

        self.judge("child", judge, told, answer if code != 200 else None, again=again)

    def _name(self, some: Held, kind: str) -> str:
        task, *_ = some
        others = [name for name, step in task.steps.items() if step.kind != kind]
        started = [name for name, step in task.steps.items() if step.status == "started"]
        if others and self.rare(0.06, kind, "INVALID_REQUEST"):
            return self.chance.choice(others)
        if kind == "child":
            return self.chance.choice(KIDS)
        if started and self.odds(0.4):
            return self.chance.choice(started)
        return self.chance.choice(NAMES) if self.odds(0.9) else f"extra-{self.chance.randint(1, 9)}"

    async def _of_attempt(self, item: Json, what: str, fields: Body) -> tuple[int, Json]:
        path = f"/v1/tasks/{item['taskId']}/attempts/{item['attemptId']}/{what}"
        return await self.call(self.play.http.worker, "POST", path, {**ids(item), **(fields or {})})

    async def _stranger_of(self, item: Json, name: str, what: str, fields: Json) -> bool:
        if not self.rare(0.03, name, "EPOCH_CHANGED", "STALE_ATTEMPT"):
            return False
        other, code = self.stranger(item)
        self.refused(name, await self._of_attempt(other, what, fields), code)
        return True

    def overdue(self) -> list[Task]:
        """Tasks whose wait is over by time, and nobody has looked yet."""
        waiting = [(t, t.wait.wake) for t in self.model.tasks.values() if t.wait is not None and t.wait.wake is not None]
        return [task for task, wake in waiting if wake <= self.model.now]

    async def _signal(self) -> None:
        overdue = self.overdue()
        status = ["waiting"] if self.odds(0.5) else UNSETTLED
        task = self.chance.choice(overdue) if overdue and self.odds(0.7) else self.some_task(*status)
        if task is None:
            return
        name, payload = self.chance.choice(["go", "stop"]), self.chance.randint(0, 2)
        if task.wait is not None and task.wait.signal is not None and self.odds(0.7):
            name = task.wait.signal
        key = self.chance.choice(list(task.signals)) if task.signals and self.odds(0.25) else f"signal-{next(self.signals)}"
        if key in task.signals and self.odds(0.5):
            name, payload = task.signals[key].name, task.signals[key].payload
        body = {"name": name, "payload": payload, "signalKey": key}
        path = f"/v1/tasks/{task.id}/signals"
        if self.rare(0.02, "signal", "NOT_FOUND"):
            self.refused(
                "signal", await self.call(self.play.http.producer, "POST", path.replace(task.id, NOWHERE), body), "NOT_FOUND"
            )
            return
        if self.rare(0.01, "signal", "PAYLOAD_TOO_LARGE"):
            no = await self.call(self.play.http.producer, "POST", path, {**body, "payload": TOO_LARGE})
            self.refused("signal", no, "PAYLOAD_TOO_LARGE")
            return
        code, answer = await self.call(self.play.http.producer, "POST", path, body)
        ok, again = code in (200, 201), bool(answer.get("duplicate"))

        def judge() -> tuple[int, bool, str]:
            seq, known = self.model.signal(task, name, key, payload)
            return seq, known, task.status

        told = (answer.get("seq"), answer.get("duplicate"), answer.get("taskStatus"))
        self.judge("signal", judge, told, None if ok else answer, again=again)
        assert not ok or code == (200 if again else 201)

    # reads

    async def _read(self) -> None:
        """What an attempt reads with its lease."""
        if (some := self.some(*UNENDED)) is None:
            return
        task, attempt, token, item = some
        what = self.chance.choice(["steps", "children", "signals"])
        headers = {"X-Fence": str(item["fence"]), "X-Lease-Token": item["leaseToken"]}
        path = f"/v1/tasks/{item['taskId']}/attempts/{item['attemptId']}/{what}"
        chance = self.chance.random()
        if chance < 0.1:
            self.refused("read", await self.call(self.play.http.worker, "GET", path), "INVALID_REQUEST")
            return
        if chance < 0.2:
            other, refusal = self.stranger(item)
            path = path.replace(item["taskId"], other["taskId"])
            no = await self.call(self.play.http.worker, "GET", path, headers=headers | {"X-Lease-Token": other["leaseToken"]})
            self.refused("read", no, refusal)
            return
        if chance < 0.3:
            answer = await self.call(self.play.http.worker, "GET", path, headers=headers, params={"cursor": "nonsense"})
            if answer[1].get("code") == "INVALID_CURSOR":  # a lease that is none may be told first
                self.count("read", "INVALID_CURSOR")
            else:
                self.judge("read", lambda: self.model.read(task, attempt, token, valid=False), None, answer[1])
            return
        code, body = await self.call(self.play.http.worker, "GET", path, headers=headers, params={"limit": 200})

        def judge() -> list[Any]:
            self.model.read(task, attempt, token)
            return self._wanted(task.id, what)

        told = None if code != 200 else [_item(what, one) for one in body["items"]]
        self.judge("read", judge, told, body if code != 200 else None)

    def _wanted(self, task_id: str, what: str) -> list[Any]:
        task = self.model.tasks[task_id]
        if what == "signals":
            return [(key, signal.name, signal.payload) for key, signal in task.signals.items() if signal.taken is None]
        named = sorted(task.steps.items(), key=lambda entry: entry[1].seq)
        if what == "children":
            kids = [(name, step, self.model.tasks[step.child]) for name, step in named if step.child is not None]
            return [(name, kid.id, kid.status, kid.result, kid.code, step.detached) for name, step, kid in kids]
        return [(name, *_told(step)) for name, step in named]

    async def _get(self) -> None:
        """What a producer reads of a task and its parts."""
        if (task := self.some_task(*UNSETTLED)) is None:
            return
        never = [what for what in PARTS if not self.seen[f"list {what}" if what else "get", "taken"]]
        what = self.chance.choice(never or PARTS)
        path = f"/v1/tasks/{task.id}" + (f"/{what}" if what else "?include=steps,children")
        name = f"list {what}" if what else "get"
        if self.rare(0.1, name, "NOT_FOUND"):
            no = await self.call(self.play.http.producer, "GET", path.replace(task.id, NOWHERE))
            self.refused(name, no, "NOT_FOUND")
            return
        if what and self.rare(0.1, name, "INVALID_CURSOR"):
            no = await self.call(self.play.http.producer, "GET", path, params={"cursor": "nonsense"})
            self.refused(name, no, "INVALID_CURSOR")
            return
        code, body = await self.call(self.play.http.producer, "GET", path, params={"limit": 200} if what else None)
        assert code == 200, body
        if what == "journal":
            assert [event["kind"] for event in body["items"]] == task.journal[:200]
        elif what:
            assert [_item(what, one) for one in body["items"]] == self._wanted(task.id, what)
        else:
            assert (body["status"], body["attempts"]) == (task.status, task.attempts)
            if task.status in ("queued", "waiting"):
                why, wanted = body["waiting"]["reason"], self.model.reasons(task)
                assert why in wanted, f"the service says it waits for {why}, the model for one of {wanted}"
                self.count("get of what waits", why)
            assert [step["name"] for step in body["steps"]] == [found[0] for found in self._wanted(task.id, "steps")]
            assert [child["taskId"] for child in body["children"]] == [found[1] for found in self._wanted(task.id, "children")]
        self.count(name, "taken")


TOLD = ("kind", "seq", "status", "final", "effectSafety", "reconciles", "tries")


def _told(step: Step) -> tuple[Any, ...]:
    return step.kind, step.seq, step.status, step.final, step.safety, step.reconciles, step.tries


def _item(what: str, item: Json) -> tuple[Any, ...]:
    """An item of a page as the model tells it."""
    if what == "signals":
        return item["signalKey"], item["name"], item["payload"]
    if what == "children":
        failure = item["failure"]
        return (
            item["name"],
            item["taskId"],
            item["status"],
            item["result"],
            failure["code"] if failure else None,
            item["detached"],
        )
    return (item["name"], *(item[field] for field in TOLD))
