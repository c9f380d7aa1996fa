"""The real service as a process of its own: `scripts/dev`, or what `--host` names, to be called over HTTP, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import guard
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
BUILD_SECONDS = 400.0  # more, where the functions are built first


class DevService:
    """One `scripts/dev`, or `scripts/<program>`. `info` is its dev.json; its output is in `output`."""

    def __init__(self, data: Path, *arguments: str, environment: dict[str, str] | None = None, program: str = "dev") -> None:
        self.data = data
        self.program = program
        self.output = data.with_name(data.name + ".out")
        self.info: dict[str, Any] = {}
        self._arguments = arguments
        self._environment = environment or {}
        self._process: guard.Guarded | None = None
        self._port = 0

    @property
    def url(self) -> str:
        url: str = self.info["serviceUrl"]
        return url

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def key(self, kind: str) -> str:
        key: str = self.info["keys"][kind]
        return key

    def client(self, kind: str = "task-producer") -> httpx.Client:
        """A client that bears the service's key of this kind. The caller closes it."""
        # No TLS, so no certificates: reading the usual ones takes a twentieth of a second each time.
        headers = {"Authorization": f"Bearer {self.key(kind)}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, verify=False)

    def start(self) -> None:
        """Start the process and return when it answers. A restart takes the same port, as a service's address stays."""
        timeout = START_SECONDS if self.program == "dev" else BUILD_SECONDS
        info = self.data / "dev.json"
        before = info.stat().st_mtime_ns if info.exists() else 0
        with self.output.open("ab") as output:
            # Guarded, so that nothing is left of a test run that was killed.
            self._process = process = guard.start(
                [str(ROOT / "scripts" / self.program), "--port", str(self._port), "--data", str(self.data), *self._arguments],
                output=output,
                environment={**os.environ, **self._environment},
                stop_plan=((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)),
            )

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"scripts/{self.program} ended with {process.poll()}:\n{self.output.read_text()}")
            if not info.exists() or info.stat().st_mtime_ns == before:
                return False
            self.info = json.loads(info.read_text())
            try:
                return httpx.get(self.url + "/readyz", timeout=5, verify=False).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, timeout)
        self._port = httpx.URL(self.url).port or 0

    def kill(self) -> None:
        """`kill -9`: nothing is said, nothing is finished."""
        self._end(signal.SIGKILL)

    def terminate(self, timeout: float = 10.0) -> float:
        """SIGTERM; returns the seconds that the stop took."""
        return self._end(signal.SIGTERM, timeout)

    def restart(self) -> None:
        """Start again on the same data after an end."""
        self.start()

    def wait(self, timeout: float) -> int:
        """Wait for the process's own end and return its exit status."""
        assert self._process is not None
        return self._process.wait(timeout)

    def _end(self, number: int, timeout: float = 10.0) -> float:
        if self._process is None:
            return 0.0
        started = time.monotonic()
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.stop()
            raise AssertionError(f"scripts/{self.program} did not end within {timeout:g} s:\n{self.output.read_text()}") from None
        return time.monotonic() - started


StartService = Callable[..., DevService]


@pytest.fixture
def start_service(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartService]:
    """Start `scripts/dev`, or with `--host lambda-local` that, with these arguments on a folder of its own.

    The folder is `data`, or a new one; all are ended after the test.
    """
    started: list[DevService] = []
    program = "lambda-local" if request.config.getoption("--host") == "lambda-local" else "dev"

    def start(*arguments: str, data: Path | None = None, **environment: str) -> DevService:
        folder = data or tmp_path / f"node-{len(started) + 1}"
        service = DevService(folder, *arguments, environment=environment, program=program)
        started.append(service)
        service.start()
        return service

    yield start
    for service in reversed(started):
        service.terminate()


@pytest.fixture
def service(start_service: StartService, database_url: str) -> DevService:
    """A running service process on this test's database (`database_url`, `clock` move it): the quick one to start."""
    return start_service("--database-url", database_url)


@pytest.fixture
def service_with_database(start_service: StartService) -> DevService:
    """A running service process with a Postgres of its own in its data folder: the one to kill with its database."""
    return start_service()
