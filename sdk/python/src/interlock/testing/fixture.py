"""The real service for pytest: `pytest_plugins = ["interlock.testing.fixture"]` in a conftest.py gives `interlock_service`.

With it, each test that passed is also asked what it drove (`interlock.testing.drive`): see `Drive.check_reached`. Needs pytest 8.

The service needs one of these, looked for in this order:

- `INTERLOCK_URL` and the keys that the tests use (`INTERLOCK_PRODUCER_KEY`, `INTERLOCK_WORKER_KEY`, …): a service that runs;
- `INTERLOCK_CHECKOUT`, or a folder at or above pytest's root folder: a checkout of Interlock, whose `scripts/dev` is started
  once per session, with a database of its own in a temporary folder (the first start prepares the checkout's environment).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import interlock.testing.driver as driven
from interlock.client import Client
from interlock.errors import ConfigurationError, InterlockError
from interlock.producer import TaskProducer
from interlock.settings import KEY_VARIABLES, KeyKind, given_checkout, given_service
from interlock.worker import TaskWorker

START_SECONDS = 180.0
"""For the first start of a checkout, which prepares its environment; later ones take a few."""


@dataclass(frozen=True)
class LocalService:
    """A running service. `environment` is what a program of yours needs to find it."""

    url: str
    keys: dict[str, str]
    folder: Path

    def __repr__(self) -> str:
        return f"LocalService(url={self.url!r})"

    @property
    def environment(self) -> dict[str, str]:
        """INTERLOCK_URL and the keys, for `monkeypatch.setenv` or a process."""
        keys = {KEY_VARIABLES[kind]: key for kind, key in self.keys.items() if kind in KEY_VARIABLES}
        return {"INTERLOCK_URL": self.url, **keys}

    def client(self, kind: KeyKind = "task-producer") -> Client:
        """A client with the service's key of this kind. The caller closes it."""
        return Client(self.url, self.keys.get(kind), kind=kind)

    def producer(self) -> TaskProducer:
        """A producer. The caller closes it."""
        return TaskProducer(client=self.client())

    def worker(self, worker_id: str, **options: Any) -> TaskWorker:
        """A worker with a spool of its own; `options` as of TaskWorker. The caller starts and drains it."""
        spool = tempfile.mkdtemp(prefix="spool-", dir=self.folder)
        return TaskWorker(worker_id=worker_id, url=self.url, key=self.keys.get("task-worker"), **{"spool": spool, **options})


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    """A test that passed fails where a run that it drove never came to what it asked for (`Drive.check_reached`)."""
    before, driven.watched = driven.watched, []
    try:
        result = yield
        for run in driven.watched:
            run.check_reached()
        return result
    finally:
        driven.watched = before


@pytest.fixture(scope="session")
def interlock_service(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    """The real service, one per session; the module's docstring says what it needs."""
    folder = tmp_path_factory.mktemp("interlock")
    if given := given_service():
        yield LocalService(*given, folder)
        return
    checkout = find_checkout(pytestconfig.rootpath)
    with (folder / "output").open("wb") as output:
        command = [sys.executable, "-m", "interlock.testing.beside", str(checkout / "scripts" / "dev")]
        process = subprocess.Popen(
            [*command, "--port", "0", "--data", str(folder / "data")], stdin=subprocess.PIPE, stdout=output, stderr=output
        )
    try:
        yield wait_ready(process, folder)
    finally:
        assert process.stdin is not None
        process.stdin.close()  # it ends by that, as it does if this process is killed
        process.wait(30)


def find_checkout(root: Path) -> Path:
    """The checkout to start. Raises ConfigurationError, saying what is needed, where there is none."""
    given = given_checkout()
    for folder in [given] if given is not None else [root, *root.parents]:
        if (folder / "scripts" / "dev").is_file() and (folder / "template.yaml").is_file():
            return folder
    raise ConfigurationError(
        f"interlock_service found no service: set INTERLOCK_URL and keys for one that runs, or INTERLOCK_CHECKOUT to a checkout "
        f"of Interlock, whose scripts/dev is started (looked {f'from {root} upwards' if given is None else f'at {given}'})"
    )


def wait_ready(process: subprocess.Popen[bytes], folder: Path) -> LocalService:
    """The service once it answers. Raises ConfigurationError with its output if it does not."""
    told = folder / "data" / "dev.json"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            info = json.loads(told.read_text(encoding="utf-8"))
            with Client(info["serviceUrl"], info["keys"]["task-producer"]) as client:
                client.request("GET", "/readyz", timeout=2.0)
            return LocalService(info["serviceUrl"], info["keys"], folder)
        except (OSError, ValueError, KeyError, InterlockError):
            time.sleep(0.1)
    output = (folder / "output").read_text(encoding="utf-8", errors="replace")
    raise ConfigurationError(f"the local service did not start; it said:\n{output[-4000:]}")
