"""A load generator that costs little itself: HTTP/1.1 over asyncio streams, kept alive, N clients in one process.

Only for addresses on this machine; every run is bounded by a number of requests.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit


class Client:
    """One kept-alive connection."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"Host: {self._host}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n"

    async def open(self) -> None:
        """Connects."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request; status and body."""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        lower = head.lower()
        at = lower.index(b"content-length:") + 15
        size = int(lower[at : lower.index(b"\r\n", at)])
        return int(head[9:12]), await self._reader.readexactly(size)

    def close(self) -> None:
        """Disconnects."""
        self._writer.close()


async def drive(
    url: str, key: str, clients: int, requests: Iterator[tuple[str, str, bytes]], expect: Callable[[int], bool]
) -> tuple[float, list[float]]:
    """Sends the requests over `clients` connections; seconds taken, and each request's own seconds."""
    times: list[float] = []

    async def work(client: Client) -> None:
        for method, path, body in requests:
            started = time.perf_counter()
            status, answer = await client.call(method, path, body)
            times.append(time.perf_counter() - started)
            if not expect(status):
                raise RuntimeError(f"{method} {path}: {status} {answer[:300]!r}")

    pool = [Client(url, key) for _ in range(clients)]
    await asyncio.gather(*(c.open() for c in pool))
    started = time.perf_counter()
    await asyncio.gather(*(work(c) for c in pool))
    taken = time.perf_counter() - started
    for client in pool:
        client.close()
    return taken, times


def submits(count: int, task_type: str, pad: int = 120) -> Iterator[tuple[str, str, bytes]]:
    """`count` single submits of small tasks, without idempotency keys."""
    for n in range(count):
        body = {"type": task_type, "schemaVersion": 1, "input": {"n": n, "pad": "x" * pad}}
        yield "POST", "/v1/tasks", json.dumps(body).encode()


def batches(count: int, size: int, task_type: str, pad: int = 120) -> Iterator[tuple[str, str, bytes]]:
    """`count` batch submits of `size` small tasks."""
    for n in range(count):
        tasks = [{"type": task_type, "schemaVersion": 1, "input": {"n": n * size + i, "pad": "x" * pad}} for i in range(size)]
        yield "POST", "/v1/tasks/batch", json.dumps({"tasks": tasks}).encode()
