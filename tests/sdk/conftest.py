"""A scripted HTTP server: the outside world at its worst, in place of a service. What the SDK asks of it is recorded."""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sdk.live import live, live_service  # noqa: F401 (fixtures)

KEY = "il_p_test_0123456789abcdefSECRET"


@dataclass
class Seen:
    """One request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """One answer. `drop` closes the connection instead: before anything is sent."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] | None = None
    drop: bool = False
    close_after: bool = False  # answered as if the connection stayed open, and closed


Script = Answer | Callable[[Seen], Answer]


class ScriptedServer:
    """Answers each (method, path) from its script, the last entry for ever; 404 for the rest."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._scripts: dict[tuple[str, str], deque[Script]] = defaultdict(deque)
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"scripted": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def answer(self, method: str, path: str, *script: Script) -> None:
        self._scripts[method, path].extend(script)

    def next_answer(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            script = self._scripts.get((seen.method, seen.path.partition("?")[0]))
            if not script:
                return Answer(404, {"code": "NOT_FOUND", "status": 404, "retryable": False})
            entry = script.popleft() if len(script) > 1 else script[0]
        return entry(seen) if callable(entry) else entry

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scripted: ScriptedServer
    timeout = 30

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.scripted.next_answer(Seen(self.command, self.path, headers, body))
        if answer.drop:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        data = (
            answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body if answer.body is not None else {}).encode()
        )
        kind = "application/json" if not isinstance(answer.body, bytes) else "text/html"
        self.send_response_only(answer.status)
        for name, value in {"content-type": kind, "content-length": str(len(data)), **(answer.headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        if answer.close_after:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = handle_one  # noqa: N815 (the names that http.server calls)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def scripted() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture
def make_scripted() -> Iterator[Callable[[], ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def make() -> ScriptedServer:
        servers.append(ScriptedServer())
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No profile, key or spool of the person who runs the tests."""
    for name in ("URL", "PRODUCER_KEY", "WORKER_KEY", "OPERATOR_KEY", "METRICS_KEY", "ADMIN_KEY", "PROFILE"):
        monkeypatch.delenv(f"INTERLOCK_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client between tries, noted instead of slept."""
    from interlock import client

    noted: list[float] = []
    here = threading.current_thread()
    pause = client.Client._pause

    def note(self: client.Client, seconds: float, stop: Callable[[], bool] | None) -> bool:
        if threading.current_thread() is not here:  # of a worker that an earlier test left to end by itself
            return pause(self, seconds, stop)
        noted.append(seconds)
        return not (stop is not None and stop())

    monkeypatch.setattr(client.Client, "_pause", note)
    return noted
