"""The life of a stream: who may open one, what ends it, and what a reader that does not read costs."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from typing import Any

import httpx
import psycopg
import pytest

from interlock_core import hints, wakes
from interlock_core import testpoint as points
from interlock_core.db import Database
from stream.conftest import TYPE, Serve, Service
from support.waiting import wait_until_async

BAD_QUERIES = (
    ({"workerId": ""}, "/workerId"),
    ({"workerId": "a b"}, "/workerId"),
    ({"instanceId": " "}, "/instanceId"),
    ({"pool": "a\nb"}, "/pool"),
    ({"types": ""}, "/types"),
    ({"types": "demo/hello"}, "/types/0"),
    ({"types": "demo/hello@1,hello@1"}, "/types/1"),
    ({"types": "demo/hello@0"}, "/types/0"),
    ({"types": "demo/hello@99999999999"}, "/types/0"),
    ({"types": ",".join(f"a/b@{n}" for n in range(1, 202))}, "/types"),
)


async def test_a_bad_query_names_the_parameter(service: Service) -> None:
    for query, pointer in BAD_QUERIES:
        problem = await _problem(await service.request_stream(**query))
        assert (problem["status"], problem["code"]) == (400, "INVALID_REQUEST")
        assert problem["errors"][0]["pointer"] == pointer
    assert not service.broadcaster.connections


async def test_only_a_worker_key_within_its_narrowing_opens_a_stream(service: Service) -> None:
    response = await service.request_stream(service.producer)
    assert (response.status_code, (await _problem(response))["code"]) == (403, "SCOPE_DENIED")
    response = await service.request_stream(service.client_of("il_w_" + "a" * 16 + "_" + "b" * 43))
    assert (response.status_code, (await _problem(response))["code"]) == (401, "UNAUTHENTICATED")
    key = await _make_key(service, types=["audio/*"])
    response = await service.request_stream(service.client_of(key["key"]))
    assert (response.status_code, (await _problem(response))["code"]) == (403, "SCOPE_DENIED")
    await service.stream(service.client_of(key["key"]), types="audio/transcribe@1")


async def test_unknown_parameters_are_ignored_and_head_does_not_hang(service: Service) -> None:
    stream = await service.stream(later="1")
    assert stream.count("ready") == 1
    answer = await service.worker.head("/v1/stream", params={"workerId": "w", "instanceId": "i", "types": f"{TYPE}@1"})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_cancel_reaches_the_holder_only(service: Service) -> None:
    holder, other = await service.stream(), await service.stream()
    task = await service.submit()
    (attempt,) = await service.claim(holder.instance_id)
    answer = await service.producer.post(f"/v1/tasks/{task['id']}/cancel", json={})
    assert answer.status_code == 200
    frame = await holder.until("cancel")
    assert frame.data == {"taskId": task["id"], "attemptId": attempt["attemptId"]}
    await service.submit()
    await wait_until_async(lambda: holder.count("wake") + other.count("wake") >= 2)
    assert other.count("cancel") == 0
    assert holder.count("cancel") == 1


async def test_cancels_that_did_not_fit_a_hint_are_read_from_the_tasks(service: Service, database: Database) -> None:
    holder = await service.stream()
    task = await service.submit()
    (attempt,) = await service.claim(holder.instance_id)
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("UPDATE tasks SET cancel_requested = true")
        connection.execute('SELECT pg_notify(\'interlock\', \'{"p":"test","cancel":"*"}\')')
    assert (await holder.until("cancel")).data == {"taskId": task["id"], "attemptId": attempt["attemptId"]}


async def test_many_hints_that_say_read_everything_are_one(
    service: Service, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a look at all that runs, waits or is watched in the project: a flood of them is a few looks, and the last counts."""
    broadcaster = service.app.state.broadcaster
    looks: dict[str, int] = {"cancels": 0, "ends": 0}
    cancels, heard_all = wakes.cancels, broadcaster.waits.heard_all

    async def count_cancels(*given: Any) -> Any:
        looks["cancels"] += 1
        return await cancels(*given)

    def count_ends(project: str | None = None) -> None:
        looks["ends"] += 1
        heard_all(project)

    monkeypatch.setattr(wakes, "cancels", count_cancels)
    monkeypatch.setattr(broadcaster.waits, "heard_all", count_ends)
    holder = await service.stream()
    task = await service.submit()
    (attempt,) = await service.claim(holder.instance_id)
    before = broadcaster.hints
    flood = [json.dumps({"p": "test", "cancel": "*", "done": "*", "n": number}) for number in range(500)]
    await database.one(hints.send(*flood))
    await wait_until_async(lambda: broadcaster.hints >= before + 500)
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("UPDATE tasks SET cancel_requested = true")
    await database.one(hints.send(flood[0]))
    assert (await holder.until("cancel")).data == {"taskId": task["id"], "attemptId": attempt["attemptId"]}
    assert 0 < looks["cancels"] < 50
    assert 0 < looks["ends"] < 50


async def test_a_drain_reaches_every_instance_of_the_worker(service: Service, database: Database) -> None:
    drained = [await service.stream(workerId="old"), await service.stream(workerId="old")]
    other = await service.stream(workerId="new")
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute('SELECT pg_notify(\'interlock\', \'{"p":"test","drain":["old"]}\')')
    for stream in drained:
        await stream.until("drain")
    assert other.count("drain") == 0


async def test_another_project_hears_nothing(service: Service, database: Database) -> None:
    mine = await service.stream()
    await database.one(hints.send(hints.payload("another", ready=[(f"{TYPE}@1", "default", 5, 0.0)])))
    await service.submit()
    await mine.until("wake")
    assert mine.count("wake") == 1


async def test_a_payload_nobody_understands_harms_nothing(service: Service, database: Database) -> None:
    stream = await service.stream()
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        for payload in ("", "nonsense", "[]", '{"p":"test","ready":[1]}', '{"p":"test","later":1}'):
            connection.execute("SELECT pg_notify('interlock', %s)", (payload,))
    await service.submit()
    await stream.until("wake")


async def test_a_revoked_key_ends_its_stream_within_five_seconds(service: Service) -> None:
    key = await _make_key(service)
    stream, other = await service.stream(service.client_of(key["key"])), await service.stream()
    answer = await service.operator.post(f"/v1/keys/{key['id']}/revoke")
    assert answer.status_code == 200, answer.text
    await stream.until("revoked", timeout=5)
    await stream.until_ended(1)
    assert not other.ended


async def test_an_expired_key_ends_its_stream(service: Service, database: Database) -> None:
    key = await _make_key(service)
    stream = await service.stream(service.client_of(key["key"]))
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute("UPDATE keys SET expires_at = now() WHERE id = %s", (key["id"],))
    await stream.until_ended(5)
    assert stream.count("revoked") == 0


async def test_a_quiet_stream_is_kept_alive_by_comments(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await service.stream()
    (connection,) = service.broadcaster.connections
    monkeypatch.setitem(type(connection).keep_alive.__globals__, "KEEP_ALIVE_SECONDS", 3.0)
    await wait_until_async(lambda: stream.comments >= 2, 4)
    assert [frame.event for frame in stream.frames] == ["ready"]


async def test_b50_work_of_the_gap_before_the_subscription_is_seen(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted, but not yet joined: what is submitted meanwhile is found by the claim that follows `ready`."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        reached.set()
        await go.wait()

    monkeypatch.setitem(points.armed, "stream.join", freeze)
    opening = asyncio.create_task(service.stream())
    await reached.wait()
    await service.submit()
    go.set()
    stream = await opening
    assert len(await service.claim(stream.instance_id)) == 1


async def test_a_stream_left_by_its_reader_is_forgotten(service: Service) -> None:
    streams = [await service.stream() for _ in range(5)]
    for stream in streams[1:]:
        await stream.close()
    await wait_until_async(lambda: len(service.broadcaster.connections) == 1)
    assert [len(group.members) for group in service.broadcaster.groups] == [1]
    await streams[0].close()
    await wait_until_async(lambda: not service.broadcaster.connections)
    assert len(service.broadcaster.groups) == 0


async def test_an_instance_that_opens_stream_after_stream_keeps_the_latest(service: Service) -> None:
    streams = [await service.stream(instanceId="one") for _ in range(5)]
    await streams[0].until_ended()
    await streams[1].until_ended()
    await wait_until_async(lambda: len(service.broadcaster.connections) == 3)
    assert not streams[4].ended


async def test_b47_readers_that_never_read_are_dropped_and_hold_nothing(serve: Serve, database: Database) -> None:
    types = [f"g{n}/" + "n" * 60 for n in range(60)]

    def tune(listener: socket.socket) -> None:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    service = await serve(listener=tune, stall_seconds=1.0)
    healthy = await service.stream(types=f"{types[0]}@1")
    deaf = [_open_and_never_read(service, ",".join(f"{name}@1" for name in types)) for _ in range(20)]
    await wait_until_async(lambda: len(service.broadcaster.connections) == 21)
    everyone = hints.payload("test", ready=[(f"{name}@1", "default", 100, 0.0) for name in types])

    async def only_one_is_left() -> bool:
        heard = healthy.count("wake")
        await database.one(hints.send(everyone))
        await healthy.until("wake", heard + 1, timeout=1)
        for connection in service.broadcaster.connections:
            assert len(connection._pending) <= len(types)
        return len(service.broadcaster.connections) == 1

    await wait_until_async(only_one_is_left, 30)
    await wait_until_async(lambda: len(service.server.server_state.connections) <= 3, 10)  # descriptors too
    assert not healthy.ended
    for raw in deaf:
        raw.close()


def _open_and_never_read(service: Service, types: str) -> socket.socket:
    return service.open_and_never_read(f"/v1/stream?workerId=deaf&instanceId={uuid.uuid4()}&types={types}", "task-worker")


async def _problem(response: httpx.Response) -> dict[str, Any]:
    await response.aread()
    found: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    return found


async def _make_key(service: Service, **fields: object) -> dict[str, str]:
    answer = await service.operator.post("/v1/keys", json={"name": "a worker", "kind": "task-worker", **fields})
    assert answer.status_code == 201, answer.text
    key: dict[str, str] = answer.json()
    return key
