"""Claims, and what workers report of whole attempts."""

from __future__ import annotations

from typing import Any, ClassVar

from model.records import UNENDED, UNSAFE, Attempt, Task, Wait
from model.service_model import TYPES
from model.walk import NOWHERE, Held, Walk
from support.play import Json, ids

OUTCOMES = {"succeeded": 2, "failed": 0.7, "retryable": 3, "unknown": 1.5, "cancelled": 1.5, "suspended": 9}
HANDLERS = [("pure", False)] * 8 + [("idempotent", False), (UNSAFE, False), (UNSAFE, True), (UNSAFE, True)]
INSTANCES = {"demo/hello": "one", "demo/child": "kids"}
KEYS = {"K1": 1, "K2": 2}
WORKER = "tester"
EPOCHS = 7  # another epoch than the database's


class AttemptCalls(Walk):
    """Calls with a worker's key that concern attempts as a whole."""

    CALLS: ClassVar[dict[str, float]] = {
        "claim": 8,
        "repeat": 1,
        "give_back": 0.5,
        "heartbeat": 1.5,
        "report": 8,
        "reports": 1,
        "release": 2,
        "wear": 0.7,
        "advance": 3,
    }
    ASKED: ClassVar[dict[str, str]] = dict.fromkeys(OUTCOMES, "report")

    # claims

    async def _claim(self, *, exactly: bool = False) -> None:
        if self.rare(0.02, "claim", "INVALID_REQUEST"):
            no = await self.call(self.play.http.worker, "POST", "/v1/claims", self.play.claim_body(slots=0))
            self.refused("claim", no, "INVALID_REQUEST")
            return
        body = self._claim_body()
        self._take(body, await self._ask(body), exactly=exactly)

    def _claim_body(self) -> Json:
        ready_now = [type_ for type_ in TYPES if self.model.claimable(type_)]
        type_ = self.chance.choice(ready_now if ready_now and self.odds(0.8) else TYPES)
        slots = self.chance.randint(1, 3)
        safety, reconciles = self.chance.choice(HANDLERS)
        return self.play.claim_body(type=type_, slots=slots, safety=safety, reconciles=reconciles, instance=self.process(type_))

    def process(self, type_: str) -> str:
        """The process that claims this type."""
        return INSTANCES[type_]

    def hear(self, body: Json, answer: Json) -> None:
        """A process has claimed."""
        worker, process = body["workerId"], body["instanceId"]
        serves = {handler["type"] for handler in body["handlers"]}
        self.model.hear(worker, process, serves, answer["pollAfterSeconds"])
        assert answer.get("drain", False) == self.model.is_told_to_end(worker, process)

    def _take(self, body: Json, attempts: list[Json], *, exactly: bool = False) -> None:
        """What a claim was answered."""
        type_, slots = body["handlers"][0]["type"], body["slots"]
        # whose gate opens with this claim is let in when the claim has been answered
        gated = [t for t in self.model.tasks.values() if t.key is not None or self.model.is_held(t)]
        ended = self.model.expire(type_)
        self.claims.append((self.model.now, body))
        given = [self.model.tasks[a["taskId"]] for a in attempts]
        ready = self.model.claimable(type_)
        ends = self.model.is_told_to_end(WORKER, body["instanceId"])
        looks = not self.model.is_paused(type_)  # whose type is paused does not look for more
        if looks and self.model.wake(type_) and not set(map(id, given)) <= set(map(id, ready)):
            assert all(t in gated for t in ready), "what woke was handed out before what was ready"
            ready = self.model.claimable(type_)  # nothing else was ready
        elif not given and all(t in gated for t in ready):
            ready = self.model.claimable(type_)
        if ends:
            assert not given, "a process that is to end was given work"
        else:
            self._check_order(ready, given, slots, gated)
        if exactly and not ends:
            assert given == self.model.best(type_, slots)
        for task, item in zip(given, attempts, strict=True):
            attempt = self.model.start(task, item["attemptId"], WORKER, body["handlers"][0], body["claimId"])
            self._check_claim(task, attempt, item)
            self.held.append((task, attempt, 1, item))
        held = self.model.held()
        assert all(held[t.key] <= self.model.limit_of(t) for t in given if t.key is not None), "beyond the limit of its key"
        self.model.follow(*ended)
        self.count("claim", "taken" if given else "nothing")

    def _check_order(self, ready: list[Task], given: list[Task], slots: int, gated: list[Task]) -> None:
        assert [t for t in ready if t in given] == given, "not the best first, or not claimable"
        passed_over = [t for t in ready if t not in given and t not in gated]
        assert len(given) == slots or not passed_over, "a slot stayed free beside ready work"
        if given:
            last = ready.index(given[-1])
            assert all(ready.index(t) > last for t in passed_over), "a better task was passed over"

    def _check_claim(self, task: Task, attempt: Attempt, item: Json) -> None:
        asked = None if attempt.told is None else {"attemptId": attempt.told[0], "reason": attempt.told[1]}
        shown = {name: item[name] for name in ("fence", "attemptNumber", "maxAttempts", "cancelRequested", "reconcile")}
        assert shown == {
            "fence": attempt.fence,
            "attemptNumber": task.attempts + 1,
            "maxAttempts": task.max_attempts,
            "cancelRequested": task.cancel_requested,
            "reconcile": asked,
        }
        assert (item["parentId"], item["rerunOf"], item["effectScope"]) == (task.parent, task.rerun_of, task.effects)
        steps = sorted(task.steps.items(), key=lambda entry: entry[1].seq)
        wanted = [(name, s.kind, s.status, s.final, s.reconciles) for name, s in steps]
        assert [(s["name"], s["kind"], s["status"], s["final"], s["reconciles"]) for s in item["steps"]] == wanted

    async def _ask(self, body: Json) -> list[Json]:
        status, answer = await self.call(self.play.http.worker, "POST", "/v1/claims", body)
        assert status == 200, answer
        self.hear(body, answer)
        found: list[Json] = answer["attempts"]
        return found

    def _some_claim(self) -> Json | None:
        """A claim that the service still remembers."""
        young = [body for at, body in self.claims[-20:] if at > self.model.now - 600]
        likely = [body for body in young if self.model.open_attempts(body["claimId"])]
        young = likely if likely and self.odds(0.7) else young
        return self.chance.choice(young) if young else None

    async def _repeat(self) -> None:
        if (body := self._some_claim()) is None:
            return
        ended = self.model.expire(body["handlers"][0]["type"])
        wanted = self.model.repeat(body["claimId"])
        attempts = await self._ask(body)
        assert [a["attemptId"] for a in attempts] == [attempt.id for _, attempt in wanted]
        for (task, attempt), item in zip(wanted, attempts, strict=True):
            self._check_claim(task, attempt, item)
            self.held.append((task, attempt, attempt.tokens, item))
        self.model.follow(*ended)
        self.count("repeat", "taken" if attempts else "nothing")

    async def _give_back(self) -> None:
        before = [body for at, body in self.claims if at > self.model.now - 600 and self.given_back.get(body["claimId"])]
        again = before and self.rare(0.2, "give-back", "again")
        if (body := self.chance.choice(before) if again else self._some_claim()) is None:
            return
        wanted = self.model.give_back(body["claimId"])
        which = {name: body[name] for name in ("workerId", "instanceId", "claimId")}
        status, answer = await self.call(self.play.http.worker, "POST", "/v1/attempts/release", which)
        assert status == 200, answer
        items = answer["attempts"]
        assert {item["attemptId"]: item["taskStatus"] for item in items if not item["duplicate"]} == wanted
        told = self.given_back.setdefault(body["claimId"], {})  # as long as the claim is remembered, it is told again
        assert {item["attemptId"]: item["taskStatus"] for item in items if item["duplicate"]} in ({}, told)
        self.count("give-back", "taken" if wanted else "again" if told else "nothing")
        told |= wanted

    # reports

    async def tell(self, what: str, item: Json, **fields: Any) -> tuple[Json, Json | None]:
        """One report by its batch or its single form: the answer and its error."""
        report = {**ids(item), **fields}
        if self.odds(0.45):
            path = f"/v1/tasks/{item['taskId']}/attempts/{item['attemptId']}/{what}"
            status, answer = await self.call(self.play.http.worker, "POST", path, report)
            return answer, None if status == 200 else answer
        who = {"workerId": WORKER, "instanceId": "one"} if what == "heartbeat" else {}
        items = "completions" if what == "complete" else "attempts"
        status, answer = await self.call(self.play.http.worker, "POST", f"/v1/attempts/{what}", {**who, items: [report]})
        assert status == 200, answer
        if what == "heartbeat":
            self.model.hear(WORKER, "one")
            assert answer.get("drain", False) == self.model.is_told_to_end(WORKER, "one")
        return answer[items][0], answer[items][0].get("error")

    def stranger(self, item: Json) -> tuple[Json, str]:
        """A report that nobody may make, whatever the state, and how it is refused."""
        if self.odds(0.3):
            return {**item, "taskId": NOWHERE}, "STALE_ATTEMPT"
        secret = item["leaseToken"].partition(".")[2]
        return {**item, "leaseToken": f"{EPOCHS}.{secret}"}, "EPOCH_CHANGED"

    async def _strange(self, name: str, what: str, item: Json, **fields: Any) -> bool:
        """Makes a stranger's report now and then."""
        if not self.rare(0.03, name, "EPOCH_CHANGED"):
            return False
        other, code = self.stranger(item)
        answer, error = await self.tell(what, other, **fields)
        assert (error or {}).get("code") == code, answer
        self.count(name, code)
        return True

    async def _heartbeat(self) -> None:
        if (some := self.some(*UNENDED)) is None:
            return
        task, attempt, token, item = some
        if await self._strange("heartbeat", "heartbeat", item):
            return
        answer, error = await self.tell("heartbeat", item)
        self.judge("heartbeat", lambda: self.model.heartbeat(task, attempt, token), answer.get("stop"), error)

    async def _report(self) -> None:
        if (full := self.some_full("suspended")) is not None:
            await self._complete(full, *self._outcome(full[0], "suspended"))
            return
        stopped = any(name.startswith("cancelled →") for name, _ in self.missing())
        if stopped and (overdue := [held for held in self.held if self._is_overdue(held)]) and self.odds(0.4):
            await self._complete(self.chance.choice(overdue), {"outcome": "cancelled"}, None)
            return
        reported = [held for held in self.held[-60:] if held[1].report is not None]
        if reported and self.odds(0.15):
            some: Held | None = self.chance.choice(reported)
        else:
            some = self.some(*UNENDED)
        if some is None:
            return
        task, attempt, _, item = some
        said = self._said()
        if attempt.deadline is not None and attempt.deadline <= self.model.now and self.odds(0.4):
            said = "cancelled"  # what a handler says that was told to stop
        if attempt.safety == UNSAFE and said == "suspended" and self.odds(0.8):
            said = "retryable"
        fields, wait = self._outcome(task, said)
        if attempt.report is not None and self.odds(0.5):  # a lost answer: the same again
            if attempt.report[0] == "released":
                await self._let_go(some, attempt.report[1])
                return
            fields, wait = self.said[attempt.id]
        if await self._strange(fields["outcome"], "complete", item, **fields):
            return
        await self._complete(some, fields, wait)

    def _is_overdue(self, held: Held) -> bool:
        """Whether it is past the deadline of an attempt that may still report."""
        task, attempt, token, _ = held
        current = task.attempt is attempt and not attempt.ended and token == attempt.tokens and task.status in UNENDED
        return current and attempt.deadline is not None and attempt.deadline <= self.model.now

    def _said(self) -> str:
        never = [said for said, _ in self.missing() if said in OUTCOMES]
        if never and self.odds(0.4):
            return self.chance.choice(never)
        return self.chance.choices(list(OUTCOMES), list(OUTCOMES.values()))[0]

    async def _reports(self) -> None:
        """Two outcomes at once, be it of one attempt, and a claim behind them."""
        first, second = self.some("running"), self.some("running")
        if first is None or second is None:
            return
        if first is not second and self._root(first[0]) == self._root(second[0]):
            return  # what follows the one would meet the other: in which order is nobody's promise
        reports = [(some, *self._outcome(some[0], self._said())) for some in (first, second)]
        if first is second:
            reports[1] = reports[0]
        claim = self._claim_body()
        body = {"completions": [{**ids(some[3]), **fields} for some, fields, _ in reports], "claim": claim}
        status, answer = await self.call(self.play.http.worker, "POST", "/v1/attempts/complete", body)
        assert status == 200, answer
        for (some, fields, wait), told in zip(reports, answer["completions"], strict=True):
            self._judge_outcome(some, fields, wait, told, told.get("error"))
        self.hear(claim, answer["claim"])
        self._take(claim, answer["claim"]["attempts"])
        self.count("reports", "of one" if first is second else "of two")

    def _root(self, task: Task) -> str:
        return task.id if task.parent is None else self._root(self.model.tasks[task.parent])

    async def _complete(self, some: Held, fields: Json, wait: Wait | None) -> None:
        self._judge_outcome(some, fields, wait, *await self.tell("complete", some[3], **fields))

    def _judge_outcome(self, some: Held, fields: Json, wait: Wait | None, answer: Json, error: Json | None) -> None:
        task, attempt, token, _ = some
        said = fields["outcome"]
        values = {
            "succeeded": fields.get("result"),
            "suspended": str(fields.get("wait")),
            "retryable": fields.get("retryAfterSeconds"),
        }
        value = values.get(said)

        def judge() -> tuple[str, bool]:
            step, orphans = fields.get("step"), "orphanedSteps" in fields
            return self.model.report(task, attempt, token, said, value, wait=wait, step=step, orphans=orphans)

        again = bool(answer.get("duplicate"))
        if self.judge(said, judge, (answer.get("taskStatus"), answer.get("duplicate")), error, again=again) and not again:
            self.said[attempt.id] = (fields, wait)
            if attempt.led_to != "waiting":
                self.count(f"{said} → {attempt.led_to}", task.code or "taken")

    def _outcome(self, task: Task, said: str) -> tuple[Json, Wait | None]:
        fields: Json = {"outcome": said}
        wait = None
        if said == "succeeded":
            fields["result"] = self.chance.randint(0, 3)
        elif said == "suspended":
            fields["wait"], wait = self._wait(task)
        elif said != "cancelled":
            fields["error"] = {"code": "BAD", "message": "m"}
        if said == "retryable" and self.odds(0.3):
            fields["retryAfterSeconds"] = self.chance.choice([0, 7])
        if said == "unknown" and self.odds(0.4):
            fields["step"] = self.chance.choice(list(task.steps) or ["nobody"])
        if task.steps and self.odds(0.1):
            fields["orphanedSteps"] = list(task.steps)[:2]
        return fields, wait

    def _wait(self, task: Task) -> tuple[Json, Wait]:
        kids = list(task.children())
        names = ["w1", "w2", "w3", "w4", *(list(task.steps) if self.odds(0.15) else [])]
        fields: Json = {"name": self.chance.choice(names)}
        wake: int | None = None
        if self.odds(0.5):
            seconds = self.chance.choice([0, 10, 10, 50])
            wake = self.model.now + seconds
            if self.odds(0.5):
                wake = wake if self.odds(0.7) else self.model.now - 20
                fields["until"] = self.instant(wake)
            else:
                fields["afterSeconds"] = seconds
        if self.odds(0.5) or (wake is None and not kids):
            fields["signal"] = self.chance.choice(["go", "stop"])
        if (kids and self.odds(0.6)) or len(fields) == 1:
            fields["children"] = self.chance.sample(kids, self.chance.randint(1, len(kids)))
        if self.odds(0.04):
            fields["children"] = ["nobody", *kids]
        return fields, Wait(fields["name"], wake, fields.get("signal"), fields.get("children"))

    async def _release(self) -> None:
        if (some := self.some("running")) is not None:
            started = self.odds(0.6)
            if not await self._strange("release", "release", some[3], started=started):
                await self._let_go(some, started)

    async def _let_go(self, some: Held, started: bool) -> None:
        task, attempt, token, item = some
        answer, error = await self.tell("release", item, started=started)
        told, again = (answer.get("taskStatus"), answer.get("duplicate")), bool(answer.get("duplicate"))

        def judge() -> tuple[str, bool]:
            return self.model.report(task, attempt, token, "released", started)

        if self.judge("release", judge, told, error, again=again) and not again:
            self.count(f"release → {attempt.led_to}", task.code or "taken")

    async def _wear(self) -> None:
        """A hundred releases, made up: the next one in a row is counted."""
        if (some := self.some("running")) is None or some[0].status != "running":
            return
        some[0].releases = 100
        self.truth.execute("UPDATE tasks SET releases = 100 WHERE id = %s", (some[0].id,))
        if self.odds(0.5):
            await self._let_go(some, self.odds(0.6))
        else:
            await self._complete(some, *self._outcome(some[0], "suspended"))

    async def _advance(self) -> None:
        seconds = self.chance.choice([1, 1, 5, 16, 31, 61])
        self.clock.advance(seconds)
        self.model.now += seconds
