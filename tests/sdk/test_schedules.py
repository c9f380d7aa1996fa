"""Schedules through the SDK: of a producer, sync and awaited, and of a worker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import interlock
from interlock import ApiError, AsyncTaskProducer, Retry, TaskWorker
from interlock.schedules import make_schedule
from sdk.live import Live
from support.waiting import wait_until


def test_a_producer_puts_reads_pauses_triggers_and_deletes(live: Live) -> None:
    schedules, name = live.producer.schedules, live.type.replace("/", "-")
    made = schedules.put(
        name, live.type, 1, {"n": 2**70}, cron="0 2 * * *", time_zone="Europe/Berlin", overlap="skip", catch_up="all",
        tags={"a": "b"}, retry=Retry(max_attempts=2), timeout=timedelta(minutes=1), concurrency=(name, 1),
    )  # fmt: skip
    assert (made.owner, made.cron, made.time_zone, made.every_seconds) == (None, "0 2 * * *", "Europe/Berlin", None)
    assert (made.overlap, made.catch_up, made.input, made.duplicate) == ("skip", "all", {"n": 2**70}, False)
    assert len(made.next_firings) == 5
    assert made.next_due_at == made.next_firings[0] > datetime.now(UTC)
    assert made.raw["retry"]["maxAttempts"] == 2
    assert (made.raw["timeoutSeconds"], made.raw["concurrency"]) == (60, {"key": name, "limit": 1})
    assert schedules.get(name) == made
    assert name in [schedule.name for schedule in schedules.list()]
    assert schedules.pause(name).paused is True
    first = schedules.trigger(name, idempotency_key=name)
    assert schedules.trigger(name, idempotency_key=name).id == first.id
    assert (first.schedule_name, first.schedule_owner, first.tags) == (name, None, {"a": "b"})
    assert schedules.resume(name).paused is False
    assert [task.id for task in live.producer.list(schedule_name=name)] == [first.id]
    assert (schedules.delete(name), schedules.delete(name)) == (True, False)
    with pytest.raises(ApiError) as caught:
        schedules.get(name)
    assert caught.value.code == "NOT_FOUND"


def test_a_contract_types_the_input(live: Live) -> None:
    contract = interlock.task(live.type, 2, input=dict[str, int])
    made = live.producer.schedules.put("typed", contract, {"n": 1}, every=timedelta(hours=1))
    assert (made.type, made.schema_version, made.every_seconds, made.input) == (live.type, 2, 3600, {"n": 1})
    live.producer.schedules.delete("typed")
    with pytest.raises(interlock.NotValid):
        live.producer.schedules.put("typed", contract, {"n": "x"}, every=60)  # type: ignore[dict-item]  # that is the point


async def test_the_awaited_ones_are_the_same(live: Live) -> None:
    name = live.type.replace("/", ".")
    async with AsyncTaskProducer(client=live.client("task-producer")) as producer:
        made = await producer.schedules.put(name, live.type, 1, None, every=3600)
        assert await producer.schedules.get(name) == made
        assert name in [schedule.name async for schedule in producer.schedules.list()]
        assert (await producer.schedules.pause(name)).paused is True
        assert (await producer.schedules.resume(name)).paused is False
        assert (await producer.schedules.trigger(name)).schedule_name == name
        assert await producer.schedules.delete(name) is True


def test_a_worker_brings_its_schedules_and_runs_what_they_fire(live: Live) -> None:
    worker = live.worker(lambda inp, ctx: inp)
    worker.schedule("often", live.type, 1, {"from": "schedule"}, every=1, lease=30)
    worker.schedule("nightly", live.type, 1, {}, cron="0 2 * * *", time_zone="Europe/Berlin")
    worker.start()
    owned = list(live.producer.schedules.list(owner=worker.worker_id))
    assert [(schedule.name, schedule.owner) for schedule in owned] == [("nightly", worker.worker_id), ("often", worker.worker_id)]

    def done() -> bool:
        found = live.producer.list(schedule_owner=worker.worker_id, schedule_name="often", status="succeeded")
        return len(list(found)) >= 2

    wait_until(done, 20)
    worker.drain()
    assert len(list(live.producer.schedules.list(owner=worker.worker_id))) == 2  # a program is expected back
    live.start(lambda inp, ctx: inp)  # the same worker id, in a version that declares none
    assert list(live.producer.schedules.list(owner=worker.worker_id)) == []


def test_a_schedule_that_the_service_refuses_ends_the_start(live: Live) -> None:
    worker = live.worker(lambda inp, ctx: inp)
    worker.schedule("never", live.type, 1, {}, cron="0 0 31 4 *")
    with pytest.raises(ApiError) as caught:
        worker.start()
    assert [error["pointer"] for error in caught.value.errors] == ["/schedules/0/cron"]


def test_what_cannot_be_a_schedule_is_refused_where_it_is_declared() -> None:
    worker = TaskWorker(worker_id="w", url="http://127.0.0.1:1", key="k")
    worker.schedule("one", "a/b", 1, {}, every=60)
    with pytest.raises(ValueError, match="already"):
        worker.schedule("one", "a/b", 1, {}, every=60)
    with pytest.raises(ValueError, match="name"):
        worker.schedule("a b", "a/b", 1, {}, every=60)
    for options in ({}, {"cron": "* * * * *", "every": 60}):
        with pytest.raises(TypeError, match="either"):
            make_schedule("a/b", 1, {}, **options)
    for name in ("idempotency_key", "delay", "run_at"):
        with pytest.raises(TypeError, match=name):
            make_schedule("a/b", 1, {}, every=60, **{name: None})
    assert make_schedule("a/b", 1, {}, every=timedelta(minutes=2), pool="gpu") == {
        "everySeconds": 120,
        "type": "a/b",
        "schemaVersion": 1,
        "input": {},
        "pool": "gpu",
    }
