"""The three hosts that the HTTP suite runs on, by `--host`: this process (`asgi`), `scripts/dev`, `scripts/lambda-local`.

On the latter two a test's client speaks to a service process, which serves all tests of one database one after the other;
nothing runs by the clock there, since tests move it and sweep by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from interlock_core.settings import PREFIX, Settings
from support.dev_service import DevService

ASGI, PROGRAMS = "asgi", ("dev", "lambda-local")


def chosen(config: pytest.Config) -> str:
    """The host of this run."""
    host: str = config.getoption("--host")
    return host


def environment_of(settings: Settings) -> dict[str, str]:
    """The variables that give a service process these settings; its database and its connections are its own."""
    mine = {field.name: getattr(settings, field.name) for field in fields(Settings)}
    for name in ("database_url", "pool_size"):
        del mine[name]
    return {
        PREFIX + name.upper(): str(value).lower() if value is True or value is False else str(value)
        for name, value in mine.items()
    }


class Hosts:
    """Service processes by the address of their database, started when first asked for."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._running: dict[str, DevService] = {}

    def knows(self, database_url: str) -> bool:
        """Whether there is a process for this database."""
        return database_url in self._running

    def serve(self, database_url: str, settings: Settings) -> DevService:
        """The process for this database."""
        if database_url not in self._running:
            folder = self._folder / f"node-{len(self._running) + 1}"
            arguments = ("--database-url", database_url, "--no-schedule")
            service = DevService(folder, *arguments, environment=environment_of(settings), program=self._program)
            service.start()
            self._running[database_url] = service
        return self._running[database_url]

    def stop(self) -> None:
        """Ends all of them."""
        for service in self._running.values():
            service.terminate()


@pytest.fixture(scope="session")
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts | None]:
    """The service processes of this run; None where the service is in this process."""
    if chosen(request.config) == ASGI:
        yield None
        return
    found = Hosts(chosen(request.config), tmp_path_factory.mktemp("hosts"))
    yield found
    found.stop()
