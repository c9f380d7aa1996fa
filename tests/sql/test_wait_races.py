"""A wake-up that commits just before, during or just after a suspension is not lost: each order forced by test points."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from interlock_core import testpoint
from support.play import Json, Play
from support.runs import Runs


@asynccontextmanager
async def frozen(name: str, call: Callable[[], Awaitable[Json]]) -> AsyncIterator[asyncio.Task[Json]]:
    """Runs the call until it has come to the test point, and on from there when the block ends."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        del testpoint.armed[name]
        testpoint.armed["-"] = _nothing  # whoever comes meanwhile goes statement by statement as well
        reached.set()
        await go.wait()

    testpoint.armed[name] = stop
    running = asyncio.ensure_future(call())
    try:
        async with asyncio.timeout(10):
            await reached.wait()
        yield running
    finally:
        go.set()
        testpoint.armed.clear()


async def _nothing() -> None:
    """A point that nothing comes to."""


async def both(point: str, first: Callable[[], Awaitable[Json]], second: Callable[[], Awaitable[Json]]) -> tuple[Json, Json]:
    """The answers of two calls, the second begun while the first stands at the test point in its transaction."""
    async with frozen(point, first) as running:
        other = asyncio.ensure_future(second())
        done, _ = await asyncio.wait({other}, timeout=0.3)
    return await running, await other if other not in done else other.result()


@pytest.mark.parametrize("point", ["signal.signal", "resume.resume"])
async def test_a_signal_that_commits_just_before_suspended(play: Play, runs: Runs, point: str) -> None:
    attempt = await play.run()
    signalled, suspended = await both(
        point, lambda: runs.signal(attempt["taskId"], "ok", 1), lambda: runs.suspend(attempt, "w", signal="ok")
    )
    assert (signalled["taskStatus"], suspended["taskStatus"]) == ("running", "queued")
    assert (await runs.again())["steps"][0]["output"] == {"signal": 1}


@pytest.mark.parametrize("point", ["complete.lock", "complete.settle", "resume.resume"])
async def test_a_signal_that_comes_while_the_task_suspends(play: Play, runs: Runs, point: str) -> None:
    attempt = await play.run()
    suspended, signalled = await both(
        point, lambda: runs.suspend(attempt, "w", signal="ok"), lambda: runs.signal(attempt["taskId"], "ok", 1)
    )
    assert (suspended["taskStatus"], signalled["taskStatus"]) == ("waiting", "queued")
    assert (await runs.again())["steps"][0]["output"] == {"signal": 1}
    assert (await play.kinds(attempt["taskId"])) == ["submitted", "claimed", "suspended", "signalled", "resumed", "claimed"]


@pytest.mark.parametrize("point", ["complete.settle", "complete.settle.committed", "resume.lock", "ends.told"])
async def test_the_last_child_ends_while_its_parent_suspends(play: Play, runs: Runs, point: str) -> None:
    attempt = await play.run()
    await runs.child(attempt, "kid")
    held = await runs.again(type="demo/child")
    ended, suspended = await both(
        point, lambda: play.complete(held, result=7), lambda: runs.suspend(attempt, "w", children=["kid"])
    )
    assert ended["taskStatus"] == "succeeded"
    assert suspended["taskStatus"] in ("waiting", "queued")
    again = await runs.again()
    assert again["steps"][1]["output"]["children"][0]["result"] == 7


@pytest.mark.parametrize("point", ["complete.lock", "complete.settle", "resume.resume"])
async def test_the_parent_suspends_while_its_last_child_ends(play: Play, runs: Runs, point: str) -> None:
    attempt = await play.run()
    await runs.child(attempt, "kid")
    held = await runs.again(type="demo/child")
    suspended, ended = await both(
        point, lambda: runs.suspend(attempt, "w", children=["kid"]), lambda: play.complete(held, result=7)
    )
    assert (suspended["taskStatus"] in ("waiting", "queued"), ended["taskStatus"]) == (True, "succeeded")
    assert (await runs.again())["steps"][1]["output"]["children"][0]["result"] == 7


async def test_many_signals_at_once_are_all_kept_and_one_wakes(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    await runs.suspend(attempt, "w", signal="n")
    await asyncio.gather(*(runs.signal(attempt["taskId"], "n", n, f"key-{n}") for n in range(20)))
    taken = [(await runs.again())["steps"]]
    kinds = await play.kinds(attempt["taskId"])
    assert (kinds.count("signalled"), kinds.count("resumed"), len(taken[0])) == (20, 1, 1)


async def test_many_children_that_end_at_once_wake_their_parent_once(play: Play, runs: Runs) -> None:
    attempt = await play.run()
    names = [f"c{n}" for n in range(20)]
    for name in names:
        await runs.child(attempt, name)
    held = await play.claim(type="demo/child", slots=20)
    results = await asyncio.gather(
        runs.suspend(attempt, "all", children=names), *(play.complete(one, result=one["input"]["of"]) for one in held)
    )
    assert [r["taskStatus"] for r in results[1:]] == ["succeeded"] * 20
    again = await runs.again()
    assert [end["result"] for end in again["steps"][-1]["output"]["children"]] == names
    assert (await play.kinds(attempt["taskId"])).count("resumed") == 1
