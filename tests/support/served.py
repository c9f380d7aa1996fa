"""The whole service on a socket, in a thread of this process: for clients that want a real server and no second process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import uvicorn

from interlock_core.db import Database
from interlock_core.keys import bootstrap
from interlock_core.settings import Settings
from service import build_app
from support.hosts import Hosts

PROJECT = "test"


@dataclass(frozen=True)
class Served:
    """A running service: its address, and a key of each kind."""

    url: str
    keys: dict[str, str]


class _Server(threading.Thread):
    def __init__(self, database_url: str, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._settings = settings
        self._database_url = database_url
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server: uvicorn.Server | None = None
        self.port = self._listener.getsockname()[1]
        self.keys: dict[str, str] = {}
        self.started = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        app = build_app(self._settings)
        database = app.state.database = Database(self._database_url, size=4)
        self.keys = await bootstrap(database, PROJECT, {})
        self._server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
        self.started.set()
        await self._server.serve([self._listener])
        await database.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self.join(20)
        self._listener.close()


@contextlib.contextmanager
def serve(database_url: str, settings: Settings) -> Iterator[Served]:
    """The functions on a socket, without the stream: nothing here holds a wait."""
    server = _Server(database_url, settings)
    server.start()
    try:
        assert server.started.wait(30)
        yield Served(f"http://127.0.0.1:{server.port}", server.keys)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def served(clone_database: Callable[[], str], hosts: Hosts | None) -> Iterator[Served]:
    """The service on a fresh database, for all tests of one file."""
    if hosts is not None:
        service = hosts.serve(clone_database(), Settings(offline_seconds=3600))
        yield Served(service.url, service.info["keys"])
        return
    with serve(clone_database(), Settings(offline_seconds=3600)) as found:
        yield found
