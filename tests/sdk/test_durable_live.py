"""Durable runs against the real service."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from interlock import AsyncTaskProducer, Retry, StepFailed, TaskContext, UnknownOutcome, WaitTimeout
from sdk.live import Live
from support.proxy import MakeProxy
from support.waiting import wait_until


def test_steps_a_sleep_a_signal_and_children(live: Live) -> None:
    calls: list[str] = []

    def count(name: str) -> str:
        calls.append(name)
        return name

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        if ctx.input == "child":
            return await ctx.step("work", count, "work")
        a = await ctx.step("create", count, "create")
        await ctx.sleep(0.3)
        told = await ctx.wait_for_signal("verified", timeout=60)
        b, c = await asyncio.gather(ctx.step("left", count, "left"), ctx.step("right", count, "right"))
        kids = await ctx.gather(*[ctx.child(live.type, 1, "child", name=f"kid-{n}") for n in range(3)])
        await ctx.step("last", count, "last")
        with pytest.raises(WaitTimeout):
            await ctx.wait_for_signal("never", timeout=0.2)
        return [a, told, b, c, kids, await ctx.wait_for_signal("never", timeout=0.1, default="nothing")]

    live.start(handler, effect_safety="pure", max_concurrent=1)
    task_id = live.submit({})
    live.wait_status(task_id, "waiting")
    sent = live.producer.signal(task_id, "verified", {"by": "mail"}, signal_key="k1")
    assert (sent.name, sent.signal_key, sent.duplicate) == ("verified", "k1", False)
    assert sent.task_status == "waiting"  # it sleeps: the signal is kept
    task = live.wait(task_id)
    assert task.failure is None
    assert task.result == ["create", {"by": "mail"}, "left", "right", ["work"] * 3, "nothing"]
    assert sorted(calls) == ["create", "last", "left", "right", "work", "work", "work"]
    steps = list(live.producer.steps(task_id, page_size=3))
    assert [(step.name, step.kind) for step in steps[:3]] == [("create", "step"), ("sleep", "wait"), ("signal:verified", "wait")]
    assert steps[0].output == "create"
    kids = list(live.producer.children(task_id))
    assert sorted((kid.name, kid.status, kid.result) for kid in kids) == [(f"kid-{n}", "succeeded", "work") for n in range(3)]
    assert live.producer.signal(task_id, "verified", {"by": "mail"}, signal_key="k1").duplicate
    # From a step: what was stored before it is kept, and not done again.
    calls.clear()
    assert live.producer.rerun(task_id, from_step="last").result(timeout=20) == task.result
    assert calls == ["last"]


def test_sync_handlers_and_failures(live: Live) -> None:
    tries: list[int] = []

    def fail() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("down")
        return "up"

    def handler(inp: Any, ctx: TaskContext) -> Any:
        up = ctx.step("flaky", fail, retry=Retry(5, initial_delay=0.05))
        ctx.sleep(0.1)
        try:
            ctx.step("parse", int, "x")
        except StepFailed as error:
            code = error.code
        ctx.sleep(0.1)
        child = ctx.child("nobody/serves", 1, None, name="later", detached=True)
        return [up, code, child.task_id]

    live.start(handler, effect_safety="pure")
    task = live.wait(live.submit({}))
    assert task.failure is None
    assert task.result[:2] == ["up", "ValueError"]
    assert live.producer.get(task.result[2]).status == "queued"
    assert len(tries) == 3


def test_unknown_names_the_step(live: Live) -> None:
    def lose() -> None:
        raise UnknownOutcome("sent, no answer")

    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("send", lose, effect_safety="non-idempotent")

    live.start(handler, effect_safety="pure")
    task = live.wait(live.submit({}))
    assert task.status == "outcome-unknown"
    assert task.failure is not None
    assert task.failure.details["step"] == "send"


def test_b84_empty_values_are_kept_given_again_and_kept_by_a_rerun(live: Live) -> None:
    values = [None, "", 0, False, [], {}]
    calls: list[int] = []

    def handler(inp: Any, ctx: TaskContext) -> Any:
        found = [ctx.step(f"s{n}", lambda n=n: calls.append(n) or values[n]) for n in range(len(values))]
        ctx.sleep(0.1)
        ctx.step("last", lambda: None)
        return found

    live.start(handler, effect_safety="pure")
    task = live.wait(live.submit({}))
    assert task.result == values
    assert [type(value) for value in task.result] == [type(value) for value in values]
    assert calls == list(range(len(values)))
    stored = {step.name: step for step in live.producer.steps(task.id)}
    assert [stored[f"s{n}"].output for n in range(len(values))] == values
    assert '"output":null' in json.dumps(stored["s0"].raw, separators=(",", ":"))
    assert live.producer.rerun(task.id, from_step="last").result(timeout=20) == values
    assert calls == list(range(len(values)))


async def test_signals_and_steps_for_event_loops(live: Live) -> None:
    live.start(lambda inp, ctx: ctx.wait_for_signal("go"), effect_safety="pure")
    async with AsyncTaskProducer(client=live.client("task-producer")) as producer:
        handle = await producer.submit(live.type, 1, None)
        await producer.signal(handle.id, "go", [1])
        assert await handle.result(timeout=20) == [1]
        assert [step.name async for step in producer.steps(handle.id)] == ["signal:go"]
        assert [child.name async for child in producer.children(handle.id)] == []
        rerun = await producer.rerun(handle.id, from_step="signal:go")
        await producer.signal(rerun.id, "go", [2])
        assert await rerun.result(timeout=20) == [2]


def test_a_steps_value_outlives_an_outage(live: Live, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(live.url)
    ran = threading.Event()
    calls: list[int] = []

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        def work() -> str:
            calls.append(1)
            proxy.cut()
            ran.set()
            return "done"

        return await ctx.step("work", work)

    worker = live.worker(handler, through=proxy, lease=1.5, effect_safety="pure")
    worker.start()
    task_id = live.submit({}, lease=1.5)
    assert ran.wait(20)
    live.wait_status(task_id, "queued")  # the lease is over, and nobody else is there
    proxy.restore()
    task = live.wait(task_id)
    assert (task.result, len(calls)) == ("done", 1)
    assert "lease-recovered" in live.kinds(task_id)


def test_a_cancel_reaches_a_waiting_run_and_its_children(live: Live) -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        kid, free = (
            ctx.child("nobody/serves", 1, None, name="kid"),
            ctx.child("nobody/serves", 1, None, name="free", detached=True),
        )
        return ctx.gather(kid, free)

    live.start(handler, effect_safety="pure")
    task_id = live.submit({})
    live.wait_status(task_id, "waiting")
    live.producer.cancel(task_id)
    wait_until(
        lambda: {kid.name: kid.status for kid in live.producer.children(task_id)} == {"kid": "cancelled", "free": "queued"}
    )


def test_a_non_idempotent_handler_that_waits_fails_and_says_why(live: Live) -> None:
    live.start(lambda inp, ctx: ctx.sleep(1), effect_safety="non-idempotent")
    task = live.wait(live.submit({}))
    assert task.failure is not None
    assert task.failure.code == "WAIT_NOT_ALLOWED"
    assert "suspended" not in live.kinds(task.id)


def test_a_sleeping_run_holds_no_slot(live: Live) -> None:
    live.start(lambda inp, ctx: ctx.wait_for_signal("go") if inp else "quick", effect_safety="pure", max_concurrent=1)
    sleeping = [live.submit(True) for _ in range(3)]
    for task_id in sleeping:
        live.wait_status(task_id, "waiting")
    assert live.wait(live.submit(None)).result == "quick"
    for task_id in sleeping:
        live.producer.signal(task_id, "go", 1)
    assert [live.wait(task_id).result for task_id in sleeping] == [1, 1, 1]


@pytest.mark.slow  # 60 MB go to the service, and come back
def test_many_large_steps_resume_and_all_children_arrive(live: Live) -> None:
    calls: list[int] = []

    def handler(inp: Any, ctx: TaskContext) -> Any:
        if inp == "child":
            return "x" * 20_000

        def make(n: int) -> str:
            calls.append(n)
            return str(n) * (204_800 // len(str(n)))

        total = sum(len(ctx.step(f"s{n}", make, n)) for n in range(300))
        ctx.sleep(0.1)
        kids = ctx.gather(*[ctx.child(live.type, 1, "child", name=f"kid-{n}") for n in range(200)])
        return [total, sum(map(len, kids))]

    live.start(handler, effect_safety="pure", max_concurrent=8)
    task = live.wait(live.submit({}, lease=30), 100)
    assert task.failure is None
    assert task.result[1] == 200 * 20_000
    assert sorted(calls) == list(range(300))


def test_a_wait_that_is_refused_fails_the_task(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.waits.read_time", lambda text: datetime(2030, 1, 1, tzinfo=UTC))

    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.sleep_until("soon")

    live.start(handler, effect_safety="pure")
    task = live.wait(live.submit({}, lease=60))
    assert task.failure is not None
    assert (task.failure.code, "the wait is refused" in task.failure.message) == ("INVALID_REQUEST", True)
    wait_until(lambda: not live.spooled())
