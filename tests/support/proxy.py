"""A TCP proxy on loopback that a test can make misbehave: lost answers, silence, cuts, delay.

It looks at HTTP/1.1 request lines (one request at a time on a connection, as clients send them); other
protocols pass as bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pytest


@dataclass
class Rule:
    """One planned loss. `done` is set when it has happened."""

    method: str
    path: str
    before: bool
    always: bool = False
    done: threading.Event = field(default_factory=threading.Event)

    def meets(self, method: str, path: str) -> bool:
        return method == self.method and (path == self.path or (self.path.endswith("*") and path.startswith(self.path[:-1])))

    def wait(self, timeout: float = 10.0) -> None:
        assert self.done.wait(timeout), f"no {self.method} {self.path} came within {timeout:g} s"


class Proxy:
    """Forwards `127.0.0.1:port` to `host:port`. Controlled from any thread; every control holds for open connections too."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._rules: list[Rule] = []
        self._delay = 0.0
        self._refusing = False
        self._flowing: asyncio.Event
        self._connections: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        #: Bytes that the system may hold of what the target sent and nobody took (it doubles them); None: as many as it likes.
        self.held_bytes: int | None = None
        #: Every request line that was forwarded, in order: ("POST", "/v1/tasks").
        self.requests: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def drop_next_answer(self, method: str, path: str) -> Rule:
        """Let the next such request through, and cut its connection when the answer comes: the caller learns nothing.

        `path` is compared without the query; a final `*` stands for any rest.
        """
        return self._plan(Rule(method, path, before=False))

    def drop_next_request(self, method: str, path: str) -> Rule:
        """Cut the connection of the next such request before anything of it was forwarded."""
        return self._plan(Rule(method, path, before=True))

    def refuse(self, method: str, path: str) -> Rule:
        """Cut every such request from now on, also what is open of them, until `restore`."""
        rule = self._plan(Rule(method, path, before=True, always=True))

        def run() -> None:
            for connection in list(self._connections):
                if connection.serves is not None and rule.meets(*connection.serves):
                    connection.abort()

        self._call(run)
        return rule

    def black_hole(self, on: bool = True) -> None:
        """Take connections and bytes and pass nothing on, either way; what was held back flows when it ends."""
        self._call(lambda: self._flowing.clear() if on else self._flowing.set())

    def cut(self, refuse: bool = True) -> None:
        """Reset every connection; new ones too, while `refuse`, until `restore`."""

        def run() -> None:
            self._refusing = refuse
            for connection in list(self._connections):
                connection.abort()

        self._call(run)

    def restore(self) -> None:
        """End a `cut`, a black hole, a delay and every refusal."""

        def run() -> None:
            self._rules = [rule for rule in self._rules if not rule.always]
            self._refusing = False
            self._delay = 0.0
            self._flowing.set()

        self._call(run)

    def delay(self, seconds: float) -> None:
        """Hold back every piece of an answer this long."""
        self._call(lambda: setattr(self, "_delay", seconds))

    def count(self, method: str, path: str) -> int:
        """How many such requests were forwarded."""
        return sum(1 for m, p in self.requests if m == method and p == path)

    def _plan(self, rule: Rule) -> Rule:
        self._call(lambda: self._rules.append(rule))
        return rule

    def _call(self, run: Callable[[], object]) -> None:
        async def inside() -> None:
            run()

        asyncio.run_coroutine_threadsafe(inside(), self._loop).result(10)

    def _match(self, connection: _Connection, head: bytes) -> Rule | None:
        """The rule that a request's first bytes meet. A rule is used once, unless it stands for always."""
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/"):
            return None
        method, path = connection.serves = (parts[0], parts[1].partition("?")[0])
        found = next((rule for rule in self._rules if rule.meets(method, path)), None)
        if found is not None and not found.always:
            self._rules.remove(found)
        if found is None or not found.before:
            self.requests.append((method, path))
        return found

    async def _open(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        up = socket.socket()
        up.setblocking(False)
        if self.held_bytes is not None:
            up.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.held_bytes)
        try:
            await asyncio.get_running_loop().sock_connect(up, self._target)
            up_reader, up_writer = await asyncio.open_connection(sock=up)
        except OSError:
            up.close()
            writer.transport.abort()
            return
        connection = _Connection(self, reader, writer, up_reader, up_writer)
        self._connections.add(connection)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # of the proxy's end: asyncio would tell each as an error
                await connection.run()
        finally:
            self._connections.discard(connection)
            connection.abort()


class _Connection:
    """One client's connection and ours to the target."""

    def __init__(
        self,
        proxy: Proxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._target = (up_reader, up_writer)
        self._new_request = True  # the next bytes from the client begin a request
        self._losing: Rule | None = None
        #: The latest request on it.
        self.serves: tuple[str, str] | None = None

    def abort(self) -> None:
        self._client[1].transport.abort()
        self._target[1].transport.abort()

    async def run(self) -> None:
        ways = [asyncio.ensure_future(self._send_requests()), asyncio.ensure_future(self._send_answers())]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)

    async def _send_requests(self) -> None:
        async for piece in self._read(self._client[0]):
            if self._new_request:
                self._new_request = False
                rule = self._proxy._match(self, piece)
                if rule is not None and rule.before:
                    rule.done.set()
                    return
                self._losing = rule
            self._target[1].write(piece)
            await self._target[1].drain()

    async def _send_answers(self) -> None:
        async for piece in self._read(self._target[0]):
            if self._losing is not None:
                self._losing.done.set()
                return
            self._new_request = True
            if self._proxy._delay:
                await asyncio.sleep(self._proxy._delay)
            await self._proxy._flowing.wait()
            self._client[1].write(piece)
            await self._client[1].drain()

    async def _read(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65536):
                await self._proxy._flowing.wait()
                yield piece


MakeProxy = Callable[[str], Proxy]


@pytest.fixture
def make_proxy() -> Iterator[MakeProxy]:
    """Put a proxy before an address (`http://127.0.0.1:7420`); closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(url: str) -> Proxy:
            host, _, port = url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")
            return stack.enter_context(Proxy(host, int(port)))

        yield make
