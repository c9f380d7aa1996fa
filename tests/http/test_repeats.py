"""Calls that come again, or together, under one idempotency key: one effect and one answer; a refused call leaves its key free."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from interlock_core import bulk, leases, rerun
from interlock_core.db import Database
from interlock_core.errors import Unavailable
from interlock_core.settings import Settings
from support.clock import Clock
from support.play import Json, Play

NOBODY = "019a0000-0000-7000-8000-000000000000"
NIGHTLY = {"everySeconds": 86_400, "type": "demo/hello", "schemaVersion": 1, "input": {}}


async def failed(play: Play, count: int = 1) -> list[str]:
    """Tasks that failed."""
    found = []
    for _ in range(count):
        attempt = await play.run()
        await play.complete(attempt, "failed", error={"code": "X"})
        found.append(attempt["taskId"])
    return found


async def rerun_bulk(play: Play, **fields: Any) -> tuple[int, Json]:
    body = {"filter": {"status": "failed"}, "action": "rerun", "idempotencyKey": "night", **fields}
    answer = await play.http.operator.post("/v1/tasks/bulk", json=body)
    return answer.status_code, answer.json()


async def reruns_of(play: Play, task_id: str) -> int:
    return len((await play.http.producer.get(f"/v1/tasks?rerunOf={task_id}")).json()["items"])


async def test_a_rerun_of_nothing_leaves_its_key_free(play: Play) -> None:
    answer = await play.http.producer.post(f"/v1/tasks/{NOBODY}/rerun", json={"idempotencyKey": "k"})
    assert answer.status_code == 404
    assert (await play.submit_raw(idempotencyKey="k")).status_code == 201


async def test_a_repeated_rerun_is_answered_though_its_source_is_gone(play: Play, database: Database, clock: Clock) -> None:
    (old,) = await failed(play)
    narrow = play.http.use(await play.http.make_key("task-producer", types=["demo/*"]))
    beside = play.http.use(await play.http.make_key("task-producer", types=["audio/*"]))
    first = (await play.http.producer.post(f"/v1/tasks/{old}/rerun", json={"idempotencyKey": "k"})).json()
    clock.advance(8 * 86_400)
    await leases.retain(database, Settings())
    assert (await play.http.producer.get(f"/v1/tasks/{old}")).status_code == 404
    for producer in (play.http.producer, narrow):
        again = await producer.post(f"/v1/tasks/{old}/rerun", json={"idempotencyKey": "k"})
        assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, first["id"], True)
    assert (await beside.post(f"/v1/tasks/{old}/rerun", json={"idempotencyKey": "k"})).json()["code"] == "SCOPE_DENIED"
    other = await play.http.producer.post(f"/v1/tasks/{old}/rerun", json={"idempotencyKey": "k", "input": 5})
    assert other.json()["code"] == "IDEMPOTENCY_CONFLICT"
    assert (await play.http.producer.post(f"/v1/tasks/{old}/rerun", json={})).status_code == 404


async def test_a_repeated_trigger_is_answered_though_its_schedule_is_gone(play: Play) -> None:
    producer = play.http.producer
    assert (await producer.put("/v1/schedules/nightly", json=NIGHTLY)).status_code == 201
    first = await producer.post("/v1/schedules/nightly/trigger", json={"idempotencyKey": "k"})
    assert first.status_code == 201
    await producer.delete("/v1/schedules/nightly")
    again = await producer.post("/v1/schedules/nightly/trigger", json={"idempotencyKey": "k"})
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, first.json()["id"], True)
    beside = play.http.use(await play.http.make_key("task-producer", types=["audio/*"]))
    answer = await beside.post("/v1/schedules/nightly/trigger", json={"idempotencyKey": "k"})
    assert answer.json()["code"] == "SCOPE_DENIED"
    for body in ({}, {"idempotencyKey": "other"}):
        assert (await producer.post("/v1/schedules/nightly/trigger", json=body)).status_code == 404
    assert (await play.submit_raw(idempotencyKey="other")).status_code == 201


async def test_rotations_that_wait_for_each_other_are_one(play: Play, database_url: str) -> None:
    operator = play.http.operator
    made = (await operator.post("/v1/keys", json={"name": "n", "kind": "task-producer"})).json()
    body = {"overlapSeconds": 60, "idempotencyKey": "k"}
    async with await psycopg.AsyncConnection.connect(database_url) as holder:
        await holder.execute("SELECT FROM keys WHERE id = %s FOR UPDATE", (made["id"],))
        calls = [asyncio.create_task(operator.post(f"/v1/keys/{made['id']}/rotate", json=body)) for _ in range(3)]
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        async with asyncio.timeout(10), await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watcher:
            while (await (await watcher.execute(waiting)).fetchone() or (0,))[0] < len(calls):
                await asyncio.sleep(0.01)
    answers = await asyncio.gather(*calls)
    assert sorted(a.status_code for a in answers) == [200, 200, 201]
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum("key" in a.json() for a in answers) == 1


@pytest.mark.in_process
async def test_a_bulk_call_that_comes_again_while_it_runs_is_not_carried_out_twice(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = await failed(play, 2)
    inside, go_on = asyncio.Event(), asyncio.Event()
    insert = rerun.insert

    async def slow(*given: Any) -> Any:
        inside.set()
        await go_on.wait()
        return await insert(*given)

    monkeypatch.setattr(rerun, "insert", slow)
    first = asyncio.create_task(rerun_bulk(play))
    await inside.wait()
    status, told = await rerun_bulk(play)
    assert (status, told["code"], told["retryable"]) == (503, "UNAVAILABLE", True)
    assert (await rerun_bulk(play, filter={}))[1]["code"] == "IDEMPOTENCY_CONFLICT"
    go_on.set()
    status, done = await first
    assert (status, done["matched"], done["changed"], done["duplicate"]) == (200, 2, 2, False)
    assert (await rerun_bulk(play)) == (200, done | {"duplicate": True})
    assert [await reruns_of(play, task) for task in tasks] == [1, 1]


@pytest.mark.in_process
async def test_a_bulk_call_that_was_cut_goes_on_with_what_was_there_when_it_began(
    play: Play, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bulk._PAGE, "rerun", 1)
    tasks = await failed(play, 3)
    insert, seen = rerun.insert, 0

    async def cut(*given: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            raise asyncio.CancelledError  # the process is gone
        return await insert(*given)

    with monkeypatch.context() as patch:
        patch.setattr(rerun, "insert", cut)
        with pytest.raises(asyncio.CancelledError):
            await rerun_bulk(play)
    for attempt in await play.claim(slots=2):  # what was rerun has failed again meanwhile
        await play.complete(attempt, "failed", error={"code": "X"})
    assert (await rerun_bulk(play))[0] == 503
    clock.advance(61)
    status, done = await rerun_bulk(play)
    assert (status, done["matched"], done["changed"], done["duplicate"]) == (200, 3, 3, False)
    assert [await reruns_of(play, task) for task in tasks] == [1, 1, 1]
    assert len((await play.http.producer.get("/v1/tasks?limit=200")).json()["items"]) == 6


@pytest.mark.in_process
async def test_a_bulk_call_does_not_take_trouble_for_a_refusal(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = await failed(play)

    async def trouble(*_: Any) -> Any:
        raise Unavailable("the database is busy")

    with monkeypatch.context() as patch:
        patch.setattr(rerun, "insert", trouble)
        assert (await rerun_bulk(play))[0] == 503
    status, done = await rerun_bulk(play)  # at once: the first call said that it was over
    assert (status, done["changed"], done["skipped"]) == (200, 1, 0)
    assert await reruns_of(play, task) == 1


async def test_the_key_of_a_bulk_call_is_free_after_its_day(play: Play, database: Database, clock: Clock) -> None:
    assert (await rerun_bulk(play))[0] == 200
    clock.advance(86_401)
    status, done = await rerun_bulk(play, filter={"type": "demo/hello"})
    assert (status, done["duplicate"]) == (200, False)
    clock.advance(86_401)
    await leases.retain(database, Settings())
    assert (await rerun_bulk(play))[1]["duplicate"] is False
