"""The hub of one process: one session that listens, and whom each hint concerns.

    listen.Listener ──hint──▶ Broadcaster ──▶ Timetable (ready work: whom to wake, and when to look again)
                                         ├──▶ Connection of the holder (cancel), of a worker (drain)
                                         ├──▶ Waits (calls that wait for a task's end)
                                         ├──▶ Watches (journals that are read along)
                                         └──▶ Observers (consoles)

A hint is never trusted to be the only one: what it says is read again by whoever is told, and whatever nobody said is found
by the timetable's regular look.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

from connection import Connection
from groups import Group, Groups
from interlock_core import wakes
from interlock_core.background import end
from interlock_core.db import Database
from interlock_core.listen import Listener
from interlock_core.settings import Settings
from observer import Observer
from observers import Observers
from rereads import Rereads
from response import Stream
from timetable import Timetable
from waits import Waits
from watcher import Watcher
from watches import Watches

log = logging.getLogger("interlock.stream")

#: A revoked key's streams end within 5 s, this look and the verdict's own cache included.
KEY_SECONDS = 2.0
TICK_SECONDS = 1.0
#: How many streams are told in one piece when all of them are: between the pieces others are served.
PIECE = 500
#: Streams of one instance, which has one: a reconnect may come before the old one's end is seen. The oldest goes.
PER_INSTANCE = 3


class Broadcaster:
    """The streams of one process. `start` it before the first one joins, `close` the streams, then `stop` it."""

    def __init__(self, database: Database, settings: Settings, listen_url: str | None = None) -> None:
        self._database = database
        self.streams: dict[Stream, None] = {}
        self.connections: dict[Connection, None] = {}  # of workers
        self.groups = Groups()
        self.waits = Waits()
        self.watches = Watches(database)
        self.observers = Observers(database, settings)
        self.closing = False
        self.hints = 0
        self.listener = Listener(listen_url or database.address, self._heard, self._renewed)
        regular = min(5.0, settings.min_lease_seconds / 2)
        self.timetable = Timetable(database, self.groups, regular, degraded=lambda: not self.listener.listening)
        self._all_ends, self._all_cancels = Rereads(self._tell_ends), Rereads(self._tell_cancels)
        self._instances: dict[tuple[str, str, str], list[Connection]] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._offers: dict[Group, int] = {}  # ready work that was heard of and not told yet

    def start(self) -> None:
        """Begins to listen and to look, in the running loop."""
        loops = self.listener.run, self.timetable.run, self.watches.run, self.observers.run, self._keep_alive, self._watch_keys
        for loop in (*loops, self._all_ends.run, self._all_cancels.run):
            self._spawn(loop())

    def close(self) -> None:
        """Ends every stream and lets every waiting call answer; new ones are refused."""
        self.closing = True
        self.waits.close()
        for stream in list(self.streams):
            stream.end()

    async def stop(self) -> None:
        """Ends the streams and the loops; returns when they are gone."""
        self.close()
        await end(list(self._jobs))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._job_ended)

    def _job_ended(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            log.error("a part of the stream ended", exc_info=error)

    def join(self, stream: Stream) -> None:
        """From here on the stream hears every hint."""
        if isinstance(stream, Connection):
            self._join_worker(stream)
        elif isinstance(stream, Watcher):
            self.watches.join(stream)
        elif isinstance(stream, Observer):
            self.observers.join(stream)
        self.streams[stream] = None
        if self.closing:
            stream.end()

    def leave(self, stream: Stream) -> None:
        """The stream is gone. Harmless if it never joined."""
        if stream not in self.streams:
            return
        del self.streams[stream]
        stream.end()
        if isinstance(stream, Connection):
            self._leave_worker(stream)
        elif isinstance(stream, Watcher):
            self.watches.leave(stream)
        elif isinstance(stream, Observer):
            self.observers.leave(stream)

    def _join_worker(self, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        connection.groups = tuple(
            self.groups.enter((connection.project, connection.pool, name), now) for name in connection.names
        )
        connection.names = tuple(group.name for group in connection.groups)  # one text for all who serve it
        for group in connection.groups:
            group.members[connection] = None
            self.timetable.expect(group, group.full_look_at, everything=True)
        self.connections[connection] = None
        same = self._instances.setdefault(connection.instance, [])
        same.append(connection)
        if len(same) > PER_INSTANCE:
            same[0].end()

    def _leave_worker(self, connection: Connection) -> None:
        del self.connections[connection]
        for group in connection.groups:
            self.groups.leave(group, connection)
        same = self._instances[connection.instance]
        same.remove(connection)
        if not same:
            del self._instances[connection.instance]

    # Hints

    def _heard(self, payload: str) -> None:
        hint = wakes.read_hint(payload)
        self.hints += 1
        self.observers.heard(hint)
        if hint.ready:
            self._ready(hint.project, hint.ready)
        if hint.done == "*":
            self._all_ends.ask(hint.project)
        elif hint.done:
            self.waits.heard(hint.done)
            self.watches.heard(hint.done)
        if hint.cancel == "*":
            self._all_cancels.ask(hint.project)
            self._all_ends.ask(hint.project)
        else:
            self.watches.heard(cancel[2] for cancel in hint.cancel)
            for worker_id, instance_id, task_id, attempt_id in hint.cancel:
                self._cancel(hint.project, worker_id, instance_id, task_id, attempt_id)
        if hint.drain:
            for connection in self.connections:
                if connection.project == hint.project and (hint.drain == "*" or connection.worker_id in hint.drain):
                    connection.drain()

    def _ready(self, project: str, ready: list[tuple[str, str, int, float]] | wakes.All) -> None:
        now = asyncio.get_running_loop().time()
        if ready == "*":
            for group in self.groups.of_project(project):
                self.timetable.expect(group, now)
            return
        for name, pool, count, seconds in ready:
            served = self.groups.get((project, pool, name))
            if served is None:
                continue
            if seconds > 0:
                self.timetable.expect(served, now + seconds)
            else:
                if not self._offers:
                    asyncio.get_running_loop().call_soon(self._offer)
                self._offers[served] = self._offers.get(served, 0) + count

    def _offer(self) -> None:
        """Tells of ready work, of everything at once that was heard meanwhile: many hints of one group cost one turn of wakes."""
        now = asyncio.get_running_loop().time()
        offers, self._offers = self._offers, {}
        for group, count in offers.items():
            self.timetable.offered(group, count, now)

    def _cancel(self, project: str, worker_id: str, instance_id: str, task_id: str, attempt_id: str) -> None:
        for connection in self._instances.get((project, worker_id, instance_id), ()):
            connection.cancel(task_id, attempt_id)

    async def _tell_ends(self, projects: list[str]) -> None:
        for project in projects:
            self.waits.heard_all(project)
            self.watches.heard_all(project)

    async def _tell_cancels(self, projects: list[str]) -> None:
        try:
            for row in await wakes.cancels(self._database, projects):
                self._cancel(row.project, row.worker_id, row.instance_id, str(row.id), str(row.attempt_id))
        except Exception as error:
            log.warning("cancels could not be read, heartbeats will tell them: %s", error)

    def _renewed(self) -> None:
        """Hints were lost, or may have been: everyone reads again."""
        self.waits.heard_all()
        self.watches.heard_all()
        self.observers.heard_all()
        if self.connections:
            self._spawn(self._wake_all())

    async def _wake_all(self) -> None:
        connections = list(self.connections)
        random.shuffle(connections)
        for start in range(0, len(connections), PIECE):
            for connection in connections[start : start + PIECE]:
                connection.wake(connection.groups)
            await asyncio.sleep(0.1)
        await self._tell_cancels(sorted({c.project for c in connections}))

    # What is done by the clock

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = loop.time()
            for stream in self.streams:
                stream.keep_alive(now)

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(KEY_SECONDS)
            key_ids = sorted({stream.key_id for stream in self.streams})
            if not key_ids:
                continue
            try:
                gone = await wakes.gone(self._database, key_ids)
            except Exception as error:
                log.warning("the keys of open streams could not be read: %s", error)
                continue
            for stream in list(self.streams):
                if stream.key_id in gone:
                    stream.end(revoked=gone[stream.key_id])
