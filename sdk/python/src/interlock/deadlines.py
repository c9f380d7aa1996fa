"""The end of a call, kept by its socket: httpx bounds each wait for bytes, so an answer that drips would last for ever.

bound → the connections of an httpx.Client look at the deadline of the thread that reads or writes
until → the deadline, for the length of a block
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interlock.bodies import BadAnswer, Unconnected


class _End(threading.local):
    at: float | None = None


_end = _End()

PIECE = 64 * 1024
"""Bytes written at once: a reader that takes them slowly is met by the deadline between two pieces."""


@contextmanager
def until(deadline: float) -> Iterator[None]:
    """Whatever this thread reads or writes in the block breaks at the deadline (time.monotonic), as a BadAnswer."""
    before, _end.at = _end.at, deadline
    try:
        yield
    finally:
        _end.at = before


def bound(http: Any) -> None:
    """From here on the connections of an httpx.Client keep the deadlines."""
    # httpcore takes a backend of ours, but httpx has no way to hand it one; where its insides change, a test says so.
    for transport in (http._transport, *http._mounts.values()):  # noqa: SLF001
        pool = getattr(transport, "_pool", None)
        backend = getattr(pool, "_network_backend", None)
        if pool is not None and backend is not None:
            pool._network_backend = _Backend(backend)  # noqa: SLF001


def _left(timeout: float | None) -> float | None:
    """What is left of a time for one wait. Raises BadAnswer where nothing is."""
    if _end.at is None:
        return timeout
    left = _end.at - time.monotonic()
    if left <= 0:
        raise BadAnswer("the answer came too slowly")
    return left if timeout is None else min(timeout, left)


class _Backend:
    """Opens connections as the given one does."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **options: Any) -> _Stream:
        """As httpcore.NetworkBackend."""
        try:
            left = _left(timeout)
        except BadAnswer:
            raise Unconnected("the time was over before there was a connection") from None
        return _Stream(self._backend.connect_tcp(*args, timeout=left, **options))


class _Stream:
    """One connection, read and written as the given one is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """As httpcore.NetworkStream."""
        data: bytes = self._stream.read(max_bytes, timeout=_left(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """As httpcore.NetworkStream."""
        for start in range(0, len(buffer), PIECE):
            self._stream.write(buffer[start : start + PIECE], timeout=_left(timeout))

    def start_tls(self, *args: Any, timeout: float | None = None, **options: Any) -> _Stream:
        """As httpcore.NetworkStream."""
        return _Stream(self._stream.start_tls(*args, timeout=_left(timeout), **options))
