"""Steps: what is stored is not done again, and the first run sees what a replay will see. No service: `interlock.testing`."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

import pytest

from interlock import Cancelled, Retry, Retryable, StepFailed, TaskContext
from interlock.testing import Drive, drive

Handler = Callable[[Any, TaskContext], Any]


def failed(run: Drive) -> tuple[str, str]:
    assert run.status == "failed", run
    assert run.failure is not None
    return run.failure.code, run.failure.message


def test_a_step_runs_once_and_is_given_again() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        first = ctx.step("first", lambda *args, **kwargs: [args, kwargs], 1, b=2)
        return first, ctx.step("second", lambda: "two")

    run = drive(handler)
    run.crash_after("first")
    run.crash_after("second")
    assert run.status == "succeeded"
    assert run.result == [[[1], {"b": 2}], "two"]
    assert (run.attempts, run.calls("first"), run.calls("second"), run.steps) == (3, 1, 1, ["first", "second"])
    assert run.arguments("first") == [((1,), {"b": 2})]


@pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
def test_empty_values_are_values(value: Any) -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        found = await ctx.step("empty", lambda: value)
        await ctx.step("next", lambda: 1)
        return [found]

    run = drive(handler)
    run.crash_after("empty")
    run.crash_after("next")
    assert run.result == [value]
    assert type(run.result[0]) is type(value)
    assert run.calls("empty") == 1


@pytest.mark.parametrize("kind", [0, 1])
def test_the_first_run_sees_what_a_replay_sees(kind: int) -> None:
    seen: list[Any] = []

    def look(ctx: TaskContext, found: Any) -> None:
        seen.append(found)

    def sync(inp: Any, ctx: TaskContext) -> Any:
        look(ctx, ctx.step("pair", lambda: (1, {2: 3})))
        ctx.step("next", lambda: None)

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        look(ctx, await ctx.step("pair", lambda: (1, {2: 3})))
        await ctx.step("next", lambda: None)

    run = drive([sync, handler][kind])
    run.crash_after("next")
    assert run.status == "succeeded"
    assert seen == [[1, {"2": 3}]] * 2


def test_a_value_that_is_not_json_fails_at_once_and_says_where() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("when", lambda: {"at": [dt.datetime(2026, 1, 1)]})  # noqa: DTZ001

    run = drive(handler, retry=Retry(5))
    code, message = failed(run)
    assert code == "STEP_NOT_STORABLE"
    assert "'when'" in message
    assert "/at/0" in message
    assert "datetime" in message
    assert run.calls("when") == 1


def test_a_value_that_is_too_large_fails_and_says_so() -> None:
    run = drive(lambda inp, ctx: ctx.step("big", lambda: "x" * 300_000))
    code, message = failed(run)
    assert code == "PAYLOAD_TOO_LARGE"
    assert "'big'" in message


def test_repeats_are_numbered() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        return [await ctx.step("poll", lambda n=n: n) for n in range(3)]

    run = drive(handler)
    run.crash_after("poll-2")
    assert run.result == [0, 1, 2]
    assert run.steps == ["poll", "poll-2", "poll-3"]
    assert [run.calls(name) for name in run.steps] == [1, 1, 1]


def test_a_number_that_is_taken_is_passed_over() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        return [ctx.step(name, lambda name=name: name) for name in ("a-2", "a", "a", "a")]

    run = drive(handler)
    assert run.steps == ["a-2", "a", "a-3", "a-4"]


async def gathered(inp: Any, ctx: TaskContext, keys: bool) -> Any:
    async def fetch(n: int) -> int:
        await asyncio.sleep(0)
        return n

    return await asyncio.gather(*[ctx.step("fetch", fetch, n, key=str(n) if keys else None) for n in range(3)])


def test_gathered_steps_need_keys() -> None:
    code, message = failed(drive(partial_async(gathered, keys=False)))
    assert code == "REPEATED_NAME"
    assert "key=" in message
    run = drive(partial_async(gathered, keys=True))
    run.crash_after("fetch:1")
    assert (run.result, sorted(run.steps)) == ([0, 1, 2], ["fetch:0", "fetch:1", "fetch:2"])


def partial_async(fn: Callable[..., Any], **kwargs: Any) -> Handler:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        return await fn(inp, ctx, **kwargs)

    return handler


def test_a_repeated_name_from_threads_is_an_error_although_it_is_caught() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(ctx.step, "x", lambda: 1).result()
            try:
                ctx.step("x", lambda: 2)
            except Exception:
                return first

    assert failed(drive(handler))[0] == "REPEATED_NAME"


def test_threads_may_call_steps_of_different_names() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(lambda n: ctx.step(f"s{n}", lambda: n), range(5)))

    assert drive(handler).result == [0, 1, 2, 3, 4]


def test_a_step_in_a_step_is_refused() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.step("outer", lambda: ctx.step("inner", lambda: 1))

    assert failed(drive(handler))[0] == "STEP_IN_STEP"


def test_a_step_that_nobody_awaits_is_an_error() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("lost", lambda: 1)

    code, message = failed(drive(handler))
    assert code == "NOT_AWAITED"
    assert "'lost'" in message


def test_sync_functions_of_async_handlers_run_in_threads() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        here = threading.get_ident()
        other = await ctx.step("where", threading.get_ident)
        awaited = await ctx.step("lambda", lambda: asyncio.sleep(0, "awaited"))
        return [other != here, awaited, await ctx.step("partial", partial(asyncio.sleep, 0), "slept")]

    assert drive(handler).result == [True, "awaited", "slept"]


def test_a_coroutine_function_needs_an_async_handler() -> None:
    async def fn() -> None: ...

    code, message = failed(drive(lambda inp, ctx: ctx.step("a", fn)))
    assert (code, "async handler" in message) == ("TypeError", True)


# ---- failures


def test_a_failure_is_final_and_raised_again() -> None:
    seen: list[tuple[str, str, Any]] = []

    class Declined(Exception):
        code = "DECLINED"
        details: ClassVar[dict[str, int]] = {"limit": 5}

    def decline() -> None:
        raise Declined("no money")

    def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            ctx.step("charge", decline)
        except StepFailed as error:
            seen.append((error.code, error.message, error.details))
        return ctx.step("other", lambda: "paid otherwise")

    run = drive(handler)
    run.crash_after("charge")
    run.crash_after("other")
    assert run.result == "paid otherwise"
    assert seen == [("DECLINED", "no money", {"limit": 5})] * 2
    assert run.calls("charge") == 1


def test_a_failure_that_nobody_catches_is_the_tasks() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("parse", int, "x")

    run = drive(handler, retry=Retry(3, on=(Exception,)))
    # The handler's policy counts for a step without one: tried again by a later attempt.
    assert run.status == "queued"
    run = drive(handler)
    code, message = failed(run)
    assert code == "ValueError"
    assert "'parse'" in message
    assert "invalid literal" in message
    assert isinstance(run.error, StepFailed)
    assert isinstance(run.error.__cause__, ValueError)


def test_retries_within_a_step_are_counted_over_attempts() -> None:
    def fail() -> None:
        raise OSError("down")

    run = drive(lambda inp, ctx: ctx.step("call", fail, retry=Retry(3, initial_delay=10, jitter=0)))
    before = run.now
    assert failed(run)[0] == "OSError"
    assert run.calls("call") == 3
    assert (run.now - before).total_seconds() == 30  # 10 and 20, by the virtual clock
    run = drive(lambda inp, ctx: ctx.step("call", fail, retry=Retry(3)))
    run.crash_inside("call")
    run.crash_inside("call")
    assert failed(run)[0] == "OSError"
    assert run.calls("call") == 5  # a try that a crash cut off has no outcome, and is not counted


def test_a_policy_names_what_it_retries() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise KeyError("x") if len(tries) > 1 else OSError("down")

    run = drive(lambda inp, ctx: ctx.step("call", fail, retry=Retry(5, on=(OSError,))))
    assert failed(run)[0] == "KeyError"
    assert len(tries) == 2


def test_retryable_without_a_policy_is_the_tasks_retry() -> None:
    tries: list[int] = []

    def fail() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise Retryable("busy", after=60)
        return "done"

    run = drive(lambda inp, ctx: ctx.step("call", fail))
    assert run.status == "queued"
    run.advance(59)
    assert run.calls("call") == 1
    run.advance(1)
    assert run.calls("call") == 2
    run.advance(60)
    assert (run.status, run.result) == ("succeeded", "done")


def test_a_failed_unsafe_step_is_final_whatever_it_raised() -> None:
    def fail() -> None:
        raise Retryable("busy")

    run = drive(lambda inp, ctx: ctx.step("mail", fail, effect_safety="non-idempotent"))
    assert failed(run)[0] == "RETRYABLE"
    assert run.calls("mail") == 1
    run = drive(lambda inp, ctx: ctx.step("mail", fail, effect_safety="non-idempotent", retry=Retry(3)))
    assert failed(run)[0] == "ValueError"
    assert run.calls("mail") == 0


def test_cancelled_ends_the_task_and_not_the_step() -> None:
    def stop() -> None:
        raise Cancelled("enough")

    run = drive(lambda inp, ctx: ctx.step("work", stop))
    assert failed(run)[0] == "CANCELLED_BY_HANDLER"
    assert run.steps == []


# ---- keys and names


def test_inside_a_step_the_effect_key_is_the_steps() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        keys = [
            await ctx.step("a", ctx.effect_key),
            await ctx.step("a", ctx.effect_key),
            await ctx.step("b", ctx.effect_key, "x"),
        ]
        with pytest.raises(ValueError, match="needs a name"):
            ctx.effect_key()
        return [key.partition("/")[2] for key in keys]

    assert drive(handler).result == ["a", "a-2", "x"]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 256, 7])
def test_a_name_has_to_be_one(name: Any) -> None:
    assert failed(drive(lambda inp, ctx: ctx.step(name, lambda: 1)))[0] == "ValueError"


def test_a_fault_of_a_declaration_is_told() -> None:
    assert failed(drive(lambda inp, ctx: ctx.step("a", lambda: 1, effect_safety="safe")))[0] == "ValueError"
    assert failed(drive(lambda inp, ctx: ctx.step("a", 1)))[0] == "TypeError"
