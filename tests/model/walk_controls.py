"""Pauses, limits and bulk calls of an operator."""

from __future__ import annotations

from typing import Any, ClassVar

from model.controls_model import Rate
from model.fleet_model import EVERYTHING
from model.records import SETTLED, Refused, Task
from model.service_model import TYPES
from model.walk_attempts import KEYS
from model.walk_fleet import FleetCalls
from model.walk_runs import UNSETTLED
from model.walk_tasks import KEY_LIFE, SUBMIT
from support.play import Json


class ControlCalls(FleetCalls):
    """Calls of an operator that bear on many tasks."""

    CALLS: ClassVar[dict[str, float]] = {
        "pause": 0.6,
        "resume": 1.2,
        "limit": 0.8,
        "list_limits": 0.2,
        "rate": 0.15,
        "bulk": 0.3,
    }
    ASKED: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("pause type", "pause project"), "pause"),
        **dict.fromkeys(("resume type", "resume project"), "resume"),
        **dict.fromkeys(("set limit", "drop limit"), "limit"),
        **dict.fromkeys(("set rate", "submit at a rate"), "rate"),
    }

    async def operate(self, name: str, method: str, path: str, wanted: Any, body: Json | None = None) -> bool:
        """A call that is refused for its body only: `wanted` tells whether it is a repeat. Whether it was taken."""
        if self.rare(0.05, name, "INVALID_REQUEST"):
            self.refused(name, await self.call(self.play.http.operator, method, path, {"nonsense": 1}), "INVALID_REQUEST")
            return False
        code, answer = await self.call(self.play.http.operator, method, path, body)
        error, again = None if code == 200 else answer, bool(answer.get("duplicate"))
        return self.judge(name, wanted, answer.get("duplicate"), error, again=again)

    # pauses

    async def _pause(self) -> None:
        await self._switch(self.chance.choice([EVERYTHING, *TYPES]), "pause")

    async def _resume(self) -> None:
        paused = sorted(self.model.paused)
        await self._switch(self.chance.choice(paused if paused and self.odds(0.9) else [EVERYTHING, *TYPES]), "resume")

    async def _switch(self, what: str, action: str) -> None:
        path, name = ("/v1/project", "project") if what == EVERYTHING else (f"/v1/task-types/{what}/1", "type")

        def judge() -> bool:
            return self.model.pause(what) if action == "pause" else self.model.resume(what)

        await self.operate(f"{action} {name}", "POST", f"{path}/{action}", judge, {})

    # limits

    async def _limit(self) -> None:
        key = self.chance.choice(list(KEYS))
        stopped = [key for key, limit in self.model.limits.items() if limit == 0]
        if stopped and self.odds(0.7):
            key = stopped[0]
        if (key in self.model.limits and self.odds(0.6)) or key in stopped:
            name, path = "drop limit", f"/v1/limits?key={key}"
            if self.rare(0.05, name, "INVALID_REQUEST"):
                no = await self.call(self.play.http.operator, "DELETE", "/v1/limits")
                self.refused(name, no, "INVALID_REQUEST")
                return
            code, answer = await self.call(self.play.http.operator, "DELETE", path)
            assert (code, answer["limit"]) == (200, None)
            self.judge(name, lambda: self.model.set_limit(key, None), answer["duplicate"], None)
            return
        limit = self.chance.choice([0, 1, 1, 2])
        await self.operate(
            "set limit", "PUT", f"/v1/limits?key={key}", lambda: self.model.set_limit(key, limit), {"limit": limit}
        )

    async def _list_limits(self) -> None:
        if self.rare(0.2, "list limits", "SCOPE_DENIED"):
            self.refused("list limits", await self.call(self.play.http.producer, "GET", "/v1/limits"), "SCOPE_DENIED")
            return
        code, answer = await self.call(self.play.http.operator, "GET", "/v1/limits")
        assert code == 200, answer
        held = self.model.held()
        wanted = [{"key": key, "limit": limit, "held": held.get(key, 0)} for key, limit in sorted(self.model.limits.items())]
        assert answer["items"] == wanted, (answer, wanted)
        self.count("list limits", "taken")

    async def _rate(self) -> None:
        """A producer of its own, and how fast it may submit."""
        burst, per_second = self.chance.choice([1, 2, 3]), self.chance.choice([0.5, 1, 2])
        rates = {"perSecond": per_second, "burst": burst}
        if not await self.operate("set rate", "PUT", "/v1/limits/rate", lambda: False, rates):
            return
        client = self.play.http.use(await self.play.http.make_key("task-producer"))
        rate = Rate(per_second, burst, burst, self.model.now)
        accepted: list[tuple[str, Json]] = []
        for _ in range(self.chance.randint(3, 6)):
            if self.odds(0.3):
                self.clock.advance(1)
                self.model.now += 1
            body, submits = self._body(), self.chance.choice([1, 1, 1, 2, 4])
            if submits > 1:
                tasks = [SUBMIT | body] * submits
                code, answer = await self.call(client, "POST", "/v1/tasks/batch", {"tasks": tasks})
                ids, key = [item["id"] for item in answer.get("items", ())], None
            else:
                key, body = self.chance.choice(accepted) if accepted and self.odds(0.3) else (self._key(body), body)
                code, answer = await self.call(client, "POST", "/v1/tasks", SUBMIT | body | {"idempotencyKey": key})
                ids = [answer.get("id")]

            def judge(body: Json = body, key: str | None = key, submits: int = submits, ids: list[Any] = ids) -> list[str]:
                if key is None or (known := self.model.named(key, body)) is None:
                    rate.take(submits, self.model.now)
                    return [self.model.submit(str(id_), body, key)[0] for id_ in ids]
                return [known]

            if self.judge("submit at a rate", judge, ids, None if code in (200, 201) else answer) and key is not None:
                accepted.append((key, body))
        code, answer = await self.call(self.play.http.operator, "PUT", "/v1/limits/rate", {"perSecond": None, "burst": None})
        assert (code, answer["duplicate"]) == (200, False)

    # bulk

    async def _bulk(self) -> None:
        action, dry = self.chance.choice(["cancel", "cancel", "rerun"]), self.odds(0.4)
        type_ = self.chance.choice(TYPES)
        status = self.chance.sample([*UNSETTLED, *SETTLED], 2)
        filter_: Json = {"type": type_, "status": status}
        path = "/v1/tasks/bulk"
        if self.rare(0.1, "bulk", "INVALID_REQUEST"):
            body = {"filter": {"stats": "queued"}, "action": action, "idempotencyKey": "wrong"}
            self.refused("bulk", await self.call(self.play.http.operator, "POST", path, body), "INVALID_REQUEST")
            return
        young = [(asked, told) for at, asked, told in self.model.bulks.values() if at > self.model.now - KEY_LIFE]
        if young and self.rare(0.3, "bulk", "again", "IDEMPOTENCY_CONFLICT"):
            asked, told = self.chance.choice(young)
            if self.odds(0.5):
                no = await self.call(self.play.http.operator, "POST", path, asked | {"filter": {"type": "demo/other"}})
                self.refused("bulk", no, "IDEMPOTENCY_CONFLICT")
                return
            code, answer = await self.call(self.play.http.operator, "POST", path, asked)
            self.judge("bulk", lambda: (*told, True), _counts(answer), None if code == 200 else answer, again=True)
            return
        matched = [task for task in self.model.tasks.values() if task.type == type_ and task.status in status]
        if len(matched) > 12 or (action == "cancel" and self._are_related(matched)):
            dry = True  # many reruns are much work; and in which order relatives end is nobody's promise
        asked = {"filter": filter_, "action": action, "idempotencyKey": f"bulk-{len(self.model.bulks)}", "dryRun": dry}
        sources = {task.id: self.model.reruns_of(task) for task in matched}
        code, answer = await self.call(self.play.http.operator, "POST", path, asked)
        assert code == 200, answer
        told = self.model.bulk(action, matched, dry=dry)
        if action == "rerun" and not dry:
            self._find_reruns(matched, sources)
        if not dry:
            self.model.bulks[asked["idempotencyKey"]] = (self.model.now, asked, told)
        self.judge("bulk", lambda: (*told, False), _counts(answer), None)
        if told[1] and not dry:
            self.count(f"bulk {action}", "some refused it" if told[2] else "taken")

    def _are_related(self, tasks: list[Task]) -> bool:
        """Whether what follows the end of one would meet another."""
        roots = [self._root(task) for task in tasks]
        places = [task.schedule for task in tasks if task.schedule is not None]
        return len(set(roots)) < len(roots) or len(set(places)) < len(places)

    def _find_reruns(self, matched: list[Task], before: dict[str, list[str]]) -> None:
        query = "SELECT id::text, rerun_of::text FROM tasks WHERE rerun_of = ANY(%s::uuid[]) ORDER BY id"
        for new, source in self.truth.execute(query, ([task.id for task in matched],)).fetchall():
            if new not in before[source]:
                try:
                    self.model.rerun(self.model.tasks[source], new, None, None)
                except Refused as refused:
                    raise AssertionError(f"{source} was rerun, the model says {refused}") from None


def _counts(answer: Json) -> tuple[Any, ...]:
    return answer.get("matched"), answer.get("changed"), answer.get("skipped"), answer.get("duplicate")
