"""Answers that say nothing, too much, or something of others: no work is lost or done twice, and the good parts count."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sdk.conftest import Answer, ScriptedServer, Seen
from sdk.live import Live, wait_until

Json = dict[str, Any]
Lie = Callable[[Json], Any]
REFUSAL = {"code": "STALE_ATTEMPT", "status": 409, "retryable": False, "detail": "the attempt is not current"}


class Between:
    """Stands between a worker and the service, and changes answers on their way."""

    def __init__(self, live: Live, scripted: ScriptedServer) -> None:
        self.url = scripted.url
        self.told = 0
        self._upstream = live.client("task-worker")
        self._lies: dict[str, tuple[Callable[[Json], bool], list[Lie]]] = {}
        scripted.answer("PUT", f"/v1/workers/{live.type.replace('/', '-')}", self._forward)
        scripted.answer("GET", "/v1/config", Answer(200, {"streamUrl": "http://127.0.0.1:9", "pollSeconds": 0.3, "limits": {}}))
        for path in ("/v1/claims", "/v1/attempts/complete", "/v1/attempts/heartbeat", "/v1/attempts/release"):
            scripted.answer("POST", path, self._forward)

    def lie(self, path: str, when: Callable[[Json], bool], *lies: Lie) -> None:
        """The next answers of the path that `when` holds for are changed so, one after the other."""
        self._lies[path] = when, list(lies)

    def _forward(self, seen: Seen) -> Answer:
        path = seen.path.partition("?")[0]
        answer = self._upstream.request(seen.method, path, content=seen.body or None)
        when, lies = self._lies.get(path, (bool, []))
        if lies and when(answer):
            self.told += 1
            return Answer(200, lies.pop(0)(copy.deepcopy(answer)))
        return Answer(200, answer)


@pytest.fixture
def between(live: Live, scripted: ScriptedServer) -> Between:
    return Between(live, scripted)


def brings(answer: Json) -> bool:
    return bool(answer.get("attempts"))


def with_attempts(change: Callable[[list[Any]], list[Any]]) -> Lie:
    return lambda answer: {**answer, "attempts": change(answer["attempts"])}


def without(*names: str) -> Lie:
    return lambda answer: {name: value for name, value in answer.items() if name not in names}


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda _: {}, id="nothing"),
        pytest.param(without("attempts"), id="no attempts"),
        pytest.param(lambda answer: {**answer, "attempts": None}, id="null"),
        pytest.param(lambda answer: {**answer, "attempts": {"0": 1}}, id="an object"),
    ],
)
def test_a_claim_without_an_answer_is_asked_again(live: Live, between: Between, lie: Lie) -> None:
    between.lie("/v1/claims", brings, lie, lie)
    task_id = live.submit(7)
    live.start(lambda inp, ctx: inp, url=between.url)
    assert live.wait(task_id).result == 7
    assert between.told == 2
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


def test_an_attempt_that_is_told_twice_runs_once(live: Live, between: Between) -> None:
    ran: list[Any] = []
    between.lie("/v1/claims", brings, with_attempts(lambda items: [*items, *items]))
    task_id = live.submit(7)
    live.start(lambda inp, ctx: ran.append(inp), url=between.url, max_concurrent=4)
    live.wait(task_id)
    task_id = live.submit(8)
    live.wait(task_id)
    assert between.told == 1
    assert ran == [7, 8]


@pytest.mark.parametrize(
    "strange",
    [
        *(None, 7, [], {}, "x"),
        {"type": [], "schemaVersion": {}},
        {"type": "demo/other", "schemaVersion": 1},
        {"type": "TYPE", "schemaVersion": 1, "attemptId": "a"},
        {"type": "TYPE", "schemaVersion": 1, "attemptId": "a", "taskId": "t", "fence": "x", "leaseToken": None},
    ],
    ids=repr,
)
def test_what_is_no_attempt_keeps_no_other_from_running(live: Live, between: Between, strange: Any) -> None:
    if isinstance(strange, dict) and strange.get("type") == "TYPE":
        strange = {**strange, "type": live.type}
    between.lie("/v1/claims", brings, with_attempts(lambda items: [strange, *items, strange]))
    task_id = live.submit(7)
    live.start(lambda inp, ctx: inp, url=between.url)
    assert live.wait(task_id).result == 7
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


@pytest.mark.parametrize("seconds", [10**400, float("inf"), float("nan"), -5, "soon", None, True, [1]], ids=repr)
def test_durations_that_are_none_are_survived(live: Live, between: Between, seconds: Any) -> None:
    def lie(answer: Json) -> Json:
        attempts = [{**item, "leaseSeconds": seconds, "deadlineAt": seconds} for item in answer["attempts"]]
        return {**answer, "attempts": attempts, "pollAfterSeconds": seconds, "serverTime": seconds}

    between.lie("/v1/claims", brings, lie)
    task_id = live.submit(7)
    live.start(lambda inp, ctx: inp, url=between.url)
    assert live.wait(task_id).result == 7
    assert live.kinds(task_id) == ["submitted", "claimed", "succeeded"]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda _: {}, id="nothing"),
        pytest.param(lambda answer: {**answer, "completions": None}, id="null"),
        pytest.param(lambda answer: {**answer, "completions": 7}, id="a number"),
        pytest.param(lambda answer: {**answer, "completions": {"0": {}}}, id="an object"),
        pytest.param(lambda answer: {**answer, "completions": [{}]}, id="an empty verdict"),
        pytest.param(
            lambda answer: {**answer, "completions": [{**item, "attemptId": "x"} for item in answer["completions"]]},
            id="another's",
        ),
        pytest.param(
            lambda answer: {**answer, "completions": [{"attemptId": "x", "error": REFUSAL} for _ in answer["completions"]]},
            id="another's refusal",
        ),
    ],
)
def test_an_outcome_without_its_verdict_is_kept_and_sent_again(
    live: Live, between: Between, lie: Lie, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock.spool import Spool

    settled: list[int] = []
    settle = Spool.settle
    monkeypatch.setattr(Spool, "settle", lambda self, outcome: (settled.append(between.told), settle(self, outcome))[1])
    between.lie("/v1/attempts/complete", lambda answer: bool(answer.get("completions")), lie, lie)
    task_id = live.submit(7)
    live.start(lambda inp, ctx: inp, url=between.url)
    assert live.wait(task_id).result == 7
    assert wait_until(lambda: settled and not live.spooled())
    assert settled == [2]


def test_a_renewal_of_another_attempt_renews_none_here(live: Live, between: Between) -> None:
    """Nor does an answer that says nothing: the lease is in doubt after its time, and the handler is told."""
    another = with_attempts(lambda items: [{**item, "attemptId": "another's"} for item in items])
    nothing = with_attempts(lambda items: [{} for _ in items])
    between.lie("/v1/attempts/heartbeat", brings, *([another, nothing] * 50))
    stopped = threading.Event()

    def handle(inp: Any, ctx: Any) -> None:
        if ctx.wait_for_cancel(15):
            stopped.set()

    live.submit(7, lease=2)
    live.start(handle, url=between.url, on_lease_doubt="cancel")
    assert stopped.wait(12)


def test_what_is_given_back_without_a_verdict_is_given_back_again(live: Live, between: Between) -> None:
    between.lie("/v1/attempts/release", brings, lambda _: {}, lambda answer: {**answer, "attempts": [{}]})
    running, end = threading.Event(), threading.Event()

    def handle(inp: Any, ctx: Any) -> None:
        running.set()
        end.wait(15)

    task_id = live.submit(7)
    worker = live.start(handle, url=between.url)
    assert running.wait(10)
    worker.drain(timeout=0)
    end.set()
    assert between.told == 2
    assert "released" in live.kinds(task_id)
