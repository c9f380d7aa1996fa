"""The real service for the SDK's tests: one process for all of them, a task type of its own for each."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from interlock import Client, Task, TaskProducer, TaskWorker, starts
from support.dev_service import DevService
from support.proxy import MakeProxy, Proxy
from support.waiting import wait_until

LEASE = 2.0
_numbers = itertools.count(1)


class WorkerProcess:
    """A worker in a process of its own, to be signalled and killed. `program` defines `worker` and gets `TYPE`, `LOG`."""

    def __init__(self, live: Live, program: str, folder: Path, **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.log = folder / "log"
        self.output = folder / "output"
        self.log.touch()
        script = folder / "worker.py"
        head = f"TYPE = {live.type!r}\nLOG = {str(self.log)!r}\n" + textwrap.dedent(PRELUDE)
        script.write_text(head + textwrap.dedent(program) + "\nworker.run()\nnote('ended')\n")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **live.environment, **environment},
            )  # fmt: skip

    def notes(self) -> list[str]:
        return self.log.read_text().split()

    def wait_note(self, note: str, count: int = 1, timeout: float = 20.0) -> None:
        try:
            wait_until(lambda: self.notes().count(note) >= count, timeout)
        except TimeoutError:
            raise AssertionError(f"no note {note!r}; notes {self.notes()}; output:\n{self.output.read_text()}") from None

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 20.0) -> int:
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


PRELUDE = """
import asyncio, logging, os, sys, time
from interlock import *
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
def note(text):
    with open(LOG, "a") as file:
        file.write(text + "\\n")
"""


class Live:
    """One test's view of the service: a type of its own, workers and processes that end with the test."""

    def __init__(self, service: DevService, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.type = f"test/t{next(_numbers)}-{os.getpid()}"
        self.url = service.url
        self._workers: list[TaskWorker] = []
        self._processes: list[WorkerProcess] = []
        self._clients: list[Client] = []
        self.producer = TaskProducer(client=self.client("task-producer"))

    @property
    def environment(self) -> dict[str, str]:
        return {"INTERLOCK_URL": self.url, "INTERLOCK_WORKER_KEY": self.service.key("task-worker"), "PYTHONUNBUFFERED": "1"}

    def client(self, kind: Any) -> Client:
        client = Client(self.service.url, self.service.key(kind), kind=kind)
        self._clients.append(client)
        return client

    def worker(self, handler: Callable[..., Any] | None = None, *, through: Proxy | None = None, **options: Any) -> TaskWorker:
        """A worker that serves this test's type with `handler`; not started. Options of the handler are passed on."""
        names = ("retry", "timeout", "lease", "start_deadline", "on_lease_doubt", "effect_safety")
        own = {name: options.pop(name) for name in names if name in options}
        fields: dict[str, Any] = {
            "worker_id": self.type.replace("/", "-"), "spool": self.folder / f"spool-{len(self._workers)}", "drain_timeout": 10,
            "url": through.url if through else self.url, "key": self.service.key("task-worker"), **options,
        }  # fmt: skip
        worker = TaskWorker(**fields)
        if handler is not None:
            worker.handle(self.type, 1, **{"effect_safety": "idempotent", "lease": LEASE, **own})(handler)
        self._workers.append(worker)
        return worker

    def start(self, handler: Callable[..., Any], **options: Any) -> TaskWorker:
        worker = self.worker(handler, **options)
        worker.start()
        return worker

    def process(self, program: str, **environment: str) -> WorkerProcess:
        found = WorkerProcess(self, program, self.folder / f"process-{len(self._processes)}", **environment)
        self._processes.append(found)
        return found

    def submit(self, input: Any = None, **options: Any) -> str:
        options.setdefault("lease", LEASE)
        return self.producer.submit(self.type, 1, input, **options).id

    def wait(self, task_id: str, timeout: float = 20.0) -> Task:
        return self.producer.wait(task_id, timeout)

    def wait_status(self, task_id: str, status: str, timeout: float = 20.0) -> Task:
        def seen() -> Task | None:
            task = self.producer.get(task_id)
            return task if task.status == status else None

        found = wait_until(seen, timeout)
        assert found is not None
        return found

    def kinds(self, task_id: str) -> list[str]:
        """The kinds of the task's events, in order."""
        return [event.kind for event in self.producer.journal(task_id)]

    def spooled(self) -> list[Path]:
        return [path for path in self.folder.glob("spool-*/**/*") if path.is_file() and path.name not in ("lock", starts.NAME)]

    def close(self) -> None:
        for process in self._processes:
            if process.process.poll() is None:
                process.kill()
        for worker in self._workers:
            worker.drain(timeout=0)
        for client in self._clients:
            client.close()


@pytest.fixture(scope="session")
def live_service(clone_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevService]:
    environment = {"INTERLOCK_SERVER_MIN_LEASE_SECONDS": "1"}
    service = DevService(tmp_path_factory.mktemp("sdk") / "node", "--database-url", clone_database(), environment=environment)
    service.start()
    yield service
    service.terminate()


@pytest.fixture
def live(live_service: DevService, make_proxy: MakeProxy, tmp_path: Path) -> Iterator[Live]:
    """Ends before the test's proxies do, so that its workers can still say goodbye."""
    found = Live(live_service, tmp_path)
    yield found
    found.close()
