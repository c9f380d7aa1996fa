"""The stream of a project, for a console: which tasks changed, that workers did, and when to read everything again."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Any

import psycopg
import pytest

from interlock_core import hints
from interlock_core import testpoint as points
from interlock_core.db import Database
from stream.conftest import TYPE, Serve, Service, Watch
from support.waiting import wait_until_async

PATH = "/v1/events/stream"


async def test_a_task_is_told_when_it_waits_starts_and_ends(service: Service) -> None:
    watch = await _observe(service)
    task = await service.submit()
    assert (await watch.until("tasks", timeout=2)).data == {"ids": [], "queued": True}
    (attempt,) = await service.claim("i")
    assert (await watch.until("tasks", 2, timeout=5)).data == {"ids": [task["id"]], "queued": False}
    await service.complete(attempt)
    assert (await watch.until("tasks", 3, timeout=2)).data == {"ids": [task["id"]], "queued": False}
    assert watch.kinds()[0] == "ready"
    assert watch.count("re-read") == 0


async def test_a_cancel_is_told_with_its_task(service: Service) -> None:
    task = await service.submit()
    await service.claim("i")
    watch = await _observe(service)
    await service.producer.post(f"/v1/tasks/{task['id']}/cancel", json={})
    assert (await watch.until("tasks", timeout=2)).data == {"ids": [task["id"]], "queued": False}


async def test_workers_are_told_as_they_come_drain_and_go(service: Service) -> None:
    watch = await _observe(service)
    body = {"instanceId": "i", "slots": 2, "handlers": [{"type": TYPE, "schemaVersion": 1, "effectSafety": "pure"}]}
    answer = await service.worker.put("/v1/workers/w", json=body)
    assert answer.status_code == 200, answer.text
    await watch.until("workers", timeout=5)
    await _quiet(service, watch)
    seen = watch.count("workers")
    await service.operator.post("/v1/workers/w/drain", json={})
    await watch.until("workers", seen + 1, timeout=2)
    await _quiet(service, watch)
    seen = watch.count("workers")
    await service.worker.delete("/v1/workers/w/instances/i")
    await watch.until("workers", seen + 1, timeout=5)


async def test_a_worker_that_falls_silent_is_told(serve: Serve) -> None:
    service = await serve(offline_seconds=4)
    watch = await _observe(service)
    await service.claim("i")
    await watch.until("workers", timeout=5)
    with psycopg.connect(service.broadcaster.listener._address.find_now(), autocommit=True) as connection:
        connection.execute("UPDATE instances SET last_seen = now() - interval '10 minutes'")
    await watch.until("workers", 2, timeout=5)


async def test_a_burst_is_told_together_and_too_much_says_read_again(service: Service, database: Database) -> None:
    watch = await _observe(service)
    few = [uuid.uuid4() for _ in range(100)]
    await watch.until("ready")
    for task_id in few:
        await database.one(hints.send(hints.payload("test", done=[task_id])))
    told: set[str] = set()

    def all_told() -> bool:
        told.update(task_id for frame in watch.frames if frame.event == "tasks" for task_id in frame.data["ids"])
        return told >= {str(task_id) for task_id in few}

    await wait_until_async(all_told)
    assert watch.count("tasks") < 50
    await database.one(hints.send(hints.payload("test", done=[uuid.uuid4() for _ in range(1000)])))  # does not fit: "*"
    await watch.until("re-read", timeout=2)
    await database.one(hints.send(*(hints.payload("test", done=[uuid.uuid4() for _ in range(170)]) for _ in range(4))))
    await watch.until("re-read", 2, timeout=2)


async def test_another_project_is_not_told(service: Service, database: Database) -> None:
    watch = await _observe(service)
    await database.one(hints.send(hints.payload("another", done=[uuid.uuid4()], drain=["w"])))
    await service.submit()
    await watch.until("tasks")
    assert watch.kinds() == ["ready", "tasks"]


async def test_b50_ready_is_said_when_nothing_goes_unnoticed_any_more(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts before the first look is on the lists that are read after `ready`; what starts after it is told."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def freeze() -> None:
        reached.set()
        await go.wait()

    task = await service.submit()
    monkeypatch.setitem(points.armed, "stream.join", freeze)
    opening = asyncio.create_task(service.read_along(PATH, service.operator))
    await reached.wait()
    (attempt,) = await service.claim("i")
    go.set()
    watch = await opening
    await watch.until("ready")
    shown = (await service.operator.get(f"/v1/tasks/{task['id']}")).json()
    assert shown["status"] == "running"
    await service.complete(attempt)
    await watch.until("tasks", timeout=2)
    monkeypatch.delitem(points.armed, "stream.join")
    second = await service.read_along(PATH, service.operator)
    await second.until("ready", timeout=1)


async def test_b45_consoles_read_again_when_hints_were_lost(service: Service) -> None:
    watch = await _observe(service)
    with psycopg.connect(service.broadcaster.listener._address.find_now(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'interlock stream'")
    await watch.until("re-read", timeout=20)


async def test_b47_a_console_that_never_reads_holds_little_and_is_dropped(serve: Serve, database: Database) -> None:
    def tune(listener: socket.socket) -> None:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    service = await serve(listener=tune, stall_seconds=1.0)
    healthy = await _observe(service)
    deaf = [service.open_and_never_read(PATH, "operator") for _ in range(5)]
    await wait_until_async(lambda: len(service.broadcaster.streams) == 6)

    async def only_one_is_left() -> bool:
        seen = healthy.count("tasks")
        await database.one(hints.send(hints.payload("test", done=[uuid.uuid4() for _ in range(150)])))
        await healthy.until("tasks", seen + 1, timeout=5)
        for stream in service.broadcaster.streams:
            assert len(stream._ids) <= 500
        return len(service.broadcaster.streams) == 1

    await wait_until_async(only_one_is_left, 60)
    for raw in deaf:
        raw.close()


async def test_only_an_operator_or_its_ticket_opens_it(service: Service) -> None:
    for kind in ("task-producer", "task-worker", "metrics"):
        assert (await service.client(kind).get(PATH)).json()["code"] == "SCOPE_DENIED"
    ticket = (await service.operator.post("/v1/stream-tickets", json={"path": PATH})).json()["ticket"]
    browser = service.client("operator")
    del browser.headers["authorization"]
    await (await service.read_along(PATH, browser, ticket=ticket)).until("ready")
    figures = (await service.operator.get("/v1/metrics")).text
    assert 'interlock_stream_open{kind="project"} 1' in figures.splitlines()


async def test_a_revoked_operator_is_shut_out(service: Service) -> None:
    made = (await service.operator.post("/v1/keys", json={"name": "x", "kind": "operator"})).json()
    watch = await service.read_along(PATH, service.client_of(made["key"]))
    await service.operator.post(f"/v1/keys/{made['id']}/revoke")
    await watch.until("revoked", timeout=5)
    await watch.until_ended(1)


async def test_nobody_is_looked_for_when_nobody_watches(service: Service) -> None:
    watch = await _observe(service)
    await watch.close()
    await wait_until_async(lambda: not service.broadcaster.streams)
    assert not service.broadcaster.observers._projects


async def _observe(service: Service) -> Watch:
    watch = await service.read_along(PATH, service.operator)
    await watch.until("ready")
    return watch


async def _quiet(service: Service, watch: Watch) -> None:
    """A look has told what there was to tell."""
    observed = service.broadcaster.observers._projects["test"]
    workers = None
    while workers != observed.workers:
        workers = observed.workers
        looked = asyncio.Event()
        tell = service.broadcaster.observers._look

        async def look(projects: list[str], tell: Any = tell, looked: asyncio.Event = looked) -> None:
            await tell(projects)
            looked.set()

        service.broadcaster.observers._look = look
        service.broadcaster.observers._kick.set()
        await asyncio.wait_for(looked.wait(), 10)
        service.broadcaster.observers._look = tell
    await wait_until_async(lambda: not any(stream._workers for stream in service.broadcaster.streams))
