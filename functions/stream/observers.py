"""The consoles of one process, by project: told by the hints that are heard anyway, and by a regular look at what sends none.

That an attempt has started, or a worker has come or gone, is told to nobody; while a console is open, it is looked for every
few seconds, for all projects in one statement.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from interlock_core import watching
from interlock_core.db import Database
from interlock_core.errors import Unavailable
from interlock_core.settings import Settings
from interlock_core.wakes import Hint
from observer import Observer

log = logging.getLogger("interlock.stream")

LOOK_SECONDS = 2.0
#: A statement that takes longer meets a silent peer: it is begun anew on another connection.
ANSWER_SECONDS = 10.0
MAX_PROJECTS = 100  # in one statement
MAX_RUNNING = 1000  # attempts of one project that are told apart; with more, every look says "re-read"


class Observed:
    """A project with an open console, as it was at the last look."""

    __slots__ = ("members", "running", "seen", "workers")

    def __init__(self) -> None:
        self.members: dict[Observer, None] = {}
        self.seen = False
        self.running: frozenset[str] = frozenset()
        self.workers = ""


class Observers:
    """The open consoles of one process. `run` is the loop that looks."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._offline_seconds = settings.offline_seconds
        self._projects: dict[str, Observed] = {}
        self._kick = asyncio.Event()

    def join(self, observer: Observer) -> None:
        """From here on the console hears; it is told `ready` when nothing can go unnoticed any more."""
        observed = self._projects.setdefault(observer.project, Observed())
        observed.members[observer] = None
        if observed.seen:
            observer.ready()
        else:
            self._kick.set()

    def leave(self, observer: Observer) -> None:
        """The console is gone. A project without one is forgotten."""
        observed = self._projects.get(observer.project)
        if observed is not None:
            observed.members.pop(observer, None)
            if not observed.members:
                del self._projects[observer.project]

    def heard(self, hint: Hint) -> None:
        """What a hint says to those who follow its project."""
        observed = self._projects.get(hint.project)
        if observed is None:
            return
        ids = [] if hint.done == "*" else list(hint.done)
        if hint.cancel != "*":
            ids += [cancel[2] for cancel in hint.cancel]
        for observer in observed.members:
            if hint.done == "*" or hint.cancel == "*":
                observer.reread()
            elif ids or hint.ready:
                observer.tasks(ids, queued=bool(hint.ready))
            if hint.drain:
                observer.workers()

    def heard_all(self) -> None:
        """Hints were lost, or may have been: everyone reads again."""
        for observed in self._projects.values():
            for observer in observed.members:
                observer.reread()

    async def run(self) -> None:
        """Looks for ever while a console is open; ends by cancellation only."""
        failing = False  # told once, until it works again
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS if self._projects else None):
                    await self._kick.wait()
            except TimeoutError:
                pass
            self._kick.clear()
            try:
                await self._look(list(self._projects))
                failing = False
            except (Unavailable, TimeoutError) as error:
                log.log(
                    logging.INFO if failing else logging.WARNING,
                    "observed projects cannot be read: %s",
                    str(error) or "no answer in time",
                )
                failing = True
                await asyncio.sleep(random.uniform(0.5, 1.5))
                self._kick.set()
            except Exception:
                log.exception("observed projects cannot be read")
                await asyncio.sleep(random.uniform(1, 3))
                self._kick.set()

    async def _look(self, projects: list[str]) -> None:
        for start in range(0, len(projects), MAX_PROJECTS):
            asked = projects[start : start + MAX_PROJECTS]
            async with asyncio.timeout(ANSWER_SECONDS):
                rows = await watching.pulse(self._database, asked, MAX_RUNNING, self._offline_seconds)
            for row in rows:
                if (observed := self._projects.get(row.project)) is not None:
                    _tell(observed, row)


def _tell(observed: Observed, row: Any) -> None:
    running = frozenset(row.running)
    changed = running ^ observed.running
    crowded = len(running) >= MAX_RUNNING or len(observed.running) >= MAX_RUNNING
    for observer in observed.members:
        if not observed.seen:
            observer.ready()
        elif changed and crowded:
            observer.reread()
        else:
            if changed:
                observer.tasks({name.partition(" ")[0] for name in changed})
            if changed or row.workers != observed.workers:  # who runs more or less has other slots free
                observer.workers()
    observed.seen, observed.running, observed.workers = True, running, row.workers
