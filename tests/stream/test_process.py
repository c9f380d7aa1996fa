"""The stream as a process of its own, as its container runs it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psycopg
import pytest

from interlock_core.db import Database
from interlock_core.keys import bootstrap
from stream.conftest import PROJECT, TYPE
from support.waiting import wait_until_async

# each test starts, fills and stops a stream process
pytestmark = pytest.mark.slow

SERVE = Path(__file__).resolve().parents[2] / "functions" / "stream" / "serve.py"


class Process:
    """One `serve.py`, its port and its output."""

    def __init__(self, database_url: str, output: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = output
        with output.open("wb") as sink:
            self.child = subprocess.Popen(
                [sys.executable, SERVE, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "INTERLOCK_SERVER_DATABASE_URL": database_url},
            )

    async def ready(self) -> bool:
        assert self.child.poll() is None, self.output.read_text()
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(f"{self.url}/readyz")).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
async def process(database_url: str, tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(database_url, tmp_path / "stream.out")
    try:
        await wait_until_async(process.ready, 30)
        yield process
    finally:
        process.child.kill()
        process.child.wait()


async def test_b48_a_stop_ends_two_hundred_streams_at_once(process: Process, database: Database) -> None:
    keys = await bootstrap(database, PROJECT, {})
    streams = await asyncio.gather(*(_open(process, keys["task-worker"], number) for number in range(200)))
    health = await _get(process, "/healthz")
    assert health == {"status": "ok", "streams": 200}
    began = time.monotonic()
    process.child.send_signal(signal.SIGTERM)
    rests = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in streams)), 5)
    assert all(rest.endswith(b"0\r\n\r\n") for rest in rests), "each ends as a whole response"
    await wait_until_async(lambda: process.child.poll() is not None, 10)
    assert process.child.returncode == 0, process.output.read_text()
    assert time.monotonic() - began < 10
    assert process.output.read_text() == ""
    for _, writer in streams:
        writer.close()
    with pytest.raises(httpx.ConnectError):
        await _get(process, "/healthz")


async def test_b48_a_stop_ends_watchers_and_consoles_too(process: Process, database: Database) -> None:
    """Also those that are behind, and those whose task goes on."""
    keys = await bootstrap(database, PROJECT, {})
    task_id = uuid.uuid4()
    with psycopg.connect(database.address.find_now(), autocommit=True) as connection:
        connection.execute(
            """INSERT INTO tasks (id, project, type, schema_version, pool, status, priority, input,
                                  created_at, due_at, effect_scope, journal_seq)
               VALUES (%(id)s, %(project)s, 'a/b', 1, 'default', 'queued', 0, '{}', now(), now(), %(id)s, 5000)""",
            {"id": task_id, "project": PROJECT},
        )
        connection.execute(
            """INSERT INTO journal (task_id, seq, at, kind, data)
               SELECT %s, g, now(), 'log', json_build_object('x', repeat('x', 500))::text FROM generate_series(1, 5000) g""",
            (task_id,),
        )
    path = f"/v1/tasks/{task_id}/stream"
    unread = [await _request(process, keys["task-producer"], path) for _ in range(20)]
    streams = [await _request(process, keys["task-producer"], f"{path}?lastEventId=4999") for _ in range(50)]
    for reader, _ in streams:
        await reader.readuntil(b"id: 5000\n")
    consoles = [await _request(process, keys["operator"], "/v1/events/stream") for _ in range(50)]
    for reader, _ in consoles:
        await reader.readuntil(b"event: ready\n")
    assert await _get(process, "/healthz") == {"status": "ok", "streams": 120}
    process.child.send_signal(signal.SIGTERM)
    rests = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in streams + consoles)), 5)
    assert all(rest.endswith(b"0\r\n\r\n") for rest in rests), "each ends as a whole response"
    await wait_until_async(lambda: process.child.poll() is not None, 10)
    assert process.child.returncode == 0, process.output.read_text()
    assert process.output.read_text() == ""
    for _, writer in unread + streams + consoles:
        writer.close()


async def test_the_process_goes_on_without_its_database(process: Process, database: Database, database_url: str) -> None:
    """Hints come late or not at all; streams stay open, and health says so."""
    keys = await bootstrap(database, PROJECT, {})
    reader, writer = await _open(process, keys["task-worker"], 0)
    with psycopg.connect(database_url.rpartition("/")[0] + "/postgres", autocommit=True) as connection:
        name = database_url.rpartition("/")[2]
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))

        async def degraded() -> bool:
            return bool((await _get(process, "/healthz"))["status"] == "degraded")

        await wait_until_async(degraded)
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    found = await asyncio.wait_for(reader.readuntil(b"event: wake"), 30)
    assert re.search(rb"event: wake", found)
    await wait_until_async(process.ready)
    writer.close()


async def test_a_stream_by_itself_tells_its_own_figures(process: Process, database: Database) -> None:
    keys = await bootstrap(database, PROJECT, {})
    async with httpx.AsyncClient(base_url=process.url) as client:
        assert (await client.get("/v1/metrics")).status_code == 401
        answer = await client.get("/v1/metrics", headers={"Authorization": f"Bearer {keys['metrics']}"})
    assert "interlock_stream_listening 1" in answer.text.splitlines()
    names = {line.split()[0] for line in answer.text.splitlines() if not line.startswith("#")}
    assert all(name.startswith("interlock_stream_") for name in names)


async def _open(process: Process, key: str, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await _request(process, key, f"/v1/stream?workerId=w&instanceId=i{number}&types={TYPE}@1")
    await reader.readuntil(b"event: ready\ndata: {}\n\n")
    return reader, writer


async def _request(process: Process, key: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
    return reader, writer


async def _get(process: Process, path: str) -> dict[str, object]:
    async with httpx.AsyncClient() as client:
        found: dict[str, object] = (await client.get(process.url + path)).json()
        return found
