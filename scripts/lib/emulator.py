"""A function under the Runtime Interface Emulator: one Lambda execution environment, without a container.

The child runs what it is given and nothing else: no site-packages (`-S`), only the function's folder, its layers and
the runtime client. So a dependency that the layer lacks is missing here too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import guard

START_SECONDS = 20.0
# Beyond the function's own timeout, after which the emulator should have ended it: then it is the emulator that hangs.
GRACE_SECONDS = 7.0
_INVOKE_PATH = "/2015-03-31/functions/function/invocations"


class EmulatorDied(RuntimeError):
    """The emulator ended or hung while it was starting or held an event; the text carries the end of its output.

    Whether the function acted on the event is not known. The next `invoke` starts a new environment.
    """


@dataclass
class Emulator:
    """One execution environment of one function. Starts at the first event; starts anew after it died.

    It takes one event at a time, as Lambda's do: a second one at once crashes the emulator, so callers queue at a lock.
    """

    function: str
    #: The emulator's program and the Python to run below it.
    binary: Path
    python: Path
    #: The unpacked function, and every folder that modules are looked for in, in order.
    task: Path
    places: Sequence[Path]
    environment: Mapping[str, str]
    handler: str = "app.handler"
    timeout_seconds: int = 28
    memory_mb: int = 512
    #: How often a new environment was started: more than one says that an earlier one died.
    starts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _child: guard.Guarded | None = None
    _port: int = 0
    _log: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id of the emulator, if one was started."""
        return self._child.pid if self._child else None

    def invoke(self, event: Mapping[str, Any]) -> Any:
        """Sends one event and returns what the handler returned, or Lambda's errorType/errorMessage object.

        The latter also for a function that exited or ran into its timeout. Raises EmulatorDied.
        """
        with self._lock:
            connection = self._connect()
            try:
                connection.request("POST", _INVOKE_PATH, json.dumps(event).encode())
                return _read_result(connection.getresponse().read())
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

    def abandon(self) -> None:
        """Ends it also while it holds an event, whose caller then hears that it died."""
        child = self._child
        if child is not None:
            child.stop()
        if self._lock.acquire(blocking=False):  # whoever holds it is that caller, and does the rest
            try:
                self._stop()
            finally:
                self._lock.release()

    def output(self) -> str:
        """Everything that the function and the emulator have printed since the last start."""
        if self._log is None:
            return ""
        log = self._log.fileno()
        # By its place: the child writes where this descriptor stands.
        return os.pread(log, os.fstat(log).st_size, 0).decode(errors="replace")

    def _connect(self) -> http.client.HTTPConnection:
        if self._child is not None and self._child.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self.timeout_seconds + GRACE_SECONDS)
            # A refused connection has carried nothing, so starting anew loses nothing (a killed child may not be reaped yet).
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect()
                return connection
        self._start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self.timeout_seconds + GRACE_SECONDS)
        connection.connect()
        return connection

    def _start(self) -> None:
        self._stop()
        self.starts += 1
        # A file without a name: nothing is left of it, however this process ends.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (it is closed with the child that writes it)
        port, api_port = _free_ports(2)
        line = [
            # Both addresses: the defaults listen on every interface, at fixed ports.
            *(str(self.binary), "--log-level", "error"),
            *("--runtime-interface-emulator-address", f"127.0.0.1:{port}", "--runtime-api-address", f"127.0.0.1:{api_port}"),
            *(str(self.python), "-S", "-m", "awslambdaric", self.handler),
        ]
        self._child = guard.start(line, output=self._log, cwd=self.task, environment=self._lambda_environment())
        self._port = port
        deadline = time.monotonic() + START_SECONDS
        while not _listens(port):
            if self._child.poll() is not None or time.monotonic() > deadline:
                told = self._tail()
                self._stop()
                raise EmulatorDied(f"{self.function} did not start\n{told}")
            time.sleep(0.01)

    def _lambda_environment(self) -> dict[str, str]:
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
            "LAMBDA_TASK_ROOT": str(self.task),
            "PYTHONPATH": os.pathsep.join(map(str, self.places)),
            # The artifact is read-only on Lambda: what it would like to write there must not be needed.
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.environment,
        }

    def _stop(self) -> None:
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _tail(self) -> str:
        return self.output()[-4000:]


def _read_result(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        # The one answer of the emulator's that is no JSON; Lambda's own is this object.
        if b"Task timed out" in body:
            return {"errorType": "Sandbox.Timedout", "errorMessage": body.decode().strip()}
        raise


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
