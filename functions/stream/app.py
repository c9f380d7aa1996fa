"""The worker stream (protocol.md §9): hints over server-sent events. Runs in a container, or inside a local host.

A host serves within `lifespan(app)`, and calls `close(app)` first of all when it is told to stop: servers wait for
responses to end before they shut down, and a stream ends only when it is told to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from broadcaster import Broadcaster
from connection import READY, REVOKED, Connection
from interlock_core.errors import Unavailable
from interlock_core.http import Answer, Call, api, endpoint, open_database
from interlock_core.testpoint import testpoint
from interlock_core.wire.streams import subscription

log = logging.getLogger("interlock.stream")

#: A reader that takes nothing for so long is closed: it is gone, or its worker is stuck and finds work by polling.
STALL_SECONDS = 30.0
#: Streams of one process; descriptors and memory end somewhere, and a refusal can be answered.
MAX_STREAMS = 18_000

HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no", "x-content-type-options": "nosniff"}


class EventStream(Response):
    """One open stream. Made by hand: a task for the response, one that sees the reader go, and the connection's sets."""

    media_type = "text/event-stream"

    def __init__(self, broadcaster: Broadcaster, connection: Connection, stall_seconds: float) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(HEADERS)
        self._broadcaster = broadcaster
        self._connection = connection
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (the interface of every response)
        """Serves the stream until its reader goes, stalls, or it is ended."""
        connection = self._connection
        await testpoint("stream.join")
        # Joined before it is told that it is: whatever happens from here on is heard.
        self._broadcaster.join(connection)
        gone = asyncio.get_running_loop().create_task(_until_gone(receive, connection))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": READY, "more_body": True})
            while frames := await connection.next():
                async with asyncio.timeout(self._stall_seconds):
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
            if not gone.done():
                # A host that stops does not wait for those who do not read.
                async with asyncio.timeout(1.0 if self._broadcaster.closing else self._stall_seconds):
                    await send({"type": "http.response.body", "body": REVOKED if connection.revoked else b"", "more_body": False})
        except TimeoutError:
            log.info("a stream of worker %s took nothing for %g s and is closed", connection.worker_id, self._stall_seconds)
            self._broadcaster.leave(connection)
            # What the socket holds can no longer be flushed, so closing it politely would pin it: the kernel ends it, by the
            # time limit that the host's listener carries (tune).
            await asyncio.wait((gone,), timeout=0 if self._broadcaster.closing else self._stall_seconds)
        finally:
            self._broadcaster.leave(connection)
            gone.cancel()


async def _until_gone(receive: Receive, connection: Connection) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    connection.end()


@endpoint("GET", "/v1/stream", keys=("task-worker",))
async def stream(call: Call) -> Answer:
    """Hints for one worker: `ready`, `wake`, `cancel`, `drain`, `revoked`, and a comment every 15 s."""
    given = subscription(call.request)
    call.key.check_worker(given.worker_id, given.pool, given.names)
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    if broadcaster is None or broadcaster.closing:
        raise Unavailable("this host serves no streams now", next="Poll, and open the stream again after a pause.")
    if len(broadcaster.connections) >= MAX_STREAMS:
        raise Unavailable("this host has as many streams as it can carry", next="Poll, and open the stream again after a pause.")
    if call.request.method == "HEAD":
        return Answer(Response(media_type=EventStream.media_type, headers=HEADERS))
    connection = Connection(call.key.project, call.key.id, given.worker_id, given.instance_id, given.pool, tuple(given.types))
    return Answer(EventStream(broadcaster, connection, call.request.app.state.stall_seconds))


@endpoint("GET", "/healthz")
async def healthz(call: Call) -> dict[str, Any]:
    """Whether the process serves; `degraded` while it hears no hints (it looks by itself meanwhile)."""
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    listening = broadcaster is not None and broadcaster.listener.listening
    return {"status": "ok" if listening else "degraded", "streams": len(broadcaster.connections) if broadcaster else 0}


@endpoint("GET", "/readyz")
async def readyz(call: Call) -> Answer:
    """200 while the process takes streams and hears hints, else 503: new streams are better opened elsewhere."""
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    ready = broadcaster is not None and broadcaster.listener.listening and not broadcaster.closing
    return Answer({"ready": ready}, 200 if ready else 503)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """Runs the broadcaster of an application, and gives it long waits (`app.state.hold_wait`) and its streams.

    Uses the host's database; makes one from the settings where the host gave none.
    """
    own = app.state.database is None
    database = open_database(app, max(4, app.state.settings.pool_size)) if own else app.state.database
    broadcaster = Broadcaster(database, app.state.settings)
    app.state.stall_seconds = getattr(app.state, "stall_seconds", STALL_SECONDS)
    app.state.hold_wait = broadcaster.waits.hold
    app.state.broadcaster = broadcaster
    broadcaster.start()
    try:
        yield {}
    finally:
        await broadcaster.stop()
        app.state.broadcaster = app.state.hold_wait = None
        if own:
            await database.close()
            app.state.database = None


def close(app: Starlette) -> None:
    """Ends the streams and the waiting calls of an application; what comes now is refused. Harmless where it serves none."""
    broadcaster: Broadcaster | None = getattr(app.state, "broadcaster", None)
    if broadcaster is not None:
        broadcaster.close()


app = api(stream, healthz, readyz)
app.router.lifespan_context = lifespan
app.state.endpoints = ()  # the API's document describes calls that end
