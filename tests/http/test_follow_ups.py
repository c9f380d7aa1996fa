"""What follows an end (a parent that looks, children that are to go) and was lost by a crash: counted, and done by the sweep."""

from __future__ import annotations

from typing import Any

import pytest

from support.clock import Clock
from support.play import Play
from support.runs import Runs


async def notices(play: Play) -> int:
    """The ends that no parent has looked at, as the doctor counts them."""
    debts = (await play.http.operator.get("/v1/doctor")).json()["debts"]
    return int(debts["outbox"]["noticesNotDelivered"])


async def test_what_a_crash_left_between_an_end_and_its_parent_is_found_by_the_sweep(
    play: Play, runs: Runs, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock_core import ends

    attempt = await play.run()
    await runs.child(attempt, "a")
    await runs.suspend(attempt, "w", children=["a"])

    async def crash(*_: Any, **__: Any) -> None:
        raise ConnectionError

    held = await runs.again(type="demo/child")
    with monkeypatch.context() as patch:
        patch.setattr(ends, "follow", crash)
        with pytest.raises(AssertionError):
            await play.complete(held, result=1)
    assert (await play.get(attempt["taskId"]))["status"] == "waiting"
    clock.advance(6)
    assert await notices(play) == 1
    assert (await play.sweep())["followed"] == 1
    assert await notices(play) == 0
    assert (await runs.again())["steps"][1]["output"]["children"][0]["status"] == "succeeded"
    assert (await play.sweep())["followed"] == 0


async def test_what_a_crash_left_between_a_cancel_and_the_children_is_found_by_the_sweep(
    play: Play, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interlock_core import ends

    attempt = await play.run()
    child = await runs.child(attempt, "a")
    await runs.suspend(attempt, "w", children=["a"])

    async def crash(*_: Any, **__: Any) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(ends, "follow", crash)
        await play.cancel_raw(attempt["taskId"])
    assert (await play.get(child))["status"] == "queued"
    await play.sweep()
    assert (await play.get(child))["status"] == "cancelled"
