"""The tasks that somebody watches: their journals are looked at every second, all in one statement, and at once on a hint.

Progress and logs notify nobody, so that they cost the database no broadcast; whoever watches sees them within about a second.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Any

from interlock_core import watching
from interlock_core.db import Database
from interlock_core.errors import Unavailable
from watched import Watched, frame, rows_of
from watcher import Watcher

log = logging.getLogger("interlock.stream")

LOOK_SECONDS = 1.0
#: A statement that takes longer meets a silent peer: it is begun anew on another connection.
ANSWER_SECONDS = 10.0
MAX_TOGETHER = 500  # tasks in one statement
MAX_EVENTS = 100  # of one task in one statement
LOOK_BYTES = 2 * 1024 * 1024  # of all tasks in one statement
READ_BYTES = 256 * 1024  # for one reader that catches up
#: Readers that catch up at the same time: connections are left for those who look, and for other calls.
READERS = 2


class Watches:
    """The watched tasks of one process. `run` is its loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tasks: dict[str, Watched] = {}
        self._due: set[Watched] = set()
        self._kick = asyncio.Event()
        self._look_at = 0.0
        self._reading = asyncio.Semaphore(READERS)
        self.looks = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def join(self, watcher: Watcher) -> None:
        """From here on the watcher is told what happens."""
        watched = self._tasks.get(watcher.task_id)
        if watched is None:
            watched = self._tasks[watcher.task_id] = Watched(watcher.project, watcher.task_id)
        watched.watchers[watcher] = None
        watcher.watched = watched
        self._kick.set()

    def leave(self, watcher: Watcher) -> None:
        """The watcher is gone. A task that nobody watches is forgotten."""
        watched = watcher.watched
        if watched is None:
            return
        watcher.watched = None
        watched.watchers.pop(watcher, None)
        if not watched.watchers:
            self._tasks.pop(watched.id, None)
            self._due.discard(watched)

    def heard(self, task_ids: Iterable[str]) -> None:
        """Something has happened to these tasks."""
        for name in task_ids:
            watched = self._tasks.get(name)
            if watched is not None:
                self._expect(watched)

    def heard_all(self, project: str | None = None) -> None:
        """Something may have happened to any task, of one project or of all."""
        for watched in self._tasks.values():
            if project is None or watched.project == project:
                self._expect(watched)

    def _expect(self, watched: Watched) -> None:
        self._due.add(watched)
        self._kick.set()

    async def read(self, watcher: Watcher) -> list[tuple[int, bytes]]:
        """The next events of a watcher who has to catch up. Raises Unavailable, TimeoutError. A task that is gone ends its stream."""
        async with self._reading, asyncio.timeout(ANSWER_SECONDS):
            rows = await watching.events(self._database, [(watcher.task_id, watcher.after)], MAX_EVENTS, READ_BYTES, always=True)
        if rows[0].status is None:
            watcher.end()
            return []
        events = _frames(rows)
        watched = watcher.watched
        if watched is not None and (events[-1][0] if events else watcher.after) == rows[0].journal_seq:
            watched.start(rows[0].journal_seq, rows[0].status)
            if watched.seen < rows[0].journal_seq:
                self._expect(watched)
        return events

    async def run(self) -> None:
        """Looks for ever while anybody watches; ends by cancellation only."""
        loop = asyncio.get_running_loop()
        failing = False  # told once, until it works again
        while True:
            try:
                async with asyncio.timeout_at(self._look_at if self._tasks else None):
                    await self._kick.wait()
            except TimeoutError:
                pass
            self._kick.clear()
            began = loop.time()
            due, self._due = self._due, set()
            if began >= self._look_at:
                due = set(self._tasks.values())
                for watched in due:
                    watched.forget()
                self._look_at = began + LOOK_SECONDS
            try:
                await self._look([watched for watched in due if watched.seen >= 0])
                # A database that is slow is not asked without a pause.
                self._look_at = max(self._look_at, 2 * loop.time() - began)
                failing = False
            except (Unavailable, TimeoutError) as error:
                log.log(
                    logging.INFO if failing else logging.WARNING,
                    "watched tasks cannot be read: %s",
                    str(error) or "no answer in time",
                )
                failing = True
                self._look_at = 0.0
                await asyncio.sleep(random.uniform(0.5, 1.5))
            except Exception:
                log.exception("watched tasks cannot be read")
                self._look_at = 0.0
                await asyncio.sleep(random.uniform(1, 3))

    async def _look(self, due: list[Watched]) -> None:
        for start in range(0, len(due), MAX_TOGETHER):
            asked = {watched.id: watched for watched in due[start : start + MAX_TOGETHER]}
            places = [(name, watched.seen) for name, watched in asked.items()]
            async with asyncio.timeout(ANSWER_SECONDS):
                rows = await watching.events(self._database, places, MAX_EVENTS, LOOK_BYTES)
            self.looks += 1
            for name, mine in rows_of(rows).items():
                # One that was left and is watched anew has another place in the journal than the one that was asked for.
                if self._tasks.get(name) is asked[name]:
                    self._tell(asked[name], mine)

    def _tell(self, watched: Watched, rows: list[Any]) -> None:
        first = rows[0]
        # Gone, or set back with its whole database: who comes again is told what is true now.
        if first.status is None or first.journal_seq < watched.seen:
            for watcher in list(watched.watchers):
                watcher.end()
            return
        watched.add((event for event in _frames(rows) if event[0] > watched.seen), first.journal_seq, first.status)
        if watched.seen < watched.head:  # it did not all fit
            self._expect(watched)
        for watcher in watched.watchers:
            watcher.poke()


def _frames(rows: list[Any]) -> list[tuple[int, bytes]]:
    return [(row.seq, frame(row.kind, watching.event_text(row), row.seq)) for row in rows if row.seq is not None]
