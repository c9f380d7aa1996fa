"""The streams (protocol.md §10): server-sent events for workers and watchers, and waits. Runs in a container, or inside a local host.

A host serves within `lifespan(app)`, and calls `close(app)` first of all when it is told to stop: servers wait for
responses to end before they shut down, and a stream ends only when it is told to.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response

from broadcaster import Broadcaster
from connection import Connection
from figures import figures
from interlock_core import tasks
from interlock_core.errors import Unavailable
from interlock_core.http import Answer, Call, api, endpoint, open_database
from interlock_core.metrics import CONTENT_TYPE
from interlock_core.wire.cursors import wait_seconds
from interlock_core.wire.queries import query
from interlock_core.wire.streams import resume_after, subscription
from observer import Observer
from response import HEADERS, EventStream
from response import Stream as Open
from watcher import Watcher

#: A reader that takes nothing for so long is closed: it is gone, or its worker is stuck and finds work by polling.
STALL_SECONDS = 30.0
#: Streams of one process; descriptors and memory end somewhere, and a refusal can be answered.
MAX_STREAMS = 18_000


@endpoint("GET", "/v1/stream", keys=("task-worker",))
async def stream(call: Call) -> Answer:
    """Hints for one worker: `ready`, `wake`, `cancel`, `drain`, `revoked`, and a comment every 15 s."""
    given = subscription(call.request)
    call.key.check_worker(given.worker_id, given.pool, given.names)
    broadcaster = _broadcaster(call)
    connection = Connection(call.key.project, call.key.id, given.worker_id, given.instance_id, given.pool, tuple(given.types))
    return _open(call, broadcaster, connection)


@endpoint("GET", "/v1/tasks/{id}/stream", keys=("task-producer", "operator"), tickets=True)
async def task_stream(call: Call) -> Answer:
    """The journal of a task as it grows, from `Last-Event-ID` on: its events, `end` {status, settled}; `reset`, `revoked`."""
    given = query(call.request, ("lastEventId", "ticket"))
    broadcaster = _broadcaster(call)
    row = await tasks.find(call.database, call.key.project, call.path_id())
    asked = call.request.headers.get("last-event-id") or given.get("lastEventId", [""])[-1]
    after, reset = resume_after(asked, row.journal_seq)
    return _open(call, broadcaster, Watcher(broadcaster.watches, call.key.project, call.key.id, str(row.id), after, reset))


@endpoint("GET", "/v1/events/stream", keys=("operator",), tickets=True)
async def project_stream(call: Call) -> Answer:
    """What changes in the project, for a console: `ready`, `tasks` {ids, queued}, `workers`, `re-read`, `revoked`."""
    query(call.request, ("lastEventId", "ticket"))
    return _open(call, _broadcaster(call), Observer(call.key.project, call.key.id))


def _broadcaster(call: Call) -> Broadcaster:
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    if broadcaster is None or broadcaster.closing:
        raise Unavailable("this host serves no streams now", next="Poll, and open the stream again after a pause.")
    if len(broadcaster.streams) >= MAX_STREAMS:
        raise Unavailable("this host has as many streams as it can carry", next="Poll, and open the stream again after a pause.")
    return broadcaster


def _open(call: Call, broadcaster: Broadcaster, stream: Open) -> Answer:
    # A page reads the stream of another host only where this says that it may. The ticket is its authority, and no cookie is.
    headers = {"access-control-allow-origin": "*"} if "ticket" in call.request.query_params else {}
    if call.request.method == "HEAD":
        return Answer(Response(media_type=EventStream.media_type, headers=HEADERS | headers))
    return Answer(EventStream(broadcaster, stream, call.request.app.state.stall_seconds, headers))


@endpoint("GET", "/v1/tasks/{id}", keys=("task-producer", "operator"))
async def get(call: Call) -> dict[str, Any]:
    """One task as the service shows it; `waitSeconds` waits for its end, on the hints that are heard here anyway.

    A function is paid for as long as it waits, and holds a connection: long waits belong here.
    """
    given = query(call.request, ("waitSeconds",))
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    task_id = call.path_id()
    seconds = wait_seconds(given.get("waitSeconds", [None])[-1])
    if seconds and broadcaster is not None:
        row = await broadcaster.waits.hold(call.database, call.key.project, task_id, seconds)
    else:
        row = await tasks.find(call.database, call.key.project, task_id)
    return await tasks.show(call.database, call.settings, call.key.project, row)


@endpoint("GET", "/v1/metrics", keys=("operator", "metrics"))
async def metrics(call: Call) -> Answer:
    """Figures of this process as Prometheus text: streams, memory, descriptors, how well it hears."""
    query(call.request, ())
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    return Answer(figures(broadcaster) if broadcaster else "", media_type=CONTENT_TYPE)


@endpoint("GET", "/healthz")
async def healthz(call: Call) -> dict[str, Any]:
    """Whether the process serves; `degraded` while it hears no hints (it looks by itself meanwhile)."""
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    listening = broadcaster is not None and broadcaster.listener.listening
    return {"status": "ok" if listening else "degraded", "streams": len(broadcaster.streams) if broadcaster else 0}


@endpoint("GET", "/readyz")
async def readyz(call: Call) -> Answer:
    """200 while the process takes streams and hears hints, else 503: new streams are better opened elsewhere."""
    broadcaster: Broadcaster | None = getattr(call.request.app.state, "broadcaster", None)
    ready = broadcaster is not None and broadcaster.listener.listening and not broadcaster.closing
    return Answer({"ready": ready}, 200 if ready else 503)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """Runs the broadcaster of an application, which gives its host streams, long waits and figures.

    Those are `app.state.hold_wait`, `app.state.stream_figures` and `app.state.stream_lag`, for functions served beside it. Uses
    the host's database; makes one from the settings where the host gave none.
    """
    own = app.state.database is None
    database = open_database(app, max(4, app.state.settings.pool_size)) if own else app.state.database
    broadcaster = Broadcaster(database, app.state.settings)
    app.state.stall_seconds = getattr(app.state, "stall_seconds", STALL_SECONDS)
    app.state.hold_wait = broadcaster.waits.hold
    app.state.stream_figures = partial(figures, broadcaster)
    app.state.stream_lag = broadcaster.listener.lag
    app.state.broadcaster = broadcaster
    broadcaster.start()
    try:
        yield {}
    finally:
        await broadcaster.stop()
        app.state.broadcaster = app.state.hold_wait = app.state.stream_figures = app.state.stream_lag = None
        if own:
            await database.close()
            app.state.database = None


def close(app: Starlette) -> None:
    """Ends the streams and the waiting calls of an application; what comes now is refused. Harmless where it serves none."""
    broadcaster: Broadcaster | None = getattr(app.state, "broadcaster", None)
    if broadcaster is not None:
        broadcaster.close()


app = api(stream, task_stream, project_stream, get, metrics, healthz, readyz)
app.router.lifespan_context = lifespan
app.state.endpoints = ()  # the API's document describes calls that end
