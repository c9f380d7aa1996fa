"""Calls that wait for a task's end, held on the hints that the stream hears anyway: no connection is spent on a waiting call."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from interlock_core import tasks
from interlock_core.db import Database
from interlock_core.states import ENDS

#: A wait reads its task again after so long without a hint, in case one was lost.
REREAD_SECONDS = 3.0

Waiter = asyncio.Future[None]


class Waits:
    """The waiting calls of one process, by task."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[Waiter, str]] = {}  # task id → who waits, each with its caller's project
        self._closed = False

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def hold(self, database: Database, project: str, task_id: UUID, seconds: float) -> Any:
        """The row of a task as soon as it has ended, or as it is after `seconds`. Raises NotFound, also if it goes away."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        name = str(task_id)
        while True:
            # Listening begins before the look: an end between the two would be heard by nobody.
            waiter: Waiter = loop.create_future()
            waiters = self._waiting.setdefault(name, {})
            waiters[waiter] = project
            try:
                row = await tasks.find(database, project, task_id)
                left = until - loop.time()
                if row.status in ENDS or left <= 0 or self._closed:
                    return row
                await asyncio.wait((waiter,), timeout=min(left, REREAD_SECONDS * random.uniform(0.8, 1)))
            finally:
                del waiters[waiter]
                if not waiters and self._waiting.get(name) is waiters:
                    del self._waiting[name]

    def heard(self, task_ids: Iterable[str]) -> None:
        """These tasks may have ended."""
        for name in task_ids:
            found = self._waiting.get(name)
            if found is not None:
                _release(found)

    def heard_all(self, project: str | None = None) -> None:
        """Any task, of one project or of all, may have ended."""
        for waiters in self._waiting.values():
            _release(waiter for waiter, whose in waiters.items() if project is None or whose == project)

    def close(self) -> None:
        """Let every waiting call answer with what is true now."""
        self._closed = True
        self.heard_all()


def _release(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
