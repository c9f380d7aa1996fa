"""Stream processes as their container runs them: `functions/stream/serve.py`, on a test's database."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import guard
from support.waiting import wait_until

SERVE = Path(__file__).resolve().parents[2] / "functions" / "stream" / "serve.py"


class StreamProcess:
    """One of them. `url` is its address; its output is in `output`."""

    def __init__(self, database_url: str, output: Path, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = output
        with output.open("wb") as sink:
            self._child = guard.start(
                [sys.executable, str(SERVE), "--host", "127.0.0.1", "--port", str(self.port)],
                output=sink,
                environment={**os.environ, "INTERLOCK_SERVER_DATABASE_URL": database_url, **environment},
            )
        self.pid = self._child.pid

    def wait_ready(self) -> None:
        """Until it takes streams and hears hints."""

        def ready() -> bool:
            assert self._child.poll() is None, self.output.read_text()
            try:
                return httpx.get(f"{self.url}/readyz").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(ready, 40)

    def streams(self) -> int:
        """How many are open, as its health says."""
        count: int = httpx.get(f"{self.url}/healthz", timeout=30).json()["streams"]
        return count

    def memory(self) -> float:
        """Resident MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        """Open descriptors."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def stop(self) -> None:
        self._child.stop()


StartStream = Callable[[str], StreamProcess]


@pytest.fixture
def start_stream(tmp_path: Path) -> Iterator[StartStream]:
    """Start a stream process on a database; it is ready. All are stopped after the test."""
    started: list[StreamProcess] = []

    def start(database_url: str) -> StreamProcess:
        started.append(StreamProcess(database_url, tmp_path / f"stream-{len(started) + 1}.out"))
        started[-1].wait_ready()
        return started[-1]

    yield start
    for process in started:
        process.stop()
