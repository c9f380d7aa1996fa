"""The service on a real socket, and workers' streams on it: in-process transports do not stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from interlock_core.db import Database
from interlock_core.keys import bootstrap
from interlock_core.settings import Settings
from service import build_app, close_streams, stream_lifespan
from support.waiting import wait_until_async

PROJECT = "test"
TYPE = "demo/hello"


class Server(uvicorn.Server):
    """uvicorn without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class Frame:
    event: str
    data: dict[str, Any]
    id: str = ""


class Stream:
    """A worker's open stream, read by a task of its own."""

    def __init__(self, response: httpx.Response, instance_id: str) -> None:
        self.response = response
        self.instance_id = instance_id
        self.frames: list[Frame] = []
        self.comments = 0
        self.ended = False
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        event = seq = ""
        with contextlib.suppress(httpx.TransportError):
            async for line in self.response.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "id":
                    seq = value
                elif name == "data":
                    self.frames.append(Frame(event, json.loads(value), seq))
                    seq = ""
                elif line.startswith(":"):
                    self.comments += 1
        self.ended = True

    def count(self, event: str) -> int:
        return sum(frame.event == event for frame in self.frames)

    async def until(self, event: str, count: int = 1, timeout: float = 10.0) -> Frame:
        """The `count`th frame of this event, when it has come."""
        await wait_until_async(lambda: self.count(event) >= count, timeout, every=0.005)
        return [frame for frame in self.frames if frame.event == event][count - 1]

    async def until_ended(self, timeout: float = 10.0) -> None:
        await wait_until_async(lambda: self.ended, timeout, every=0.005)

    async def close(self) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self.response.aclose()


class Watch(Stream):
    """The open stream of a task or of the project."""

    def kinds(self) -> list[str]:
        """The names of its events."""
        return [frame.event for frame in self.frames]

    def events(self) -> list[dict[str, Any]]:
        """The events of the journal."""
        return [frame.data for frame in self.frames if frame.id]


class Service:
    """One serving process, in this one: clients, streams, and claims by hand."""

    def __init__(self, app: Starlette, server: Server, url: str, keys: dict[str, str]) -> None:
        self.app = app
        self.server = server
        self.url = url
        self.keys = keys
        self.streams: list[Stream] = []
        self._clients: list[httpx.AsyncClient] = []
        self.producer = self.client("task-producer")
        self.worker = self.client("task-worker")
        self.operator = self.client("operator")

    @property
    def broadcaster(self) -> Any:
        return self.app.state.broadcaster

    def client(self, kind: str) -> httpx.AsyncClient:
        return self.client_of(self.keys[kind])

    def client_of(self, key: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        client = httpx.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, limits=limits, timeout=httpx.Timeout(10, read=30)
        )
        self._clients.append(client)
        return client

    async def request_stream(self, client: httpx.AsyncClient | None = None, **query: str) -> httpx.Response:
        """The answer to GET /v1/stream with this query, unread."""
        asked = {"workerId": "w", "instanceId": str(uuid.uuid4()), "pool": "default", "types": f"{TYPE}@1"} | query
        client = client or self.worker
        request = client.build_request("GET", "/v1/stream", params={name: value for name, value in asked.items() if value})
        return await client.send(request, stream=True)

    async def stream(self, client: httpx.AsyncClient | None = None, **query: str) -> Stream:
        """An open stream that has said `ready`."""
        query.setdefault("instanceId", str(uuid.uuid4()))
        response = await self.request_stream(client, **query)
        assert response.status_code == 200, await response.aread()
        stream = Stream(response, query["instanceId"])
        self.streams.append(stream)
        await stream.until("ready")
        return stream

    async def watch(
        self, task_id: str, *, client: httpx.AsyncClient | None = None, last_event_id: str | None = None, **query: str
    ) -> Watch:
        """The open stream of a task."""
        headers = {} if last_event_id is None else {"last-event-id": last_event_id}
        return await self.read_along(f"/v1/tasks/{task_id}/stream", client, headers, **query)

    async def read_along(
        self, path: str, client: httpx.AsyncClient | None = None, headers: dict[str, str] | None = None, **query: str
    ) -> Watch:
        """Any open stream."""
        client = client or self.producer
        response = await client.send(client.build_request("GET", path, params=query, headers=headers), stream=True)
        assert response.status_code == 200, await response.aread()
        watch = Watch(response, "")
        self.streams.append(watch)
        return watch

    def open_and_never_read(self, path: str, kind: str = "task-producer") -> socket.socket:
        """A request for a stream by somebody who takes nothing of the answer."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        host, _, port = self.url.partition("://")[2].partition(":")
        raw.connect((host, int(port)))
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.keys[kind]}\r\n\r\n".encode())
        return raw

    async def submit(self, **fields: Any) -> dict[str, Any]:
        answer = await self.producer.post("/v1/tasks", json={"type": TYPE, "schemaVersion": 1, "input": {}, **fields})
        assert answer.status_code == 201, answer.text
        task: dict[str, Any] = answer.json()
        return task

    async def claim(self, instance_id: str, slots: int = 10, worker_id: str = "w", task_type: str = TYPE) -> list[dict[str, Any]]:
        """The attempts that a claim was given."""
        body = {
            "workerId": worker_id,
            "instanceId": instance_id,
            "claimId": str(uuid.uuid4()),
            "pool": "default",
            "slots": slots,
            "handlers": [{"type": task_type, "schemaVersion": 1, "effectSafety": "pure"}],
        }
        answer = await self.worker.post("/v1/claims", json=body)
        assert answer.status_code == 200, answer.text
        attempts: list[dict[str, Any]] = answer.json()["attempts"]
        return attempts

    async def complete(self, attempt: dict[str, Any], outcome: str = "succeeded", **fields: Any) -> dict[str, Any]:
        item = {name: attempt[name] for name in ("taskId", "attemptId", "fence", "leaseToken")} | {"outcome": outcome, **fields}
        answer = await self.worker.post("/v1/attempts/complete", json={"completions": [item]})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["completions"][0]
        return found

    async def listening(self) -> None:
        """Wait until hints are heard."""
        await wait_until_async(lambda: self.broadcaster.listener.listening)

    async def close(self) -> None:
        for stream in self.streams:
            await stream.close()
        for client in self._clients:
            await client.aclose()


Serve = Callable[..., Awaitable[Service]]


@pytest.fixture
async def serve(database: Database) -> AsyncIterator[Serve]:
    """Start a service on the test's database; more than one share it. `url`: its way to it; `settings` are the service's."""
    async with contextlib.AsyncExitStack() as stack:
        keys = await bootstrap(database, PROJECT, {})

        async def start(
            listener: Callable[[socket.socket], None] = lambda _: None,
            stall_seconds: float | None = None,
            url: str | None = None,
            **settings: Any,
        ) -> Service:
            app = build_app(Settings(database_url=url or database.address.find_now(), function_wait_seconds=20, **settings))
            app.state.database = database
            if url is not None:
                app.state.database = Database(url, size=4)
                stack.push_async_callback(app.state.database.close)
            if stall_seconds is not None:
                app.state.stall_seconds = stall_seconds
            await stack.enter_async_context(stream_lifespan(app))
            bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
            listener(bound)
            config = uvicorn.Config(
                app,
                http="httptools",
                lifespan="off",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=5,
                timeout_keep_alive=60,
            )
            server = Server(config)
            serving = asyncio.create_task(server.serve(sockets=[bound]))

            async def end() -> None:
                close_streams(app)
                server.should_exit = True
                await serving

            stack.push_async_callback(end)
            await wait_until_async(lambda: server.started)
            service = Service(app, server, f"http://127.0.0.1:{bound.getsockname()[1]}", keys)
            stack.push_async_callback(service.close)
            await service.listening()
            return service

        yield start


@pytest.fixture
async def service(serve: Serve) -> Service:
    """One service that hears hints."""
    return await serve()
