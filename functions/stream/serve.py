"""The stream as a process of its own: `python serve.py [--host H] [--port N]`, what the container runs.

SIGTERM ends every stream first, then the server, then the broadcaster; clients find another process or come back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
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

#: Of a connection on which nothing is asked: longer than the load balancer keeps it (template.yaml, 120 s). Were it closed from
#: here first, a call that the balancer sends at that moment would be answered with 502.
IDLE_CONNECTION_SECONDS = 150

#: Bytes of one stream that wait in this process for a reader who takes nothing, before its stream waits too. The usual 64 KiB
#: would be 640 MiB for ten thousand of them; the kernel holds as much again, bounded by the listener.
WAITING_BYTES = 8 * 1024


#: A whole collection of ten thousand streams' objects takes half a second, in which nobody is told anything; and it finds nothing,
#: since what a stream leaves has no cycles. So what is open is taken out of it, each time after so many connections …
FROZEN_CONNECTIONS = 500
#: … and put back for one whole collection after so many times: what else was garbage meanwhile goes then.
FREEZES = 200
#: A hint to everyone makes a few objects for each, which live for a moment: the young are looked through less often.
YOUNG_OBJECTS = 20_000


class Protocol(HttpToolsProtocol):
    """One connection, which holds little of what its reader does not take."""

    made = 0  # of all of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bounds the transport's buffer."""
        Protocol.made += 1
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
                proxy_headers=False,  # nobody reads them, and each stream would carry the layer that does
                log_config=None,
                timeout_graceful_shutdown=GRACE_SECONDS,
                timeout_keep_alive=IDLE_CONNECTION_SECONDS,
                server_header=False,
                backlog=4096,
            )
        )
        self._application = application
        self._frozen_at = 0  # connections made
        self._freezes = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A stop that was asked for is no failure: uvicorn would raise the signal again when it has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: what has been opened is kept out of the garbage collector's way."""
        if counter == 0 or Protocol.made - self._frozen_at >= FROZEN_CONNECTIONS:
            self._frozen_at = Protocol.made
            self._freezes += 1
            if self._freezes % FREEZES == 0:
                gc.unfreeze()
                gc.collect()
            gc.freeze()
        return await super().on_tick(counter)

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
        gc.set_threshold(YOUNG_OBJECTS)
        Server(app).run(sockets=[listener])


if __name__ == "__main__":
    main()
