"""The awaited operator: the same calls and answers as the sync one's."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlock import ApiError, AsyncKeys, AsyncOperator, Keys, Operator, TaskContext, UnknownOutcome
from sdk.conftest import KEY, Answer, ScriptedServer, Seen
from sdk.live import Live


@pytest.fixture
async def operator(live: Live) -> AsyncIterator[AsyncOperator]:
    async with AsyncOperator(client=live.client("operator")) as made:
        yield made


@pytest.mark.parametrize(("sync", "awaited"), [(Operator, AsyncOperator), (Keys, AsyncKeys)])
def test_the_surface_is_the_same(sync: type, awaited: type) -> None:
    calls = {name for name in dir(sync) if not name.startswith("_")}
    assert calls ^ {name for name in dir(awaited) if not name.startswith("_")} <= {
        "client"
    }  # an attribute there, a property here
    for name in calls:
        one, other = getattr(sync, name), getattr(awaited, name)
        assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name
        assert other.__doc__, name
        lists = "Iterator" in str(inspect.signature(one).return_annotation)
        assert inspect.iscoroutinefunction(other) is not lists, name
    assert inspect.signature(Operator).parameters.keys() == inspect.signature(AsyncOperator).parameters.keys()


async def test_an_unknown_outcome_is_resolved(live: Live, operator: AsyncOperator) -> None:
    def send(inp: Any, ctx: TaskContext) -> None:
        raise UnknownOutcome("sent, no answer")

    live.start(send, effect_safety="non-idempotent")
    task_id = live.submit()
    assert (await operator.tasks.wait(task_id, timeout=20)).status == "outcome-unknown"
    task = await operator.resolve(task_id, "succeeded", note="the mail is in the outbox", result={"id": 7})
    assert (task.status, task.result) == ("succeeded", {"id": 7})
    with pytest.raises(ApiError, match="TASK_NOT_UNKNOWN"):
        await operator.resolve(task_id, "failed", note="no")
    entries = [entry async for entry in operator.audit()]
    assert any(entry.target == task_id for entry in entries)


async def test_types_and_tasks_are_stopped_and_started(live: Live, operator: AsyncOperator) -> None:
    ids = [live.submit(n, delay=3600) for n in range(3)]
    assert (await operator.bulk("cancel", {"type": live.type}, dry_run=True)).matched == 3
    assert (await operator.bulk("cancel", {"type": live.type})).changed == 3
    assert {(await operator.tasks.get(task_id)).status for task_id in ids} == {"cancelled"}
    assert await operator.pause_type(live.type)
    assert not await operator.pause_type(live.type)
    assert (await operator.task_type(live.type)).paused
    assert await operator.resume_type(live.type)
    with pytest.raises(ValueError, match="is no filter"):
        await operator.bulk("cancel", {"typo": "x"})  # type: ignore[typeddict-unknown-key]


async def test_workers_limits_and_keys(live: Live, operator: AsyncOperator) -> None:
    worker = live.start(lambda inp, ctx: inp)
    live.wait(live.submit())
    assert worker.worker_id in [each.worker_id async for each in operator.workers()]
    assert live.type in [each.type async for each in operator.task_types()]
    assert (await operator.worker(worker.worker_id)).registered
    assert await operator.drain_worker(worker.worker_id) == [worker.instance_id]
    assert await asyncio.to_thread(worker.join, 20)
    assert await operator.remove_worker(worker.worker_id)

    key = f"limit-{live.type}"
    await operator.set_limit(key, 3)
    assert (key, 3) in [(held.key, held.limit) for held in (await operator.limits()).keys]
    await operator.drop_limit(key)

    made = await operator.keys.create("nightly", "metrics")
    assert made.key
    rotated = await operator.keys.rotate(made.id, 0)
    assert rotated.key not in (None, made.key)
    assert await operator.keys.revoke(rotated.id)
    assert not await operator.keys.revoke(rotated.id)
    listed = {each.id: each async for each in operator.keys.list()}
    assert listed[rotated.id].revoked_at is not None


async def test_a_slow_answer_holds_up_neither_the_loop_nor_other_calls(scripted: ScriptedServer) -> None:
    go = threading.Event()

    def slow(seen: Seen) -> Answer:
        assert go.wait(20)
        return Answer(200, {"ok": True})

    scripted.answer("GET", "/v1/doctor", slow)
    scripted.answer("GET", "/v1/limits", Answer(200, {"items": [], "rate": None}))
    async with AsyncOperator(scripted.url, KEY) as operator:
        assert KEY not in repr(operator)
        waiting = asyncio.create_task(operator.doctor())
        assert (await operator.limits()).rate is None
        assert not waiting.done()
        go.set()
        assert await waiting == {"ok": True}
