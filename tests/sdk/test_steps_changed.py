"""Steps of programs that were changed under a run, of runs with very many, and what a handler cannot catch away."""

from __future__ import annotations

from typing import Any

import pytest

from interlock import TaskContext, UnknownOutcome
from interlock.testing import drive
from sdk.test_steps import failed


def test_stored_steps_beyond_the_claim_are_read_first() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        return sum(ctx.step(f"s{n}", lambda n=n: n) for n in range(30))

    run = drive(handler)
    run._task.page = 4
    run.crash_after("s28")
    assert run.result == sum(range(30))
    assert all(run.calls(f"s{n}") == 1 for n in range(30))


def test_the_limit_of_steps_fails_the_task_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.testing.memory.MOST_STEPS", 3)

    def handler(inp: Any, ctx: TaskContext) -> Any:
        for n in range(5):
            try:
                ctx.step(f"s{n}", lambda: 1)
            except Exception as error:
                ctx.log.info("caught %s", error)

    run = drive(handler)
    code, message = failed(run)
    assert code == "LIMIT_EXCEEDED"
    assert "'s3'" in message
    assert run.calls("s4") == 0


# ---- changed programs


def test_a_changed_program_runs_what_is_new_and_names_what_it_left() -> None:
    def old(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("a", lambda: "a")
        ctx.step("b", lambda: "b")
        ctx.sleep(60)

    def new(inp: Any, ctx: TaskContext) -> Any:
        a, c = ctx.step("a", lambda: "A"), ctx.step("c", lambda: "C")
        ctx.sleep(60)
        return a + c

    run = drive(old)
    assert run.status == "waiting"
    run.deploy(new)
    run.advance(60)
    assert (run.result, run.orphaned) == ("aC", ["b"])


@pytest.mark.parametrize("begun", [False, True])
def test_patched_keeps_an_old_run_on_its_way(begun: bool) -> None:
    def old(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("a", lambda: "a")
        if inp:
            ctx.step("b", lambda: "b")
        ctx.sleep(60)
        return "old"

    async def new(inp: Any, ctx: TaskContext) -> Any:
        await ctx.step("a", lambda: "a")
        if ctx.patched("better"):
            await ctx.step("b2", lambda: "b2")
            way = "new"
        else:
            await ctx.step("b", lambda: "b")
            way = "old"
        await ctx.sleep(60)
        await ctx.sleep(60)
        assert ctx.patched("better") == (way == "new")
        return way

    run = drive(new if not begun else old, True)
    assert run.status == "waiting"
    run.deploy(new)
    run.advance(120)
    assert (run.status, run.result) == ("succeeded", "old" if begun else "new"), run.failure
    assert ("patched:better" in run.steps) is not begun
    assert run.orphaned == []


def test_a_name_of_another_kind_is_refused() -> None:
    def old(inp: Any, ctx: TaskContext) -> Any:
        ctx.step("pause", lambda: 1)
        ctx.sleep(60)

    def new(inp: Any, ctx: TaskContext) -> Any:
        ctx.sleep(5, name="pause")

    run = drive(old)
    assert run.status == "waiting"
    run.deploy(new)
    run.advance(60)
    assert failed(run)[0] == "STEP_KIND_CHANGED"


def test_unknown_inside_a_step_names_it_although_it_is_caught() -> None:
    def lose() -> None:
        raise UnknownOutcome("sent, no answer", code="NO_ANSWER")

    def handler(inp: Any, ctx: TaskContext) -> Any:
        try:
            ctx.step("send", lose, effect_safety="idempotent")
        except Exception:
            return "all is well"

    run = drive(handler)
    assert run.status == "outcome-unknown"
    assert run.failure is not None
    assert (run.failure.code, run.failure.details) == ("NO_ANSWER", {"step": "send"})
    assert run.steps == []
