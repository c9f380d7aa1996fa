"""Children: submitted once per name, gathered in order, their failures carried. No service: `interlock.testing`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import interlock
from interlock import Child, ChildFailed, GatherFailed, Retry, TaskContext
from interlock.testing import drive
from sdk.test_steps import failed


def test_children_are_submitted_once_and_gathered_in_order() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        return await ctx.gather(*[ctx.child("audio/transcribe", 1, n, name=f"clip-{n}") for n in range(30)])

    run = drive(handler)
    run.crash_after("clip-7")
    assert (run.status, len(run.children)) == ("waiting", 30)
    for n in reversed(range(30)):
        run.finish_child(f"clip-{n}", n * 2)
    assert run.result == [n * 2 for n in range(30)]
    assert run.steps[-1] == "gather"


def test_a_sync_handler_has_children_too() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        kids = [ctx.child("a/b", 1, n) for n in range(2)]
        assert all(kid.task_id for kid in kids)
        return [ctx.gather(*kids), kids[0].result(), [kid.name for kid in kids], ctx.gather()]

    run = drive(handler, stubs={"a/b": lambda n: {"n": n}})
    assert run.result == [[{"n": 0}, {"n": 1}], {"n": 0}, ["a/b", "a/b-2"], []]


def test_a_failed_child_raises_what_carries_all() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        kids = [ctx.child("a/b", 1, n, name=n) for n in ("good", "bad", "gone")]
        if inp:
            found = await ctx.gather(*kids, return_exceptions=True)
            return [str(item) for item in found]
        try:
            await ctx.gather(*kids)
        except GatherFailed as error:
            seen.append(error)
            raise

    seen: list[GatherFailed] = []

    for inp in (False, True):
        run = drive(handler, inp)
        run.finish_child("good", "fine")
        run.fail_child("bad", "BROKEN", "no good")
        run.fail_child("gone", "CANCELLED", status="cancelled")
        if inp:
            assert run.result == ["fine", "the child 'bad' (task child-2) is failed: BROKEN: no good",
                                  "the child 'gone' (task child-3) is cancelled: CANCELLED: "]  # fmt: skip
        else:
            code, message = failed(run)
            assert code == "CHILDREN_FAILED"
            assert "'bad'" in message
            assert "'gone'" in message
            assert [type(item) for item in seen[0].results] == [str, ChildFailed, ChildFailed]
            assert (seen[0].failures[0].code, seen[0].failures[1].status) == ("BROKEN", "cancelled")


def test_one_childs_failure_is_its_own() -> None:
    def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.child("a/b", 1, None, name="kid").result()

    run = drive(handler, stubs={"kid": ValueError("broken")})
    assert failed(run)[0] == "ValueError"
    assert isinstance(run.error, ChildFailed)


@dataclass
class Clip:
    url: str


@dataclass
class Text:
    words: int


def test_contracts_type_a_childs_input_and_result() -> None:
    transcribe = interlock.task("audio/transcribe", 2, input=Clip, output=Text)

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        kid = await ctx.child(transcribe, Clip("x"), name="one", priority=3, retry=Retry(2), detached=True)
        assert isinstance(kid, Child)
        text = await kid.result()
        assert isinstance(text, Text)
        return text.words

    run = drive(handler, stubs={"audio/transcribe": {"words": 7}})
    assert run.result == 7
    (child,) = run._task.children.values()
    assert (child.detached, child.task["schemaVersion"], child.task["input"], child.task["priority"]) == (
        True,
        2,
        {"url": "x"},
        3,
    )
    assert "idempotencyKey" not in child.task


def test_a_child_that_nobody_awaits_is_an_error() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        ctx.child("a/b", 1, None, name="lost", detached=True)

    code, message = failed(drive(handler))
    assert (code, "'lost'" in message) == ("NOT_AWAITED", True)


def test_a_child_may_be_awaited_by_several_and_is_submitted_once() -> None:
    async def handler(inp: Any, ctx: TaskContext) -> Any:
        kid = ctx.child("a/b", 1, None, name="kid")
        again = await asyncio.gather(kid, kid, kid)
        return [other is kid for other in again], await ctx.gather(kid, kid)

    run = drive(handler, stubs={"a/b": 1})
    assert run.result == [[True] * 3, [1, 1]]
    assert len(run.children) == 1


def test_what_cannot_be_meant_is_refused() -> None:
    assert failed(drive(lambda inp, ctx: ctx.child("a/b", 1, None, idempotency_key="k")))[0] == "TypeError"
    assert failed(drive(lambda inp, ctx: ctx.child("a/b", 1, {1, 2})))[0] == "NotJson"
    assert failed(drive(lambda inp, ctx: ctx.gather(1)))[0] == "TypeError"


def test_more_children_than_one_wait_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.children.WAIT_CHILDREN", 3)

    async def handler(inp: Any, ctx: TaskContext) -> Any:
        return await ctx.gather(*[ctx.child("a/b", 1, n) for n in range(8)])

    run = drive(handler, stubs={"a/b": lambda n: n})
    assert run.result == list(range(8))
    assert run.steps[-3:] == ["gather", "gather/2", "gather/3"]


def test_results_that_do_not_fit_into_the_wait_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.testing.memory import MemoryChild

    whole = MemoryChild.to_wire

    def handler(inp: Any, ctx: TaskContext) -> Any:
        return ctx.gather(*[ctx.child("a/b", 1, n) for n in range(5)])

    run = drive(handler)
    run._task.page = 2
    assert run.status == "waiting"
    monkeypatch.setattr(MemoryChild, "to_wire", lambda self: {k: v for k, v in whole(self).items() if k != "result"})
    for n, name in enumerate(run.children):
        run.finish_child(name, n)
    monkeypatch.undo()
    assert run.result == [0, 1, 2, 3, 4]


def test_failures_that_do_not_fit_into_the_wait_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from interlock.testing.memory import MemoryChild

    whole = MemoryChild.to_wire

    def handler(inp: Any, ctx: TaskContext) -> Any:
        (end,) = ctx.gather(ctx.child("a/b", 1, None, name="kid"), return_exceptions=True)
        return [end.code, end.message]

    run = drive(handler)
    assert run.status == "waiting"
    monkeypatch.setattr(
        MemoryChild, "to_wire", lambda self: {k: v for k, v in whole(self).items() if k not in ("result", "failure")}
    )
    (kid,) = run._task.children.values()
    kid.status, kid.failure = "failed", {"code": "BAD", "message": "long"}
    run._task.look()
    monkeypatch.undo()
    run.advance(0)
    assert run.result == ["BAD", "long"]
