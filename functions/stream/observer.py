"""One console that follows a project: what it has yet to be told, as sets that stay small however slowly it reads.

Each frame says what to read again, so a second of the same kind adds nothing: they coalesce. Nothing here is a queue.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable

from connection import READY
from response import COMMENT, KEEP_ALIVE_SECONDS
from watched import frame

REREAD = b"event: re-read\ndata: {}\n\n"
WORKERS = b"event: workers\ndata: {}\n\n"

#: Frames of one stream come no closer than this: a burst of changes is one, a single change is told at once.
GAP_SECONDS = 0.25
#: Tasks waiting to be told. With more of them the lists are better read again.
MAX_IDS = 500


class Observer:
    """The state of one stream. Belongs to the event loop that made it."""

    __slots__ = (
        *("project", "key_id", "ended", "revoked", "sent_at"),
        *("_ids", "_queued", "_workers", "_reread", "_ready", "_comment", "_told_at", "_changed"),
    )
    opening = COMMENT

    def __init__(self, project: str, key_id: str) -> None:
        self.project = project
        self.key_id = key_id
        self.ended = False
        self.revoked = False
        # Spread, so that streams that were opened in one instant are not all kept alive in one.
        self.sent_at = asyncio.get_running_loop().time() - random.uniform(0, KEEP_ALIVE_SECONDS - 2)
        self._ids: dict[str, None] = {}
        self._queued = self._workers = self._reread = self._ready = self._comment = False
        self._told_at = 0.0
        self._changed = asyncio.Event()

    def describe(self) -> str:
        """Whose stream it is, for the log."""
        return f"the project {self.project}"

    def ready(self) -> None:
        """From here on no change goes unnoticed: what the reader reads now stays true until it is told."""
        self._ready = True
        self._changed.set()

    def tasks(self, ids: Iterable[str], *, queued: bool = False) -> None:
        """These tasks have changed; `queued`: others, not known by their ids, wait for a worker now."""
        self._queued = self._queued or queued
        if not self._reread:
            self._ids.update(dict.fromkeys(ids))
            if len(self._ids) > MAX_IDS:
                self._reread = True
                self._ids.clear()
        self._changed.set()

    def workers(self) -> None:
        """Workers have come, gone or changed."""
        self._workers = True
        self._changed.set()

    def reread(self) -> None:
        """Anything may have changed."""
        self._reread = True
        self._ids.clear()
        self._changed.set()

    def keep_alive(self, now: float) -> None:
        """Send a comment if nothing was sent for about `KEEP_ALIVE_SECONDS`."""
        if now - self.sent_at > KEEP_ALIVE_SECONDS - 1.5:
            self._comment = True
            self._changed.set()

    def end(self, *, revoked: bool = False) -> None:
        """Close the stream, after a last frame where the key was revoked."""
        self.ended = True
        self.revoked = self.revoked or revoked
        self._changed.set()

    async def next(self) -> bytes:
        """What is to be sent now: waits until there is something. Empty when the stream has ended."""
        loop = asyncio.get_running_loop()
        while not self.ended:
            self._changed.clear()
            rest = self._told_at + GAP_SECONDS - loop.time()
            if rest <= 0 and (found := self._take()):
                self.sent_at = self._told_at = loop.time()
                return found
            try:
                async with asyncio.timeout(rest if rest > 0 else None):
                    await self._changed.wait()
                    if rest > 0 and not self.ended:
                        await asyncio.sleep(rest)  # what comes meanwhile is told together
            except TimeoutError:
                pass
        return b""

    def _take(self) -> bytes:
        frames = []
        if self._ready:
            frames.append(READY[len(COMMENT) :])
            self._ready = False
        if self._reread:
            frames.append(REREAD)
        else:
            if self._ids or self._queued:
                frames.append(frame("tasks", json.dumps({"ids": list(self._ids), "queued": self._queued}).encode()))
            if self._workers:
                frames.append(WORKERS)
        if self._comment and not frames:
            frames.append(COMMENT)
        self._ids.clear()
        self._queued = self._workers = self._reread = self._comment = False
        return b"".join(frames)
