"""Many readers of workers' streams in one process that costs little: raw HTTP/1.1, no parsing beyond a search for frames.

usage: readers.py URL KEY COUNT TYPES WORKER_ID [--deaf]

`--deaf` opens the streams and never reads a byte of them. A line on standard input is a question: `reset` forgets the wakes that
were counted, anything else changes nothing. Each is answered by one line of JSON: `open`, `ready`, `ended`, `woken` (streams that
heard a wake since the last reset), `wakes`, `first` and `last` (their monotonic instants, comparable between processes of one
machine). The process ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

#: Streams that are being opened at one time.
AT_ONCE = 100
#: Of a deaf reader's socket (the kernel doubles it): what it does not read stays at the sender soon.
DEAF_BUFFER = 2048


class Tally:
    """What the readers of this process saw."""

    def __init__(self) -> None:
        self.open = self.ready = self.ended = 0
        self.reset()

    def reset(self) -> None:
        """Forgets the wakes."""
        self.wakes = 0
        self.woken: set[int] = set()
        self.first = self.last = 0.0

    def answer(self) -> dict[str, Any]:
        """The line of JSON."""
        seen = {"wakes": self.wakes, "woken": len(self.woken), "first": self.first, "last": self.last}
        return {"open": self.open, "ready": self.ready, "ended": self.ended, **seen}


class Reader(asyncio.Protocol):
    """One stream that is read."""

    def __init__(self, tally: Tally, request: bytes) -> None:
        self._tally = tally
        self._request = request
        self.is_ready = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._tally.open += 1
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if b"event: wake" in data:
            tally = self._tally
            tally.last = time.monotonic()
            tally.first = tally.first or tally.last
            tally.wakes += data.count(b"event: wake")
            tally.woken.add(id(self))
        if b"event: ready" in data:
            self._tally.ready += 1
            if not self.is_ready.done():
                self.is_ready.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._tally.open -= 1
        self._tally.ended += 1
        if not self.is_ready.done():
            self.is_ready.set_result(None)


class Readers:
    """A process of readers, seen from the one that started it. `ask` what they saw; `close` ends it."""

    def __init__(self, url: str, key: str, count: int, types: str, worker_id: str, *, deaf: bool = False) -> None:
        command = [sys.executable, str(Path(__file__)), url, key, str(count), types, worker_id, *(["--deaf"] if deaf else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: str = "") -> dict[str, Any]:
        """What they have seen; the first answer comes when all streams were asked for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End the process, and so its streams."""
        self._process.communicate(timeout=30)


async def open_deaf(host: str, port: int, request: bytes) -> socket.socket:
    """A stream of which nothing is ever read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, DEAF_BUFFER)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (host, port))
    await asyncio.get_running_loop().sock_sendall(raw, request)
    return raw


async def main() -> None:
    url, key, count, types, worker_id, *deaf = sys.argv[1:]
    host, port = urlsplit(url).hostname or "127.0.0.1", urlsplit(url).port or 80
    tally, loop, kept, gate = Tally(), asyncio.get_running_loop(), [], asyncio.Semaphore(AT_ONCE)

    async def open_one(number: int) -> None:
        path = f"/v1/stream?workerId={worker_id}&instanceId={worker_id}-{number}&types={types}"
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
        async with gate:
            if deaf:
                kept.append(await open_deaf(host, port, request))
                return
            _, reader = await loop.create_connection(lambda: Reader(tally, request), host, port)
            await reader.is_ready

    await asyncio.gather(*(open_one(number) for number in range(int(count))))
    questions = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    while question := await questions.readline():
        if question.strip() == b"reset":
            tally.reset()
        print(json.dumps(tally.answer() | ({"open": len(kept)} if deaf else {})), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
