"""What a run tells the service, through outages and refusals, and how it ends as a report."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from interlock import Client, TaskContext
from interlock.attempt import Attempt
from interlock.context import TaskContext as Context
from interlock.handler import Handler
from interlock.handling import call_async, call_sync
from interlock.hands import AsyncHands, SyncHands
from interlock.http_port import HttpPort
from interlock.outcome import Outcome, Release, conclude_error, conclude_return
from interlock.port import PortRefused, StepReport, Stopped
from interlock.run import Run
from interlock.threads import CallThreads
from sdk.conftest import KEY, Answer, ScriptedServer, Seen

PATH = "/v1/tasks/t1/attempts/a1"
STORED = {
    "name": "s",
    "kind": "step",
    "status": "succeeded",
    "final": True,
    "tries": 1,
    "output": 1,
    "seq": 1,
    "duplicate": False,
}
REPORT = StepReport("s", "succeeded", "pure", output=b"1")


def refusal(code: str, status: int, *, retryable: bool = False) -> Answer:
    return Answer(status, {"code": code, "status": status, "retryable": retryable, "detail": "no", "title": code})


def make_attempt(fn: Callable[..., Any] = lambda inp, ctx: None, safety: Any = "pure", hook: Any = None, **claim: Any) -> Attempt:
    fields = {"taskId": "t1", "attemptId": "a1", "fence": 7, "leaseToken": "secret", "leaseSeconds": 60, "input": None, **claim}
    return Attempt(fields, Handler("a/b", 1, fn, safety, reconcile=hook), 0.0, 0.0, "")


@pytest.fixture
def port(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> HttpPort:
    attempt = make_attempt()
    monkeypatch.setattr(Attempt, "wait_stop", lambda self, seconds: self.stop_reason is not None)
    return HttpPort(Client(scripted.url, KEY, kind="task-worker"), attempt)


def test_a_step_is_told_until_it_is_answered(port: HttpPort, scripted: ScriptedServer, pauses: list[float]) -> None:
    def renew(seen: Seen) -> Answer:
        port._attempt.ids = port._attempt.ids.replace(b"secret", b"fresh")
        return refusal("UNAUTHENTICATED", 401)

    hops = [Answer(drop=True), Answer(503, b"<html>"), refusal("UNAVAILABLE", 503, retryable=True), renew]
    scripted.answer("POST", f"{PATH}/steps", *hops, Answer(200, STORED))
    assert port.store_step(REPORT).output == 1
    bodies = [seen.json for seen in scripted.seen]
    assert len(bodies) == 5
    ids = {"taskId": "t1", "attemptId": "a1", "fence": 7, "leaseToken": "secret"}
    assert bodies[0] == {**ids, "name": "s", "status": "succeeded", "effectSafety": "pure", "output": 1}
    assert bodies[-1] == {**bodies[0], "leaseToken": "fresh"}


@pytest.mark.parametrize("code", ["STALE_ATTEMPT", "EPOCH_CHANGED"])
def test_a_stale_attempt_stops_its_handler(port: HttpPort, scripted: ScriptedServer, code: str) -> None:
    scripted.answer("POST", f"{PATH}/steps", refusal(code, 409))
    with pytest.raises(Stopped):
        port.store_step(REPORT)
    assert port._attempt.stop_reason == "stale"
    with pytest.raises(Stopped):
        port.store_step(REPORT)
    assert len(scripted.seen) == 1


@pytest.mark.parametrize(("code", "status"), [("PAYLOAD_TOO_LARGE", 413), ("LIMIT_EXCEEDED", 422), ("SCOPE_DENIED", 403)])
def test_a_refusal_is_no_outage(port: HttpPort, scripted: ScriptedServer, code: str, status: int) -> None:
    scripted.answer("POST", f"{PATH}/steps", refusal(code, status))
    with pytest.raises(PortRefused) as caught:
        port.store_step(REPORT)
    assert (caught.value.code, caught.value.status) == (code, status)
    assert len(scripted.seen) == 1


def test_an_attempt_that_is_to_stop_tries_once_more(port: HttpPort, scripted: ScriptedServer, pauses: list[float]) -> None:
    def stop(seen: Seen) -> Answer:
        port._attempt.stop("cancel")
        return Answer(503, b"")

    scripted.answer("POST", f"{PATH}/steps", stop, Answer(200, STORED))
    assert port.store_step(REPORT).output == 1
    assert len(scripted.seen) == 2


def test_pages_are_asked_for_with_the_lease(port: HttpPort, scripted: ScriptedServer) -> None:
    scripted.answer("GET", f"{PATH}/steps", Answer(200, {"items": [STORED], "nextCursor": "x&y"}))
    page = port.read_steps("a b")
    assert (page.items, page.cursor) == ([STORED], "x&y")
    (seen,) = scripted.seen
    assert seen.path.endswith("/steps?cursor=a+b&limit=200")
    assert (seen.headers["x-fence"], seen.headers["x-lease-token"]) == ("7", "secret")
    assert seen.headers["authorization"] == f"Bearer {KEY}"


# ---- a whole attempt


def run_attempt(attempt: Attempt, scripted: ScriptedServer) -> dict[str, Any] | Release:
    """The report that an attempt ends with."""
    client = Client(scripted.url, KEY, kind="task-worker")

    def open_run(attempt: Attempt, owner: Any) -> Run:
        threads = CallThreads(4)
        hands: Any = AsyncHands(threads, threads) if attempt.handler.is_async else SyncHands(attempt)
        return Run(attempt, HttpPort(client, attempt), hands, owner)

    attempt.context = Context(attempt, "w", lambda: None, open_run)
    attempt.started = True
    try:
        value = asyncio.run(call_async(attempt)) if attempt.handler.is_async else call_sync(attempt)
        ended = conclude_return(attempt, value)
    except BaseException as error:
        ended = conclude_error(attempt, error)  # type: ignore[assignment]
    client.close()
    if isinstance(ended, Release):
        return ended
    assert isinstance(ended, Outcome)
    found: dict[str, Any] = json.loads(ended.body)
    return {name: value for name, value in found.items() if name not in ("taskId", "attemptId", "fence", "leaseToken")}


def test_a_started_report_is_answered_before_an_unsafe_function_runs(scripted: ScriptedServer) -> None:
    def started(seen: Seen) -> Answer:
        order.append(seen.json["status"])
        return Answer(200, {**STORED, "status": seen.json["status"], "final": seen.json["status"] != "started"})

    order: list[str] = []
    scripted.answer("POST", f"{PATH}/steps", started)

    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("s", lambda: order.append("ran"), effect_safety="non-idempotent", reconcile=lambda: None)

    assert run_attempt(make_attempt(handler), scripted) == {"outcome": "succeeded", "result": None}
    assert order == ["started", "ran", "succeeded"]
    assert scripted.seen[0].json["reconciles"] is True
    assert (scripted.seen[1].json["tries"], scripted.seen[1].json["output"]) == (1, None)


def test_the_first_report_wins(scripted: ScriptedServer) -> None:
    scripted.answer("POST", f"{PATH}/steps", Answer(200, {**STORED, "output": {"by": "another"}, "duplicate": True}))
    attempt = make_attempt(lambda inp, ctx: ctx.step("s", lambda: "mine"))
    assert run_attempt(attempt, scripted) == {"outcome": "succeeded", "result": {"by": "another"}}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stale_attempt_reports_nothing_of_its_own(scripted: ScriptedServer, kind: str) -> None:
    ran: list[str] = []

    def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            ctx.step("s", lambda: 1)
        except Exception:
            ran.append("caught")
        ran.append("went on")

    async def async_handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            await ctx.step("s", lambda: 1)
        except Exception:
            ran.append("caught")
        ran.append("went on")

    scripted.answer("POST", f"{PATH}/steps", refusal("STALE_ATTEMPT", 409))
    attempt = make_attempt(handler if kind == "sync" else async_handler)
    run_attempt(attempt, scripted)
    assert attempt.stop_reason == "stale"  # for which the ledger sends nothing
    assert ran == []


def test_a_wait_is_an_outcome_and_a_second_worker_reads_it(scripted: ScriptedServer) -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.sleep(2.5)
        return ctx.wait_for_signal("go", timeout=60)

    assert run_attempt(make_attempt(handler), scripted) == {
        "outcome": "suspended", "wait": {"name": "sleep", "afterSeconds": 2.5},
    }  # fmt: skip
    slept = {"name": "sleep", "kind": "wait", "status": "succeeded", "final": True, "output": {"timedOut": True}}
    assert run_attempt(make_attempt(handler, steps=[slept]), scripted) == {
        "outcome": "suspended", "wait": {"name": "signal:go", "signal": "go", "afterSeconds": 60.0},
    }  # fmt: skip
    told = {**slept, "name": "signal:go", "output": {"signal": None}}
    old = {**STORED, "name": "old"}
    assert run_attempt(make_attempt(handler, steps=[slept, told, old]), scripted) == {
        "outcome": "succeeded", "result": None, "orphanedSteps": ["old"],
    }  # fmt: skip
    assert scripted.seen == []


def test_an_open_step_without_a_hook_is_unknown_and_named(scripted: ScriptedServer) -> None:
    opened = {"name": "s", "kind": "step", "status": "started", "final": False, "effectSafety": "non-idempotent"}
    told = run_attempt(make_attempt(lambda inp, ctx: ctx.step("s", lambda: 1), steps=[opened]), scripted)
    assert isinstance(told, dict)
    assert (told["outcome"], told["step"], told["error"]["code"]) == ("unknown", "s", "STEP_UNKNOWN")
    assert scripted.seen == []


class Unwound(BaseException):
    """As those of gevent's time limits."""


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), Unwound()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["step", "hook", "handler's hook"])
def test_what_is_no_exception_leaves_an_effect_unknown(scripted: ScriptedServer, place: str, raised: BaseException) -> None:
    def fail(*_: Any) -> Any:
        raise raised

    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("s", fail, effect_safety="non-idempotent", reconcile=fail)

    def store(seen: Seen) -> Answer:
        return Answer(200, {**STORED, "name": "s", **{k: v for k, v in seen.json.items() if k in ("status", "error", "final")}})

    scripted.answer("POST", f"{PATH}/steps", store, store)
    opened = {"name": "s", "kind": "step", "status": "started", "final": False, "effectSafety": "non-idempotent"}
    if place == "handler's hook":
        attempt = make_attempt(handler, safety="non-idempotent", hook=fail, reconcile={"attemptId": "a0", "reason": "RELEASED"})
    else:
        attempt = make_attempt(handler, steps=[opened] if place == "hook" else [])
    told = run_attempt(attempt, scripted)
    assert isinstance(told, dict)
    # A function that exits says that it failed, as one that raises an Exception does; a hook that exits has found nothing out.
    assert told["outcome"] == ("failed" if place == "step" and isinstance(raised, SystemExit) else "unknown")
    assert told.get("step") == ("s" if told["outcome"] == "unknown" and place != "handler's hook" else None)


def test_a_claim_to_be_reconciled_without_a_hook_is_unknown(scripted: ScriptedServer) -> None:
    told = run_attempt(make_attempt(safety="non-idempotent", reconcile={"attemptId": "a0", "reason": "LEASE_EXPIRED"}), scripted)
    assert isinstance(told, dict)
    assert (told["outcome"], told["error"]["code"]) == ("unknown", "NOT_RECONCILED")
    assert told["error"]["details"] == {"attemptId": "a0", "reason": "LEASE_EXPIRED"}


def test_a_result_at_hand_is_stored_although_the_handler_is_cancelled(scripted: ScriptedServer) -> None:
    arrived, go = threading.Event(), threading.Event()

    def hold(seen: Seen) -> Answer:
        arrived.set()
        go.wait(5)
        return Answer(200, STORED)

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            arrived.wait(5)
            attempt.stop("cancel")
            loop.call_soon_threadsafe(task.cancel)
            go.set()

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            return await ctx.step("s", lambda: 1)
        finally:
            thread.join()

    scripted.answer("POST", f"{PATH}/steps", hold)
    attempt = make_attempt(handler)
    told = run_attempt(attempt, scripted)
    assert isinstance(told, dict)
    assert told["outcome"] == "cancelled"
    assert attempt.run is not None
    assert attempt.run.steps == {}  # it heard the answer, and no more than that
    assert len(scripted.seen) == 1


def test_a_wait_is_shortened_by_the_steps_that_held_it_back(scripted: ScriptedServer) -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        await asyncio.gather(ctx.step("s", asyncio.sleep, 0.05), ctx.sleep(60))

    scripted.answer("POST", f"{PATH}/steps", Answer(200, {**STORED, "output": None}))
    told = run_attempt(make_attempt(handler), scripted)
    assert isinstance(told, dict)
    assert 50 < told["wait"]["afterSeconds"] < 60
