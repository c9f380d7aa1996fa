"""One reader of a task's journal: where it stands, and nothing else. What it has yet to be told is in the journal."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from interlock_core.errors import Unavailable
from response import COMMENT, KEEP_ALIVE_SECONDS
from watched import Watched, end_frame

if TYPE_CHECKING:
    from watches import Watches

log = logging.getLogger("interlock.stream")

RESET = b"event: reset\ndata: {}\n\n"


class Watcher:
    """The state of one stream: the journal is told from after `after` on, after a `reset` where one is needed."""

    __slots__ = (
        *("project", "key_id", "task_id", "after", "watched", "ended", "revoked", "sent_at"),
        *("_watches", "_reset", "_last", "_comment", "_changed"),
    )
    opening = COMMENT

    def __init__(self, watches: Watches, project: str, key_id: str, task_id: str, after: int, reset: bool) -> None:
        self.project = project
        self.key_id = key_id
        self.task_id = task_id
        self.after = after
        self.watched: Watched | None = None  # while it is joined
        self.ended = False
        self.revoked = False
        # Spread, so that streams that were opened in one instant are not all kept alive in one.
        self.sent_at = asyncio.get_running_loop().time() - random.uniform(0, KEEP_ALIVE_SECONDS - 2)
        self._watches = watches
        self._reset = reset
        self._last = False  # the end was told
        self._comment = False
        self._changed = asyncio.Event()

    def describe(self) -> str:
        """Whose stream it is, for the log."""
        return f"task {self.task_id}"

    def poke(self) -> None:
        """There may be something to tell."""
        self._changed.set()

    def keep_alive(self, now: float) -> None:
        """Send a comment if nothing was sent for about `KEEP_ALIVE_SECONDS`."""
        if now - self.sent_at > KEEP_ALIVE_SECONDS - 1.5:
            self._comment = True
            self.poke()

    def end(self, *, revoked: bool = False) -> None:
        """Close the stream, after a last frame where the key was revoked."""
        self.ended = True
        self.revoked = self.revoked or revoked
        self.poke()

    async def next(self) -> bytes:
        """What is to be sent now: waits until there is something. Empty when the stream has ended."""
        failing = False  # told once, until it works again
        while not (self.ended or self._last):
            self._changed.clear()
            pause: float | None = None
            try:
                found = await self._take()
                failing = False
            except (Unavailable, TimeoutError) as error:
                log.log(
                    logging.INFO if failing else logging.WARNING, "the journal of %s cannot be read: %s", self.describe(), error
                )
                failing, pause = True, random.uniform(0.5, 1.5)
                found = COMMENT if self._comment else b""
            self._comment = False
            if found:
                self.sent_at = asyncio.get_running_loop().time()
                return found
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return b""

    async def _take(self) -> bytes:
        watched = self.watched
        if watched is None:
            return b""
        events = watched.after(self.after)
        if events is None:
            events = await self._watches.read(self)
        frames = [frame for _, frame in events]
        if self._reset:
            self._reset = False
            frames.insert(0, RESET)
        if events:
            self.after = events[-1][0]
        if watched.ended(self.after):
            frames.append(end_frame(watched.status))
            self._last = True
        if self._comment and not frames:
            frames.append(COMMENT)
        return b"".join(frames)
