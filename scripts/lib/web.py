"""The one port of the local host: its socket, and uvicorn on it for as long as it is wanted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp

from postgres import Postgres
from service import tune_listener

BACKLOG = 2048
#: Requests in flight get this long after a SIGTERM (streams are ended before); with the database's own stop it stays below 10 s.
GRACE_SECONDS = 2


class PortTaken(Exception):
    """The wanted port is not free."""


class DatabaseEnded(Exception):
    """The embedded server ended while it was in use."""


@contextlib.contextmanager
def listen(port: int) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(
                f"port {port} cannot be used ({error.strerror}); choose another with --port, or 0 for any free one"
            ) from error
        listener.listen(BACKLOG)
        tune_listener(listener)
        yield listener


class Web(uvicorn.Server):
    """uvicorn within a block: it serves `app` on `listener` from its begin and has ended at its end.

    `close` is called first at the end: what would keep the server waiting is told to stop there. The signals are left to
    us: uvicorn would raise them again when it has ended, before the database is stopped.
    """

    def __init__(self, app: ASGIApp, listener: socket.socket, close: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                timeout_graceful_shutdown=GRACE_SECONDS,
                timeout_keep_alive=75,  # longer than workers pause between two calls: a new connection costs them a round trip
                server_header=False,
                backlog=BACKLOG,
            )
        )
        self._close = close
        self._listener = listener
        self._told = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve(sockets=[self._listener]))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()
        self.should_exit = True
        await self._serving

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        """Stop politely; called again, at once."""
        self.force_exit = self._told.is_set()
        self._told.set()

    async def wait(self, server: Postgres | None) -> None:
        """Return when it was told to stop. Raises `DatabaseEnded` when our own database server has ended.

        Nothing could be answered then, and a new start recovers it.
        """
        told = asyncio.create_task(self._told.wait())
        while not (told.done() or self._serving.done()):
            await asyncio.wait((told, self._serving), timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
            if server is not None and server.poll() is not None:
                log_file = server.folder / "postgres.log"
                raise DatabaseEnded(f"the database server has ended by itself (see {log_file}); start again to recover")
