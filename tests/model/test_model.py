"""Random calls against the service and a model of it in plain dicts: equal after every step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from model.service_model import SETTLED, Attempt, Model, Refused, Task
from support.clock import Clock
from support.play import Play, ids

KEYS = {"K1": 1, "K2": 2}
VERDICTS = ("succeeded", "failed", "requeue")
OUTCOMES = ("succeeded", "failed", "retryable", "unknown", "cancelled")
EACH = ("submit", "claim", "repeat", "give-back", "heartbeat", "release", "cancel", "resolve", *OUTCOMES)

Held = tuple[Task, Attempt, int, dict[str, Any]]  # its token is the attempt's n-th


@pytest.fixture
def truth(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """What the service stored."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


class Walk:
    """One random walk. Every call is made against both, and both must say the same."""

    def __init__(self, play: Play, clock: Clock, truth: psycopg.Connection[Any], seed: int) -> None:
        self.play, self.clock, self.truth = play, clock, truth
        self.chance = random.Random(seed)
        self.model = Model()
        self.given_back: dict[str, dict[str, str]] = {}  # by claim: what its releases answered
        self.held: list[Held] = []  # every answer with an attempt that was ever given
        self.claims: list[tuple[int, dict[str, Any]]] = []  # when, and what was asked
        self.seen: Counter[tuple[str, str]] = Counter()

    async def step(self) -> None:
        calls = {
            "submit": 5,
            "claim": 5,
            "repeat": 1,
            "give_back": 1,
            "heartbeat": 3,
            "report": 7,
            "release": 2,
            "cancel": 2,
            "resolve": 3,
            "advance": 4,
            "sweep": 1,
        }
        name = self.chance.choices(list(calls), list(calls.values()))[0]
        await getattr(self, f"_{name}")()
        self._compare()

    def _count(self, name: str, answer: str) -> None:
        self.seen[name, answer] += 1

    def _compare(self) -> None:
        found = self.truth.execute(
            "SELECT id::text, status, attempts, fence, cancel_requested, failure::json ->> 'code',"
            " (SELECT count(*) FROM journal j WHERE j.task_id = t.id) = journal_seq FROM tasks t"
        ).fetchall()
        stored = {row[0]: row[1:] for row in found}
        wanted = {t.id: (t.status, t.attempts, t.fence, t.cancel_requested, t.code, True) for t in self.model.tasks.values()}
        assert stored == wanted

    async def _submit(self) -> None:
        pick = self.chance.choice
        body: dict[str, Any] = {
            "priority": pick([0, 0, 5]),
            "leaseSeconds": pick([20, 60]),
            "retry": {"maxAttempts": pick([1, 2, 3]), "initialDelaySeconds": pick([0, 10]), "multiplier": 2, "jitter": 0},
        }
        if self.chance.random() < 0.4:
            key = pick(list(KEYS))
            body["concurrency"] = {"key": key, "limit": KEYS[key]}
        for name, values in {"delaySeconds": [5, 30], "timeoutSeconds": [15, 50], "startDeadlineSeconds": [1, 40]}.items():
            if self.chance.random() < 0.25:
                body[name] = pick(values)
        if self.chance.random() < 0.05:
            answer = await self.play.submit_raw(**body, priority_=1)
            assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
            self._count("submit", "refused")
            return
        task = await self.play.submit(**body)
        self.model.submit(task["id"], body)
        self._count("submit", "taken")

    async def _claim(self, exactly: bool = False) -> None:
        slots, safety = self.chance.randint(1, 4), self.chance.choice(["pure", "non-idempotent"])
        self.model.expire()
        body = self.play.claim_body(slots=slots, safety=safety)
        attempts = await self._ask(body)
        self.claims.append((self.model.now, body))
        given = [self.model.tasks[a["taskId"]] for a in attempts]
        ready = self.model.claimable()
        assert [t for t in ready if t in given] == given, "not the best first, or not claimable"
        passed_over = [t for t in ready if t not in given and t.key is None]
        assert len(given) == slots or not passed_over, "a slot stayed free beside ready work"
        if given:
            last = ready.index(given[-1])
            assert all(ready.index(t) > last for t in passed_over), "a better task was passed over"
        if exactly:
            assert given == self.model.best(slots)
        for task, item in zip(given, attempts, strict=True):
            attempt = self.model.start(task, item["attemptId"], safety == "pure", body["claimId"])
            assert (item["fence"], item["attemptNumber"], item["maxAttempts"]) == (
                task.fence,
                task.attempts + 1,
                task.max_attempts,
            )
            assert item["cancelRequested"] is task.cancel_requested
            self.held.append((task, attempt, 1, item))
        for key, held in self.model.held().items():
            assert held <= KEYS[key] or not any(t.key == key for t in given)
        self._count("claim", "taken" if given else "refused")

    async def _ask(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = await self.play.http.worker.post("/v1/claims", json=body)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["attempts"]
        return found

    def _some_claim(self) -> dict[str, Any] | None:
        """A claim that the service still remembers."""
        young = [body for at, body in self.claims[-20:] if at > self.model.now - 600]
        likely = [body for body in young if self.model.open_attempts(body["claimId"])]
        young = likely if likely and self.chance.random() < 0.7 else young
        return self.chance.choice(young) if young else None

    async def _repeat(self) -> None:
        if (body := self._some_claim()) is None:
            return
        self.model.expire()
        wanted = self.model.repeat(body["claimId"])
        attempts = await self._ask(body)
        assert [a["attemptId"] for a in attempts] == [attempt.id for _, attempt in wanted]
        for (task, attempt), item in zip(wanted, attempts, strict=True):
            assert (item["fence"], item["cancelRequested"]) == (attempt.fence, task.cancel_requested)
            self.held.append((task, attempt, attempt.tokens, item))
        self._count("repeat", "taken" if attempts else "refused")

    async def _give_back(self) -> None:
        if (body := self._some_claim()) is None:
            return
        wanted = self.model.give_back(body["claimId"])
        which = {name: body[name] for name in ("workerId", "instanceId", "claimId")}
        answer = await self.play.http.worker.post("/v1/attempts/release", json=which)
        assert answer.status_code == 200, answer.text
        items = answer.json()["attempts"]
        assert {item["attemptId"]: item["taskStatus"] for item in items if not item["duplicate"]} == wanted
        before = self.given_back.setdefault(body["claimId"], {})  # as long as the claim is remembered, it is told again
        assert {item["attemptId"]: item["taskStatus"] for item in items if item["duplicate"]} in ({}, before)
        before |= wanted
        self._count("give-back", "taken" if wanted else "refused")

    def _some(self, status: tuple[str, ...]) -> Held | None:
        """An attempt, most often the latest of a task in one of these states."""
        if not self.held:
            return None
        likely = [h for h in self.held if h[0].attempt is h[1] and h[0].status in status]
        return self.chance.choice(likely if likely and self.chance.random() < 0.8 else self.held)

    async def _heartbeat(self) -> None:
        if (some := self._some(("running", "queued", "outcome-unknown"))) is None:
            return
        task, attempt, token, item = some
        answer = await self.play.heartbeat(item)
        self._judge("heartbeat", lambda: self.model.heartbeat(task, attempt, token), answer.get("stop"), answer.get("error"))

    async def _report(self) -> None:
        if (some := self._some(("running", "queued", "outcome-unknown"))) is None:
            return
        task, attempt, token, item = some
        said = self.chance.choice(OUTCOMES)
        if attempt.report is not None and self.chance.random() < 0.5:
            said = attempt.report[0]  # a lost answer: the same again
        if said == "released":
            await self._let_go(some, attempt.report[1] if attempt.report else False)
            return
        fields: dict[str, Any] = {} if said == "cancelled" else {"error": {"code": "BAD", "message": "m"}}
        answer = await self.play.complete(item, said, **({"result": 1} if said == "succeeded" else fields))
        told = (answer.get("taskStatus"), answer.get("duplicate"))
        self._judge(said, lambda: self.model.report(task, attempt, token, said), told, answer.get("error"))

    async def _release(self) -> None:
        if (some := self._some(("running",))) is not None:
            await self._let_go(some, self.chance.random() < 0.5)

    async def _let_go(self, some: Held, started: bool) -> None:
        task, attempt, token, item = some
        answer = await self.play.release(item, started=started)
        told = (answer.get("taskStatus"), answer.get("duplicate"))
        self._judge("release", lambda: self.model.report(task, attempt, token, "released", started), told, answer.get("error"))

    async def _cancel(self) -> None:
        if self.model.tasks:
            likely = [t for t in self.model.tasks.values() if t.status not in SETTLED]
            task = self.chance.choice(likely if likely and self.chance.random() < 0.8 else list(self.model.tasks.values()))
            self._view("cancel", lambda: self.model.cancel(task), task, await self.play.cancel_raw(task.id))

    async def _resolve(self) -> None:
        if (some := self._some(("outcome-unknown",))) is not None:
            task, attempt, _, _ = some
            verdict = self.chance.choice(VERDICTS)
            fields = {"result": 1} if verdict == "succeeded" else {}
            answer = await self.play.resolve_raw(task.id, verdict, attempt.id, **fields)
            self._view("resolve", lambda: self.model.resolve(task, verdict, attempt), task, answer)

    def _view(self, name: str, judge: Callable[[], bool], task: Task, answer: httpx.Response) -> None:
        """A call that answers the task's view: marked as a repeat, or refused by a status."""
        body = answer.json()
        assert answer.status_code in (200, 409), body
        self._judge(name, judge, body.get("duplicate"), body if answer.status_code == 409 else None)
        assert answer.status_code == 409 or body["status"] == task.status

    def _judge(self, name: str, judge: Callable[[], Any], told: Any, error: dict[str, Any] | None) -> None:
        """The service told the same as the model, or refused with the same code."""
        try:
            wanted, code = judge(), None
        except Refused as refused:
            wanted, code = None, str(refused)
        assert (error["code"] if error else None) == code
        assert error or told == wanted
        self._count(name, "refused" if error else "taken")

    async def _advance(self) -> None:
        seconds = self.chance.choice([1, 5, 15, 31, 61])
        self.clock.advance(seconds)
        self.model.now += seconds

    async def _sweep(self) -> None:
        await self.play.sweep()
        self.model.sweep()
        self._compare()
        await self._claim(exactly=True)


@pytest.mark.parametrize(
    ("seed", "steps"),
    [
        (1, 300),
        (2, 300),
        *(pytest.param(seed, 2000, marks=[pytest.mark.slow, pytest.mark.timeout(300)]) for seed in range(10, 13)),
    ],
)
async def test_random_walks_agree_with_the_model(
    play: Play, clock: Clock, truth: psycopg.Connection[Any], seed: int, steps: int
) -> None:
    clock.hold()
    walk = Walk(play, clock, truth, seed)
    for n in range(3 * steps):
        try:
            await walk.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {n}: {error}") from error
        never = [(name, answer) for name in EACH for answer in ("taken", "refused") if not walk.seen[name, answer]]
        if n >= steps and not never:
            break
    assert never == [], "not every call was both taken and refused"
    for task, _, _, item in walk.held[-5:]:
        assert ids(item)["taskId"] == task.id
        kinds = await play.kinds(task.id)
        assert kinds.count("claimed") == task.fence
        assert sum(kind in SETTLED for kind in kinds) == (task.status in SETTLED)
