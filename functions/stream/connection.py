"""One worker's open stream: what it has yet to be told, as sets that stay small however slowly it reads.

A hint says "read again", so a second one of the same kind adds nothing: it coalesces. Nothing here is a queue.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable

from groups import Group, wake_frame
from response import COMMENT, KEEP_ALIVE_SECONDS

READY = COMMENT + b"event: ready\ndata: {}\n\n"
DRAIN = b"event: drain\ndata: {}\n\n"

#: Wakes of one stream come no closer than this: a burst of submits is one wake, a single one is told at once.
WAKE_GAP_SECONDS = 0.01
#: Cancels waiting for one slow reader. What is beyond is told by its next heartbeat.
MAX_CANCELS = 200


class Connection:
    """The state of one stream. Belongs to the event loop that made it."""

    __slots__ = (
        "_cancels",
        "_comment",
        "_drain",
        "_gap",
        "_pending",
        "_waiter",
        "ended",
        "full_until",
        "groups",
        "instance_id",
        "key_id",
        "names",
        "pool",
        "project",
        "revoked",
        "sent_at",
        "worker_id",
    )
    opening = READY

    def __init__(self, project: str, key_id: str, worker_id: str, instance_id: str, pool: str, names: tuple[str, ...]) -> None:
        self.project = project
        self.key_id = key_id
        self.worker_id = worker_id
        self.instance_id = instance_id
        self.pool = pool
        self.names = names  # type@version
        self.groups: tuple[Group, ...] = ()  # while it is joined
        self.ended = False  # nothing more will be told
        self.revoked = False
        self.full_until = 0.0  # it was seen to have no free slot, which is believed until then
        # Spread, so that streams that were opened in one instant are not all kept alive in one.
        self.sent_at = asyncio.get_running_loop().time() - random.uniform(0, KEEP_ALIVE_SECONDS - 2)
        self._pending: set[Group] = set()
        self._cancels: dict[tuple[str, str], None] | None = None
        self._drain = False
        self._comment = False
        self._waiter: asyncio.Future[None] | None = None
        self._gap: asyncio.TimerHandle | None = None

    @property
    def instance(self) -> tuple[str, str, str]:
        """The process that listens: project, worker id, instance id."""
        return self.project, self.worker_id, self.instance_id

    def describe(self) -> str:
        """Whose stream it is, for the log."""
        return f"worker {self.worker_id}"

    def wake(self, groups: Iterable[Group]) -> None:
        """There may be work of these groups."""
        self._pending.update(groups)
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._gap is None:
            if now >= self.sent_at + WAKE_GAP_SECONDS:
                self._poke()
            else:
                self._gap = loop.call_at(self.sent_at + WAKE_GAP_SECONDS, self._gap_over)

    def _gap_over(self) -> None:
        self._gap = None
        self._poke()

    def cancel(self, task_id: str, attempt_id: str) -> None:
        """The holder of this attempt is to stop."""
        if self._cancels is None:
            self._cancels = {}
        if len(self._cancels) < MAX_CANCELS:
            self._cancels[task_id, attempt_id] = None
        self._poke()

    def drain(self) -> None:
        """The worker is to finish what it has and take nothing more."""
        self._drain = True
        self._poke()

    def keep_alive(self, now: float) -> None:
        """Send a comment if nothing was sent for about `KEEP_ALIVE_SECONDS`."""
        if now - self.sent_at > KEEP_ALIVE_SECONDS - 1.5:
            self._comment = True
            self._poke()

    def end(self, *, revoked: bool = False) -> None:
        """Close the stream, after a last frame where the key was revoked."""
        self.ended = True
        self.revoked = self.revoked or revoked
        if self._gap is not None:
            self._gap.cancel()
            self._gap = None
        self._poke()

    def _poke(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> bytes:
        """What is to be sent now: waits until there is something. Empty when the stream has ended."""
        while True:
            if self.ended:
                return b""
            found = self._take()
            if found:
                self.sent_at = asyncio.get_running_loop().time()
                return found
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _take(self) -> bytes:
        frames = []
        if self._cancels:
            frames += [cancel_frame(task_id, attempt_id) for task_id, attempt_id in self._cancels]
            self._cancels = None
        if self._drain:
            frames.append(DRAIN)
            self._drain = False
        if self._pending and self._gap is None:
            frames.append(wake_frame(self._pending) if len(self._pending) > 1 else next(iter(self._pending)).frame)
            self._pending.clear()
        if self._comment and not frames:
            frames.append(COMMENT)
        self._comment = False
        return frames[0] if len(frames) == 1 else b"".join(frames)


def cancel_frame(task_id: str, attempt_id: str) -> bytes:
    """The cancel of one attempt."""
    return f"event: cancel\ndata: {json.dumps({'taskId': task_id, 'attemptId': attempt_id})}\n\n".encode()
