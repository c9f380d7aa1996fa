"""Waits: the handler is unwound and comes back, nothing swallows that, and no slot is held. No service: `interlock.testing`."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from interlock import StepFailed, TaskContext, WaitTimeout
from interlock.testing import drive
from sdk.test_steps import failed

START = datetime(2026, 3, 1, tzinfo=UTC)
EAST = timezone(timedelta(hours=9))


def test_a_sleep_ends_at_its_instant() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        await ctx.sleep(timedelta(days=30))
        await ctx.sleep(60)
        return "awake"

    run = drive(handler)
    assert (run.status, run.waiting) == ("waiting", {"name": "sleep", "afterSeconds": 30 * 86_400})
    run.advance(30 * 86_400 - 1)
    assert run.status == "waiting"
    run.advance(61)
    assert (run.status, run.result, run.steps, run.attempts) == ("succeeded", "awake", ["sleep", "sleep-2"], 3)


def test_sleep_until_takes_instants_and_texts() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.sleep_until(START + timedelta(hours=1))
        ctx.sleep_until("2026-03-01T02:00:00Z")
        return "awake"

    run = drive(handler, start=START)
    run.advance(3600)
    assert run.steps == ["sleep-until"]
    run.advance(3600)
    assert run.result == "awake"
    # A time that has passed is no wait of any length.
    assert drive(handler, start=START + timedelta(days=1)).status == "succeeded"


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "1", True, None, 1e12])
def test_a_duration_has_to_be_one(value: Any) -> None:
    assert failed(drive(lambda inp, ctx: ctx.sleep(value)))[0] == "ValueError"


def test_an_instant_needs_a_zone() -> None:
    assert failed(drive(lambda inp, ctx: ctx.sleep_until(datetime(2030, 1, 1))))[0] == "ValueError"  # noqa: DTZ001


@pytest.mark.parametrize("value", [
    "soon", "", "0001-01-01T00:00:00Z", datetime(9999, 12, 31, tzinfo=UTC), datetime.min.replace(tzinfo=EAST),
])  # fmt: skip
def test_an_instant_is_one_that_the_service_takes(value: Any) -> None:
    assert failed(drive(lambda inp, ctx: ctx.sleep_until(value)))[0] == "ValueError"


# ---- signals


def test_signals_are_taken_in_order_and_once_and_kept_if_early() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        await ctx.sleep(10)
        return [await ctx.wait_for_signal("go") for _ in range(3)]

    run = drive(handler, allow_unused=True)
    run.signal("go", None)  # a value
    run.signal("other", "not this one")
    run.signal("go", 2)
    run.advance(10)
    assert run.status == "waiting"
    run.signal("go", {"three": 3})
    assert run.result == [None, 2, {"three": 3}]
    assert run.steps == ["sleep", "signal:go", "signal:go-2", "signal:go-3"]


def test_a_signal_that_does_not_come() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        first = ctx.wait_for_signal("go", timeout=60, default=None)
        try:
            ctx.wait_for_signal("go", timeout=60)
        except TimeoutError as error:
            return [first, type(error).__name__, getattr(error, "signal", None)]

    run = drive(handler)
    run.advance(60)
    run.advance(60)
    assert run.result == [None, WaitTimeout.__name__, "go"]


def test_a_signal_before_its_limit_wins_and_a_later_one_is_the_next_waits() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        return [await ctx.wait_for_signal("go", timeout=60, default="none") for _ in range(3)]

    run = drive(handler)
    run.advance(59)
    run.signal("go", 1)
    run.advance(61)  # the second wait is over at 119
    run.signal("go", 2)
    assert (run.status, run.result) == ("succeeded", [1, "none", 2])


# ---- unwinding


def test_except_exception_lets_it_pass_and_finally_runs() -> None:
    ends: list[str] = []

    def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            ctx.sleep(10)
        except Exception as error:
            return f"caught {error!r}"
        finally:
            ends.append("finally")
        return "awake"

    run = drive(handler)
    run.advance(10)
    assert (run.result, ends) == ("awake", ["finally"] * 2)


def swallow_by_except(ctx: TaskContext) -> str:
    try:
        ctx.sleep(10)
    except BaseException:
        return "went on"
    return "awake"


def swallow_by_return(ctx: TaskContext) -> str:
    try:
        ctx.sleep(10)
    finally:
        return "went on"  # noqa: B012


def swallow_by_another(ctx: TaskContext) -> str:
    try:
        ctx.sleep(10)
    except BaseException:
        raise KeyError("x") from None
    return "awake"


def swallow_by_suppress(ctx: TaskContext) -> str:
    with contextlib.suppress(BaseException):
        ctx.sleep(10)
    return "went on"


@pytest.mark.parametrize("swallow", [swallow_by_except, swallow_by_return, swallow_by_another, swallow_by_suppress])
def test_what_swallows_it_is_told(swallow: Any) -> None:
    code, message = failed(drive(lambda inp, ctx: swallow(ctx)))
    assert code == "SUSPEND_SWALLOWED"
    assert "except Exception" in message
    assert "'sleep'" in message


def test_an_async_handler_that_swallows_it_is_told() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            await ctx.sleep(10)
        except BaseException:
            return "went on"

    assert failed(drive(handler))[0] == "SUSPEND_SWALLOWED"


def test_nothing_begins_in_a_finally_while_it_waits() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            ctx.sleep(10)
            return "awake"
        finally:
            ctx.step("clean", lambda: 1)

    run = drive(handler)
    assert (run.status, run.steps) == ("waiting", [])
    run.advance(10)
    assert (run.result, run.steps) == ("awake", ["sleep", "clean"])


@pytest.mark.parametrize("limited", [False, True])
def test_waits_pass_through_time_limits_groups_and_tasks(limited: bool) -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        async def nap() -> str:
            if limited:
                await asyncio.wait_for(ctx.sleep(10), 5)
            else:
                await asyncio.shield(asyncio.ensure_future(ctx.sleep(10)))
            return "awake"

        return await asyncio.create_task(nap())

    run = drive(handler)
    assert run.status == "waiting"
    run.advance(10)
    assert run.result == "awake"


# ---- beside other things


def test_steps_beside_a_wait_end_first_and_are_stored() -> None:
    order: list[str] = []

    async def slow(name: str) -> str:
        order.append(f"{name} begins")
        for _ in range(20):
            await asyncio.sleep(0)
        order.append(f"{name} ends")
        return name

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        async def branch(name: str) -> Any:
            first = await ctx.step(f"{name}-1", slow, name)
            return first, await ctx.step(f"{name}-2", slow, name)

        return await asyncio.gather(branch("a"), branch("b"), ctx.sleep(10), ctx.wait_for_signal("go"))

    run = drive(handler)
    assert run.status == "waiting"
    assert run.steps == ["a-1", "b-1"]  # begun before the wait: stored; what would have come after is left
    assert order == ["a begins", "b begins", "a ends", "b ends"]
    run.signal("go", "gone")
    run.advance(10)
    assert run.status == "succeeded"
    assert run.result == [["a", "a"], ["b", "b"], None, "gone"]
    assert all(run.calls(f"{name}-{n}") == 1 for name in "ab" for n in (1, 2))


def test_a_failure_beside_a_wait_is_the_tasks() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        await asyncio.gather(ctx.step("parse", int, "x"), ctx.sleep(10))

    run = drive(handler)
    # The wait came first here, and the step's failure is stored; resumed, the step is the first to speak.
    run.advance(10)
    assert failed(run)[0] == "ValueError"
    assert run.calls("parse") == 1


def test_threads_beside_a_wait_end_first() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(ctx.step, "other", lambda: "done")
            ctx.sleep(10)
            return other.result()

    run = drive(handler)
    assert (run.status, run.steps) == ("waiting", ["other"])
    run.advance(10)
    assert run.result == "done"


def test_a_handler_that_returns_before_its_steps_end_is_told() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        left = asyncio.ensure_future(ctx.step("left", asyncio.sleep, 0.01))
        await asyncio.sleep(0.001)
        return repr(left.done())

    run = drive(handler)
    assert failed(run)[0] == "NOT_AWAITED"
    assert run.steps == ["left"]


def test_a_group_of_tasks_waits() -> None:
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("asyncio.TaskGroup is newer than this Python")

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        async with asyncio.TaskGroup() as group:
            nap, told = group.create_task(ctx.sleep(10)), group.create_task(ctx.wait_for_signal("go"))
        return [nap.result(), told.result()]

    run = drive(handler)
    assert run.status == "waiting"
    run.advance(10)
    run.signal("go", 1)
    assert run.result == [None, 1]


def test_a_group_that_is_cut_off_by_a_wait_lets_its_steps_end() -> None:
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("asyncio.TaskGroup is newer than this Python")

    async def slow() -> str:
        await asyncio.sleep(0.02)
        return "sent"

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        async with asyncio.TaskGroup() as group:
            sent = group.create_task(ctx.step("send", slow, effect_safety="non-idempotent"))
            group.create_task(ctx.sleep(10))
        return sent.result()

    run = drive(handler)
    assert (run.status, run.steps) == ("waiting", ["send"])
    run.advance(10)
    assert (run.result, run.calls("send")) == ("sent", 1)


# ---- handlers that must not be run twice


@pytest.mark.parametrize("call", ["sleep", "signal", "gather"])
def test_a_non_idempotent_handler_cannot_wait(call: str) -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        kid = ctx.child("a/b", 1, None)
        try:
            {"sleep": lambda: ctx.sleep(1), "signal": lambda: ctx.wait_for_signal("go"), "gather": lambda: ctx.gather(kid)}[
                call
            ]()
        except Exception:
            return "caught"

    run = drive(handler, effect_safety="non-idempotent")
    code, message = failed(run)
    assert code == "WAIT_NOT_ALLOWED"
    assert "non-idempotent" in message
    assert run.waiting is None


# ---- 30 days of crashes


def test_a_wait_survives_crashes_before_and_after_it() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("before", lambda: 1)
        ctx.sleep(30 * 86_400)
        with contextlib.suppress(StepFailed):
            ctx.step("after", int, "x")
        ctx.sleep(1)
        return "done"

    run = drive(handler)
    run.crash_inside("before")
    run.crash_after("before")
    run.advance(30 * 86_400)
    run.crash_after("after")
    run.advance(1)
    assert (run.result, run.calls("before"), run.calls("after")) == ("done", 2, 1)
