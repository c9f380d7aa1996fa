"""Wakes by time: knows of every connected group when its next task may become claimable, and looks again at that instant.

    regular look    every few seconds at everything: due instants, leases made since, ready work whose hint was lost
    at an instant   a task is due or a lease has ended: whoever can take it is woken
    after a wake    is the work still there? then those woken had no slot: further ones are woken, at growing intervals

All groups whose moment has come are read in one statement, so that an idle fleet costs one statement every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

from connection import Connection
from groups import Group, Groups
from interlock_core import wakes
from interlock_core.db import Database
from interlock_core.errors import Unavailable

log = logging.getLogger("interlock.stream")

#: How long those who were woken have to claim before the work is offered to others; doubles up to the regular look.
FIRST_OFFER_SECONDS = 0.15
#: An instant is met a little late, so that the database's clock has passed it too.
SLACK_SECONDS = 0.005
#: Looks that are due within this time are done together.
TOGETHER_SECONDS = 0.02
#: A look that takes longer meets a silent peer: it is begun anew on another connection.
LOOK_SECONDS = 10.0
MAX_GROUPS = 500  # in one statement
MAX_COUNT = 200  # work of a group is counted no further than this, and so many of its streams are asked for
MAX_ASKED = 1000  # streams, of all groups together, in one statement
FULL_SECONDS = 1.5  # how long a worker seen without a free slot is woken last


class Timetable:
    """The loop that looks. `regular_seconds` bounds how late a lease that was made since the last look is noticed."""

    def __init__(self, database: Database, groups: Groups, regular_seconds: float, degraded: Callable[[], bool]) -> None:
        self._database = database
        self._groups = groups
        self._regular_seconds = regular_seconds
        self._degraded = degraded
        self._kick = asyncio.Event()
        self._sleeps_until = 0.0
        self.looks = 0

    def expect(self, group: Group, at: float, *, everything: bool = False) -> None:
        """Look at the group no later than `at` (loop time): at its ready work, or at everything."""
        if everything:
            group.full_look_at = min(group.full_look_at, at)
        else:
            group.ready_look_at = min(group.ready_look_at, at)
        if at < self._sleeps_until:
            self._kick.set()

    def offered(self, group: Group, count: int, now: float) -> None:
        """A hint said that so much is ready: wakes that many, and looks soon whether they took it."""
        group.wake(count, now)
        group.misses = max(group.misses, 1)
        # Where work has been left over for a while everyone is busy, and whoever ends a task asks for the next by itself.
        self.expect(group, now + FIRST_OFFER_SECONDS * (1 if group.misses < 4 else 4))

    async def run(self) -> None:
        """Looks for ever; ends by cancellation only."""
        loop = asyncio.get_running_loop()
        failing = False  # told once, until it works again
        while True:
            self._kick.clear()
            now = loop.time()
            next_at = min((min(g.full_look_at, g.ready_look_at) for g in self._groups), default=now + 60.0)
            if next_at > now:
                self._sleeps_until = next_at
                try:
                    async with asyncio.timeout_at(next_at):
                        await self._kick.wait()
                except TimeoutError:
                    pass
                self._sleeps_until = 0.0
                continue
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look(now)
                failing = False
            except (Unavailable, TimeoutError) as error:
                log.log(
                    logging.INFO if failing else logging.WARNING,
                    "the stream cannot look for due work: %s",
                    str(error) or "no answer in time",
                )
                failing = True
                await asyncio.sleep(random.uniform(0.5, 1.5))
            except Exception:
                log.exception("the stream cannot look for due work")
                await asyncio.sleep(random.uniform(1, 3))

    async def _look(self, now: float) -> None:
        soon = now + TOGETHER_SECONDS
        full = {g for g in self._groups if g.full_look_at <= soon}
        if full:  # takes those along that would follow within its own rhythm: an idle fleet is read in one piece
            full |= {g for g in self._groups if g.full_look_at <= now + self._regular_seconds / 2}
        due = [*full, *(g for g in self._groups if g not in full and g.ready_look_at <= soon)]
        for start in range(0, len(due), MAX_GROUPS):
            await self._read(due[start : start + MAX_GROUPS], full, now)

    async def _read(self, groups: list[Group], full: set[Group], now: float) -> None:
        # What is expected from here on is expected anew: a hint that comes while we read must not be taken for seen.
        for group in groups:
            group.ready_look_at = math.inf
            if group in full:
                group.full_look_at = now + (min(1.0, self._regular_seconds) if self._degraded() else self._regular_seconds)
        try:
            rows = await wakes.outlook(self._database, [_asked(n, g, g in full or g.lapsed) for n, g in enumerate(groups)])
        except BaseException:
            for group in groups:
                group.full_look_at = now
            raise
        self.looks += 1
        now = asyncio.get_running_loop().time()
        left: list[tuple[Group, int]] = []
        for row in rows:
            group = groups[row.n]
            if row.due_in is not None:
                self.expect(group, now + row.due_in + SLACK_SECONDS)
            if row.lease_in is not None:
                self.expect(group, now + row.lease_in + SLACK_SECONDS, everything=True)
            group.lapsed = row.lapsed
            if row.claimable:
                left.append((group, row.claimable))
            else:
                group.misses = 0
        await self._ask_who_is_full([group for group, _ in left if group.misses])
        for group, claimable in left:
            self._offer(group, claimable)

    def _offer(self, group: Group, claimable: int) -> None:
        """Wakes streams for work that is there: as many as there is work, and more each time that nobody took it."""
        now = asyncio.get_running_loop().time()
        step = 1 << min(group.misses, 10)
        group.wake(max(claimable, step), now)
        group.misses += 1
        self.expect(group, now + min(FIRST_OFFER_SECONDS * step, self._regular_seconds) * random.uniform(0.9, 1.1))

    async def _ask_who_is_full(self, groups: list[Group]) -> None:
        """Marks the streams next in turn that the database knows to be full, so that the others are woken before them."""
        now = asyncio.get_running_loop().time()
        asked: dict[Connection, None] = {}
        for group in groups:
            asked |= dict.fromkeys(c for c in islice(group.members, MAX_COUNT) if c.full_until <= now)
            if len(asked) > MAX_ASKED:
                break
        if asked:
            full = await wakes.full(self._database, [connection.instance for connection in asked])
            for connection in asked:
                if connection.instance in full:
                    connection.full_until = now + FULL_SECONDS


def _asked(n: int, group: Group, leases: bool) -> dict[str, Any]:
    return {
        "n": n,
        "project": group.project,
        "type": group.type,
        "schema_version": group.version,
        "pool": group.pool,
        "most": MAX_COUNT,
        "leases": leases,
    }
