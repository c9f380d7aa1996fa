"""Worker processes on the SDK (`worker_program`), to be watched by the files they leave, killed and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import guard
from support.waiting import wait_until

PROGRAM = Path(__file__).with_name("worker_program.py")


class WorkerProcess:
    """One process of the worker ID `chaos`. Its folder, spool included, stays over restarts."""

    def __init__(self, folder: Path, url: str, key: str, slots: int) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self._command = [sys.executable, str(PROGRAM), str(folder), str(slots)]
        self._environment = {**os.environ, "INTERLOCK_URL": url, "INTERLOCK_WORKER_KEY": key}
        self._process: guard.Guarded | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def start(self) -> None:
        with (self.folder / "output").open("ab") as output:
            self._process = guard.start(self._command, output=output, environment=self._environment)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        return self._end(signal.SIGTERM)

    def wait_for_start(self, task_id: str, timeout: float = 20) -> None:
        """Until the held handler of this task runs here."""
        wait_until((self.folder / f"hold-{task_id}").exists, timeout)

    def release(self, task_id: str) -> None:
        """Let the held handler of this task return."""
        (self.folder / f"release-{task_id}").touch()

    def spooled(self) -> list[Path]:
        """The outcomes that the service has not accepted yet."""
        return sorted(self.spool.glob("*.json"))

    def runs(self) -> Counter[str]:
        """How often each task ran here."""
        path = self.folder / "ran.log"
        return Counter(line.split()[1] for line in path.read_text().splitlines()) if path.exists() else Counter()

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        return process.wait(20)


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker process against an address with a worker key; all are killed after the test."""
    started: list[WorkerProcess] = []

    def start(url: str, key: str, *, slots: int = 1) -> WorkerProcess:
        worker = WorkerProcess(tmp_path / f"worker-{len(started) + 1}", url, key, slots)
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.kill()
