"""What a worker's stream says, and when: work that is ready, work that becomes due, and to how many."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from interlock_core.db import Database
from stream.conftest import TYPE, Serve, Service, Stream
from support.waiting import wait_until_async


async def test_ready_comes_first_with_a_comment_and_nothing_buffers_it(service: Service) -> None:
    stream = await service.stream()
    assert stream.frames[0].event == "ready"
    assert stream.comments == 1
    headers = stream.response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert "no-store" in headers["cache-control"]
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers
    assert headers["x-request-id"]


async def test_a_submit_wakes_a_worker_of_its_type_and_pool_only(service: Service) -> None:
    mine = await service.stream(types=f"{TYPE}@1,demo/other@2")
    others = [
        await service.stream(types=f"{TYPE}@2"),
        await service.stream(types="demo/other@2"),
        await service.stream(pool="gpu"),
    ]
    await service.submit()
    wake = await mine.until("wake")
    assert wake.data == {"types": [f"{TYPE}@1"]}
    assert len(await service.claim(mine.instance_id)) == 1
    await service.submit(schemaVersion=2)
    await others[0].until("wake")
    await service.submit(pool="gpu")
    await others[2].until("wake")
    assert others[1].count("wake") == 0


async def test_delayed_work_wakes_within_a_second_of_its_instant(service: Service) -> None:
    stream = await service.stream()
    began = time.monotonic()
    await service.submit(delaySeconds=2)
    await stream.until("wake")
    assert 1.9 < time.monotonic() - began < 3
    assert len(await service.claim(stream.instance_id)) == 1


async def test_a_retry_wakes_within_a_second_of_its_delay(service: Service) -> None:
    await service.submit(retry={"maxAttempts": 2, "initialDelaySeconds": 1, "jitter": 0})
    stream = await service.stream()
    (attempt,) = await service.claim(stream.instance_id)
    seen = stream.count("wake")
    began = time.monotonic()
    answer = await service.complete(attempt, "retryable", error={"code": "BUSY", "message": "later"})
    assert answer["taskStatus"] == "queued"
    await stream.until("wake", seen + 1)
    assert 0.9 < time.monotonic() - began < 2
    assert len(await service.claim(stream.instance_id)) == 1


async def test_a_lapsed_lease_is_taken_by_another_by_wakes_alone(serve: Serve) -> None:
    """The lease is made after the last look, and nobody says when it ends: the regular look has to notice it."""
    service = await serve(min_lease_seconds=1)
    stream = await service.stream(instanceId="survivor")
    await service.submit(leaseSeconds=1, retry={"maxAttempts": 2, "initialDelaySeconds": 1, "jitter": 0})
    await stream.until("wake")
    (lost,) = await service.claim("dead")
    began = time.monotonic()
    wakes = stream.count("wake")
    attempts = []
    while not attempts:
        wakes += 1
        await stream.until("wake", wakes, timeout=20)
        wakes = stream.count("wake")
        attempts = await service.claim("survivor")
    taken = time.monotonic() - began
    assert attempts[0]["taskId"] == lost["taskId"]
    assert attempts[0]["fence"] == lost["fence"] + 1
    assert 1.9 < taken < 3  # the lease, its backoff, and less than a second


async def test_one_task_wakes_few_of_many_idle_workers(service: Service) -> None:
    streams = [await service.stream() for _ in range(50)]
    await service.submit()
    woken = await asyncio.wait_for(_first_woken(streams), 5)
    assert len(await service.claim(woken.instance_id)) == 1
    await service.submit(type="demo/never")  # a later hint has been heard, so has the first
    looks = service.broadcaster.timetable.looks
    while service.broadcaster.timetable.looks < looks + 1:
        await asyncio.sleep(0.01)
    assert sum(stream.count("wake") for stream in streams) <= 3


async def test_work_that_full_workers_ignore_reaches_the_free_one(service: Service) -> None:
    """Nobody says which worker is full: work that stays is offered on, and the free one is found without a poll."""
    full = [await service.stream() for _ in range(20)]
    await asyncio.gather(*(service.submit() for _ in full))
    for stream in full:
        assert len(await service.claim(stream.instance_id, slots=1)) == 1
    free = await service.stream()
    began = time.monotonic()
    await service.submit()
    await free.until("wake")
    assert time.monotonic() - began < 2
    assert len(await service.claim(free.instance_id, slots=1)) == 1


async def test_many_tasks_wake_as_many_workers(service: Service) -> None:
    streams = [await service.stream() for _ in range(10)]
    answer = await service.producer.post(
        "/v1/tasks/batch", json={"tasks": [{"type": TYPE, "schemaVersion": 1, "input": {}}] * 100}
    )
    assert answer.status_code == 201
    for stream in streams:
        await stream.until("wake", timeout=2)


async def _first_woken(streams: list[Stream]) -> Stream:
    while True:
        for stream in streams:
            if stream.count("wake"):
                return stream
        await asyncio.sleep(0.005)


async def test_an_idle_fleet_costs_one_statement_for_each_regular_look(serve: Serve) -> None:
    """Streams that were opened at different times are looked for together."""
    service = await serve(min_lease_seconds=1)  # so the regular look comes twice a second
    for number in range(30):
        await service.stream(types=f"demo/t{number}@1")
    timetable = service.broadcaster.timetable
    settled = timetable.looks + 3
    await wait_until_async(lambda: timetable.looks >= settled)
    began, looks = time.monotonic(), timetable.looks
    await wait_until_async(lambda: timetable.looks >= looks + 3)
    assert time.monotonic() - began > 1


@pytest.mark.slow
async def test_nobody_waits_for_a_poll_while_a_slot_is_free(service: Service, database: Database) -> None:
    """Ten workers of one slot claim on `ready`, on a wake and after a task, and never by the clock."""
    streams = [await service.stream() for _ in range(10)]
    workers = [asyncio.create_task(_work(service, stream)) for stream in streams]
    for size in (1, 1, 30, 5, 1, 12, 1):
        tasks = await asyncio.gather(*(service.submit(delaySeconds=0.3 if n % 5 == 0 else 0) for n in range(size)))
        answers = await asyncio.gather(*(service.producer.get(f"/v1/tasks/{task['id']}?waitSeconds=15") for task in tasks))
        assert {answer.json()["status"] for answer in answers} == {"succeeded"}
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    with psycopg.connect(database.address.find_now()) as connection:
        row = connection.execute("SELECT count(*), max(extract(epoch FROM started_at - due_at))::float FROM tasks").fetchone()
    assert row is not None
    assert row[0] == 51
    assert row[1] < 10  # a poll would come after 30; how far below is this machine's load


async def _work(service: Service, stream: Stream) -> None:
    while True:
        heard = stream.count("wake")
        while attempts := await service.claim(stream.instance_id, slots=1):
            await service.complete(attempts[0])
        await stream.until("wake", heard + 1, timeout=60)
