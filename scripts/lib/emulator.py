"""A built function under the Runtime Interface Emulator: one Lambda execution environment, without a container.

The child runs the built artifact and nothing else: no site-packages (`-S`), only the function's folder, its layers and
the runtime client, in the order Lambda searches them. So a dependency that the layer lacks is missing here too.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import guard

START_SECONDS = 20.0
# Sent before the death of a function that hangs is assumed: above the longest timeout of an HTTP function.
INVOKE_SECONDS = 35.0
_INVOKE_PATH = "/2015-03-31/functions/function/invocations"
# What Lambda's own Python image carries in /var/runtime, of which a function needs no copy.
_RUNTIME_DISTRIBUTIONS = ("awslambdaric", "simplejson", "snapshot-restore-py")


class EmulatorDied(RuntimeError):
    """The emulator ended or hung while it was starting or held an event; the text carries the end of its output.

    Whether the function acted on the event is not known. The next `invoke` starts a new environment.
    """


@dataclass(frozen=True)
class Built:
    """Where a build has put things: what every function of it runs with."""

    folder: Path
    binary: Path
    python: Path
    runtime_client: Path

    def artifact(self, logical_id: str) -> Path:
        """The folder of one function, or of one layer, as it would be unpacked on Lambda."""
        return self.folder / logical_id


def collect_runtime_client(target: Path) -> Path:
    """Copies awslambdaric and what it needs from this environment into `target`, alone, and returns it."""
    for name in _RUNTIME_DISTRIBUTIONS:
        for file in importlib.metadata.distribution(name).files or []:
            if ".." not in file.parts:
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), place)
    return target


def base_python() -> Path:
    """The interpreter below this environment. The environment's own would bring its packages with it."""
    return Path(getattr(sys, "_base_executable", sys.executable))


@dataclass
class Emulator:
    """One execution environment of one function. Starts at the first event; starts anew after it died.

    It takes one event at a time, as Lambda's do: a second one at once crashes the emulator, so callers queue at a lock.
    """

    built: Built
    function: str
    layers: Sequence[str]
    environment: Mapping[str, str]
    handler: str = "app.handler"
    timeout_seconds: int = 28
    memory_mb: int = 512
    #: How often a new environment was started: more than one says that an earlier one died.
    starts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: guard.Guarded | None = None
    _port: int = 0
    _log: Path | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id of the emulator, if one was started."""
        return self._child.pid if self._child else None

    def invoke(self, event: Mapping[str, Any]) -> Any:
        """Sends one event and returns what the handler returned (or Lambda's errorType/errorMessage object).

        Raises EmulatorDied.
        """
        with self._lock:
            connection = self._connect()
            try:
                connection.request("POST", _INVOKE_PATH, json.dumps(event).encode())
                return json.loads(connection.getresponse().read())
            except (OSError, http.client.HTTPException, ValueError) as problem:
                told = self._tail()
                self._stop()
                raise EmulatorDied(f"{self.function}: {problem!r} while it held an event\n{told}") from problem
            finally:
                connection.close()

    def stop(self) -> None:
        """Ends the emulator and the function's process. A later `invoke` starts them anew."""
        with self._lock:
            self._stop()

    def output(self) -> str:
        """Everything that the function and the emulator have printed since the last start."""
        return self._log.read_text(errors="replace") if self._log else ""

    def _connect(self) -> http.client.HTTPConnection:
        if self._child is not None and self._child.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=INVOKE_SECONDS)
            # A refused connection has carried nothing, so starting anew loses nothing (a killed child may not be reaped yet).
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect()
                return connection
        self._start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=INVOKE_SECONDS)
        connection.connect()
        return connection

    def _start(self) -> None:
        self._stop()
        self.starts += 1
        descriptor, name = tempfile.mkstemp(prefix=f"{self.function}-", suffix=".log")
        self._log = Path(name)
        port, api_port = _free_ports(2)
        task = self.built.artifact(self.function)
        places = [task, *(self.built.artifact(layer) / "python" for layer in self.layers), self.built.runtime_client]
        line = [
            # Both addresses: the defaults listen on every interface, at fixed ports.
            *(str(self.built.binary), "--log-level", "error"),
            *("--runtime-interface-emulator-address", f"127.0.0.1:{port}", "--runtime-api-address", f"127.0.0.1:{api_port}"),
            *(str(self.built.python), "-S", "-m", "awslambdaric", self.handler),
        ]
        with os.fdopen(descriptor, "wb") as log:
            self._child = guard.start(
                line, output=log, cwd=task, environment=self._lambda_environment(task, os.pathsep.join(map(str, places)))
            )
        self._port = port
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if self._child.poll() is not None or time.monotonic() > deadline:
                told = self._tail()
                self._stop()
                raise EmulatorDied(f"{self.function} did not start\n{told}")
            time.sleep(0.01)

    def _lambda_environment(self, task: Path, python_path: str) -> dict[str, str]:
        return {
            "HOME": tempfile.gettempdir(),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TZ": ":UTC",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_LAMBDA_FUNCTION_NAME": self.function,
            "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
            "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(self.memory_mb),
            "AWS_LAMBDA_FUNCTION_TIMEOUT": str(self.timeout_seconds),
            "LAMBDA_TASK_ROOT": str(task),
            "PYTHONPATH": python_path,
            # The artifact is read-only on Lambda: what it would like to write there must not be needed.
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environment,
        }

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def _tail(self) -> str:
        return self.output()[-4000:]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_ports(count: int) -> Iterator[int]:
    # All are held until all are known, so that they differ.
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return iter(ports)
