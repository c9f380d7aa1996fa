"""Durable runs against the real service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock import Retry, StepFailed, TaskContext, UnknownOutcome, WaitTimeout
from sdk.live import Live


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
        with pytest.raises(WaitTimeout):
            await ctx.wait_for_signal("never", timeout=0.2)
        return [a, told, b, c, kids, await ctx.wait_for_signal("never", timeout=0.1, default="nothing")]

    live.start(handler, effect_safety="pure", max_concurrent=1)
    task_id = live.submit({})
    live.wait_status(task_id, "waiting")
    live.producer.client.request(
        "POST", f"/v1/tasks/{task_id}/signals", json={"name": "verified", "payload": {"by": "mail"}, "signalKey": "k1"}
    )
    task = live.wait(task_id)
    assert task.failure is None
    assert task.result == ["create", {"by": "mail"}, "left", "right", ["work"] * 3, "nothing"]
    assert sorted(calls) == ["create", "left", "right", "work", "work", "work"]


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
