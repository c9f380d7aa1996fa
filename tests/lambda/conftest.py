"""One build for all test runs of a tree, and the functions of it as processes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import built as builds
import sam_cli
from emulator import Emulator
from gateway import Answer, Headers, make_event, read_answer
from interlock_core import entry
from interlock_core.db import Database
from interlock_core.keys import bootstrap

PROJECT = "lambda"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def built() -> builds.Built:
    """The artifacts of template.yaml, built once for this state of the tree."""
    if "{}.{}".format(*sys.version_info) != sam_cli.BUILD_PYTHON:
        pytest.skip(f"the artifacts are built for Python {sam_cli.BUILD_PYTHON}, which this environment is not")
    return builds.build_once()


@pytest.fixture
def keys(database_url: str) -> dict[str, str]:
    """A project in this test's database with a key of each kind: `{kind: key}`."""

    async def make() -> dict[str, str]:
        database = Database(database_url)
        try:
            return await bootstrap(database, PROJECT, {})
        finally:
            await database.close()

    return asyncio.run(make())


@pytest.fixture
def open_function(built: builds.Built, database_url: str) -> Iterator[Callable[..., Emulator]]:
    """Starts a built function on this test's database, by its name in the template; all are ended after the test."""
    opened: list[Emulator] = []

    def open_one(logical_id: str, **settings: str) -> Emulator:
        emulator = built.open(logical_id, database_url, settings)
        opened.append(emulator)
        return emulator

    yield open_one
    for emulator in opened:
        emulator.stop()


@dataclass
class Environment:
    """A function as one execution environment has imported it: calling it is Lambda's call of its entry."""

    module: ModuleType

    def __call__(self, event: dict[str, Any]) -> Any:
        return self.module.handler(event, None)

    @property
    def database(self) -> Database | None:
        """The environment's own connections, once it has made any."""
        found: Database | None = self.module.app.state.database
        return found


@pytest.fixture
def load(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Environment]]:
    """Imports a function's app.py as a fresh execution environment does, on this test's database or another address of it."""
    loaded: list[Environment] = []
    # An entry's loop lives as long as its environment: all of this test share one, and it is ours to close.
    loop = asyncio.new_event_loop()
    monkeypatch.setattr(entry, "_loop", [loop])

    def load_one(name: str, url: str = database_url) -> Environment:
        monkeypatch.setenv("INTERLOCK_SERVER_DATABASE_URL", url)
        asyncio.set_event_loop(loop)  # the adapter would make one of its own
        spec = importlib.util.spec_from_file_location(f"environment_{name}", ROOT / "functions" / name / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        loaded.append(Environment(module))
        return loaded[-1]

    yield load_one
    for environment in loaded:
        if environment.database is not None:
            loop.run_until_complete(environment.database.close())
    loop.close()
    asyncio.set_event_loop(None)


@dataclass
class Caller:
    """Sends requests as the gateway would, as the bearer of one key."""

    key: str

    def send(
        self, function: Emulator, method: str, target: str, body: Any = None, *, route: str | None = None, headers: Headers = ()
    ) -> Answer:
        """One request through one function. A `body` that is no bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        sent = [
            ("authorization", f"Bearer {self.key}"),
            ("content-type", "application/json"),
            ("host", "interlock.test"),
            *headers,
        ]
        event = make_event(method, target, route=route or f"{method} {target}", headers=sent, body=raw)
        return read_answer(function.invoke(event))


@pytest.fixture
def anyone() -> Caller:
    return Caller("none")


@pytest.fixture
def producer(keys: dict[str, str]) -> Caller:
    return Caller(keys["task-producer"])


@pytest.fixture
def worker(keys: dict[str, str]) -> Caller:
    return Caller(keys["task-worker"])


@pytest.fixture
def toy_function(tmp_path: Path) -> Path:
    """The folder of a function that answers with its process id, and ends, hangs or fails when told to."""
    folder = tmp_path / "toy function"
    folder.mkdir()
    (folder / "app.py").write_text(
        "import os, time\n\n\ndef handler(event, context):\n"
        "    if event.get('exit'):\n        os._exit(3)\n"
        "    if event.get('hang'):\n        time.sleep(60)\n"
        "    if event.get('raise'):\n        raise ValueError('told to')\n"
        "    return {'pid': os.getpid(), 'echo': event.get('echo')}\n"
    )
    return folder
