"""Calls that wait for a task's end, held on the hints of one session."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from interlock_core.errors import NotFound
from stream.conftest import Serve, Service
from support.waiting import wait_until_async


async def test_a_wait_answers_as_soon_as_the_task_ends(service: Service) -> None:
    task = await service.submit()
    waiting = [asyncio.create_task(service.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=20")) for _ in range(20)]
    await wait_until_async(lambda: len(service.broadcaster.waits) == 20)
    (attempt,) = await service.claim("i")
    began = time.monotonic()
    await service.complete(attempt, result={"n": 1})
    for answer in await asyncio.gather(*waiting):
        assert answer.json()["status"] == "succeeded"
        assert answer.json()["result"] == {"n": 1}
    assert time.monotonic() - began < 2
    assert len(service.broadcaster.waits) == 0


async def test_a_wait_is_held_by_another_process_than_the_one_that_settles(serve: Serve) -> None:
    one, two = await serve(), await serve()
    task = await one.submit()
    waiting = asyncio.create_task(two.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=20"))
    await wait_until_async(lambda: len(two.broadcaster.waits) == 1)
    (attempt,) = await one.claim("i")
    await one.complete(attempt)
    assert (await waiting).json()["status"] == "succeeded"


async def test_a_wait_that_is_over_says_how_things_stand(service: Service) -> None:
    task = await service.submit()
    answer = await service.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=0.2")
    assert answer.json()["status"] == "queued"
    assert answer.json()["settled"] is False


async def test_an_end_that_no_hint_told_is_found_by_reading_again(service: Service) -> None:
    task = await service.submit()
    (attempt,) = await service.claim("i")
    service.broadcaster.listener._heard = lambda _: None
    waiting = asyncio.create_task(service.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=20"))
    await wait_until_async(lambda: len(service.broadcaster.waits) == 1)
    await service.complete(attempt)
    began = time.monotonic()
    assert (await waiting).json()["status"] == "succeeded"
    assert time.monotonic() - began < 6


async def test_waiting_calls_hold_no_connection_to_the_database(service: Service) -> None:
    """Twenty waits on a pool of eight, and everyone else is served."""
    tasks = [await service.submit() for _ in range(20)]
    waiting = [asyncio.create_task(service.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=20")) for task in tasks]
    await wait_until_async(lambda: len(service.broadcaster.waits) == 20)
    for attempt in await service.claim("i", slots=20):
        await service.complete(attempt)
    assert {answer.json()["status"] for answer in await asyncio.gather(*waiting)} == {"succeeded"}


async def test_a_stranger_who_asks_first_keeps_no_hint_from_a_tasks_own_project(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, task_id, answer_strangers = service.broadcaster.waits, uuid4(), asyncio.Event()
    row = SimpleNamespace(status="running")

    async def find(_: Any, project: str, __: UUID) -> Any:
        if project == "stranger":
            await answer_strangers.wait()
            raise NotFound("there is no such task")
        return row

    monkeypatch.setattr("interlock_core.tasks.find", find)
    database: Any = None
    stranger = asyncio.create_task(waits.hold(database, "stranger", task_id, 20))
    await wait_until_async(lambda: len(waits) == 1)
    mine = asyncio.create_task(waits.hold(database, "mine", task_id, 20))
    await wait_until_async(lambda: len(waits) == 2)
    answer_strangers.set()
    with pytest.raises(NotFound):
        await stranger
    row.status = "succeeded"
    waits.heard_all("mine")
    async with asyncio.timeout(1):  # before it would have read again by itself
        assert (await mine).status == "succeeded"
    assert len(waits) == 0
