"""The whole service over the test's database, and clients with keys: one flat app in this process, or what `--host` names."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from interlock_core.db import Database
from interlock_core.keys import bootstrap
from interlock_core.settings import Settings
from service import build_app
from support.hosts import Hosts

PROJECT = "test"


@pytest.fixture
def settings(database_url: str) -> Settings:
    """The service's settings in these tests: the defaults. A module with other wishes has a fixture of this name."""
    return Settings(database_url=database_url)


@pytest.fixture
def app(database: Database, settings: Settings) -> Starlette:
    """Every function and the stream on `database`."""
    flat = build_app(settings)
    flat.state.database = database
    return flat


class Http(httpx.AsyncClient):
    """A client of the service, without a key; `producer`, `worker`, `operator`, `metrics`, `admin` are clients with one.

    With an `address` that is where the service is; without, it is `app`.
    """

    def __init__(self, app: Starlette, address: str | None = None) -> None:
        self._app = app
        self.keys: dict[str, str] = {}
        here = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        transport = here if address is None else httpx.AsyncHTTPTransport()
        super().__init__(transport=transport, base_url=address or "http://interlock.test", timeout=30)
        self._opened: list[httpx.AsyncClient] = []

    def use(self, key: str) -> httpx.AsyncClient:
        """A client that sends `key`."""
        headers = {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(transport=self._transport, base_url=self.base_url, headers=headers, timeout=30)
        self._opened.append(client)
        return client

    async def open(self) -> None:
        """Make the project and a key of each kind, and the clients that bear them."""
        self.keys = await bootstrap(self._app.state.database, PROJECT, {})
        self.producer = self.use(self.keys["task-producer"])
        self.worker = self.use(self.keys["task-worker"])
        self.operator = self.use(self.keys["operator"])
        self.metrics = self.use(self.keys["metrics"])
        self.admin = self.use(self.keys["admin"])

    async def make_keys(self, project: str) -> dict[str, str]:
        """Another project, with a key of each kind: `{kind: key}`."""
        return await bootstrap(self._app.state.database, project, {})

    async def make_key(self, kind: str, **fields: object) -> str:
        """A key of the test's project, narrowed or limited by `fields` (`types`, `pools`, `workerIds`, `expiresAt`, …)."""
        answer = await self.operator.post("/v1/keys", json={"name": f"test {kind}", "kind": kind, **fields})
        assert answer.status_code == 201, answer.text
        key: str = answer.json()["key"]
        return key


@pytest.fixture
async def http(app: Starlette, settings: Settings, database_url: str, hosts: Hosts | None) -> AsyncIterator[Http]:
    """A client of the service with a key of each kind in the project `test`."""
    address = None if hosts is None else hosts.serve(database_url, settings).url
    async with Http(app, address) as client:
        await client.open()
        yield client
        for opened in client._opened:
            await opened.aclose()
