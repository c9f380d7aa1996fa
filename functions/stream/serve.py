"""The stream as a process of its own: `python serve.py [--host H] [--port N]`, what the container runs.

SIGTERM ends every stream first, then the server, then the broadcaster; clients find another process or come back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app import app, close
from listener import tune

#: Streams were told to end before; this is for calls in flight.
GRACE_SECONDS = 3

#: Bytes of one stream that wait in this process for a reader who takes nothing, before its stream waits too. The usual 64 KiB
#: would be 640 MiB for ten thousand of them; the kernel holds as much again, bounded by the listener.
WAITING_BYTES = 8 * 1024


class Protocol(HttpToolsProtocol):
    """One connection, which holds little of what its reader does not take."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bounds the transport's buffer."""
        transport.set_write_buffer_limits(high=WAITING_BYTES)
        super().connection_made(transport)


class Server(uvicorn.Server):
    """uvicorn, which waits for responses to end before it tells the application to stop: streams are ended before."""

    def __init__(self, application: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                http=Protocol,
                loop="uvloop",
                lifespan="on",
                access_log=False,
                log_config=None,
                timeout_graceful_shutdown=GRACE_SECONDS,
                server_header=False,
                backlog=4096,
            )
        )
        self._application = application

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A stop that was asked for is no failure: uvicorn would raise the signal again when it has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, then everything."""
        close(self._application)
        await super().shutdown(sockets)


def main() -> None:
    """Serves until a signal says to stop."""
    parser = argparse.ArgumentParser(prog="stream")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 (a container's port is opened by its host)
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    with socket.create_server((arguments.host, arguments.port), backlog=4096) as listener:
        tune(listener)
        Server(app).run(sockets=[listener])


if __name__ == "__main__":
    main()
