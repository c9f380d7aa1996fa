"""The awaited producer: the same answers as the sync one, and a loop that is never held up."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

import interlock
from interlock import (
    ApiError,
    AsyncTaskHandle,
    AsyncTaskProducer,
    AsyncWatch,
    Client,
    TaskCancelled,
    TaskContext,
    TaskFailed,
    TaskHandle,
    TaskProducer,
    Watch,
)
from interlock.threads import CallThreads
from sdk.conftest import KEY
from sdk.live import Live
from support.waiting import wait_until


@dataclass
class Number:
    value: int


@pytest.fixture
async def producer(live: Live) -> AsyncIterator[AsyncTaskProducer]:
    async with AsyncTaskProducer(client=live.client("task-producer")) as made:
        yield made


@pytest.mark.parametrize(
    ("sync", "awaited"), [(TaskProducer, AsyncTaskProducer), (TaskHandle, AsyncTaskHandle), (Watch, AsyncWatch)]
)
def test_the_surface_is_the_same(sync: type, awaited: type) -> None:
    # `look` is one step of a wait, taken through the sync one; the others are attributes here and properties there.
    given, own = ({name for name in dir(kind) if not name.startswith("_")} for kind in (sync, awaited))
    assert given ^ own <= {"look", "client", "after"}
    for name in ("submit", "submit_many", "get", "wait", "result", "cancel", "rerun", "journal", "watch"):
        if hasattr(sync, name):
            parameters, awaits = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (sync, awaited))
            assert parameters == awaits, name


async def test_tasks_are_submitted_read_and_awaited(live: Live, producer: AsyncTaskProducer) -> None:
    contract = interlock.task(live.type, 1, input=Number, output=Number)
    worker = live.worker()

    @worker.handle(contract, effect_safety="pure")
    async def run(number: Number, ctx: TaskContext) -> Number:
        if number.value < 0:
            raise ValueError("negative")
        return Number(number.value + 1)

    worker.start()
    handle = await producer.submit(contract, Number(1), idempotency_key=f"{live.type}-1")
    assert await handle.result(timeout=20) == Number(2)
    assert (await producer.submit(live.type, 1, {"value": 1}, idempotency_key=f"{live.type}-1")).deduplicated
    many = await producer.submit_many([contract(Number(value)) for value in range(60)])
    assert [each.value for each in await asyncio.gather(*(each.result(timeout=30) for each in many))] == list(range(1, 61))
    assert len([task async for task in producer.list(type=live.type, page_size=20)]) == 61
    assert [task.id async for task in producer.list(type=live.type, limit=1)] == [many[-1].id]
    assert [event.kind async for event in handle.journal()] == ["submitted", "claimed", "succeeded"]
    assert [event.kind async for event in handle.watch()] == ["submitted", "claimed", "succeeded"]
    with pytest.raises(TaskFailed, match="negative"):
        await (await producer.submit(contract, Number(-1))).result(timeout=20)
    again = await producer.rerun(handle.id, input={"value": 5})
    assert await again.result(timeout=20) == {"value": 6}
    delayed = await producer.submit(live.type, 1, {"value": 1}, delay=3600)
    with pytest.raises(TimeoutError, match="queued"):
        await delayed.wait(timeout=0.3)
    assert (await delayed.cancel("not needed")).status == "cancelled"
    with pytest.raises(TaskCancelled):
        await delayed.result(timeout=5)
    with pytest.raises(ApiError, match="NOT_FOUND"):
        await producer.get("01a00000-0000-7000-8000-000000000000")


async def test_many_waits_hold_up_neither_the_loop_nor_submissions(live: Live, producer: AsyncTaskProducer) -> None:
    handles = await producer.submit_many([{"type": live.type, "input": n, "delay": 3600} for n in range(100)])
    waits = [asyncio.create_task(handle.wait()) for handle in handles]
    longest = 0.0

    async def feel() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.02)
            longest = max(longest, time.monotonic() - before)

    feeling = asyncio.create_task(feel())
    began = threading.active_count()
    await asyncio.wait_for(producer.submit(live.type, 1, None, delay=3600), 10)
    await asyncio.gather(*(producer.cancel(handle.id) for handle in handles))
    assert {task.status for task in await asyncio.wait_for(asyncio.gather(*waits), 60)} == {"cancelled"}
    feeling.cancel()
    assert longest < 2.0
    assert began < 80


async def test_a_watch_that_is_cancelled_loses_no_event(live: Live, producer: AsyncTaskProducer) -> None:
    handle = await producer.submit(live.type, 1, None, delay=3600)
    seqs: list[int] = []
    async with handle.watch() as watch:
        seqs.append((await anext(watch)).seq)
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(watch), 0.05)
        await handle.cancel()
        seqs += [event.seq async for event in watch]
    assert seqs == [event.seq async for event in handle.journal()]


def test_one_producer_serves_several_loops(live: Live) -> None:
    producer = AsyncTaskProducer(client=live.client("task-producer"))
    ids = [asyncio.run(submit(producer, live.type)) for _ in range(2)]
    assert len(set(ids)) == 2


async def submit(producer: AsyncTaskProducer, type: str) -> str:
    return (await producer.submit(type, 1, None, delay=3600)).id


def test_a_program_ends_while_calls_hang() -> None:
    program = (
        "import asyncio, interlock, socket\n"
        "silent = socket.create_server(('127.0.0.1', 0))\n"
        "async def main():\n"
        "    producer = interlock.AsyncTaskProducer(f'http://127.0.0.1:{silent.getsockname()[1]}', 'key')\n"
        "    try:\n"
        "        await asyncio.wait_for(producer.get('t'), 0.2)\n"
        "    except asyncio.TimeoutError:\n"
        "        print('over')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=15)
    assert (done.stdout, done.stderr) == ("over\n", "")


def test_call_threads_are_few_idle_out_and_survive_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.threads.IDLE", 0.05)
    threads = CallThreads(3)
    names = [threads.submit(threading.current_thread).result(10) for _ in range(20)]
    futures: list[Any] = [threads.submit(time.monotonic) for _ in range(50)]
    assert all(future.result(10) for future in futures)
    assert threads._count <= 3
    wait_until(lambda: threads._count == 0)
    wait_until(lambda: not any(thread.is_alive() for thread in names))
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(10)
    monkeypatch.setattr(threads, "_pid", -1)  # as a child would find it
    assert threads.submit(os.getpid).result(10) == os.getpid()


async def test_errors_and_reprs_show_no_key() -> None:
    producer = AsyncTaskProducer(client=Client("http://127.0.0.1:9", KEY, timeout=0.2))
    with pytest.raises(interlock.Unreachable) as failed:
        await producer.get("t")
    assert KEY not in repr(producer) + str(failed.value) + repr(producer.watch("t"))
