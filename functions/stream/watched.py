"""One task that somebody watches: the latest events of its journal, shared by all who watch it.

Kept for about a second only. A reader that is further behind, having just come or reading slowly, reads the journal itself,
from where it stands: nothing is queued for anyone.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from interlock_core.states import ENDS, SETTLED

if TYPE_CHECKING:
    from watcher import Watcher

#: Events kept of one task; further ones push the oldest out.
TAIL_BYTES = 256 * 1024


class Watched:
    """The end of one journal: the events after `first` up to `seen`."""

    __slots__ = ("_frames", "_size", "first", "head", "id", "project", "seen", "status", "watchers")

    def __init__(self, project: str, task_id: str) -> None:
        self.project = project
        self.id = task_id
        self.watchers: dict[Watcher, None] = {}
        self.first = self.seen = -1  # until the first watcher has read up to the end, there is nothing to share
        self.head = -1  # how far the journal goes
        self.status = ""  # with the journal at `head`
        self._frames: deque[tuple[int, bytes]] = deque()
        self._size = 0

    def start(self, seq: int, status: str) -> None:
        """A watcher has read everything up to `seq`, the end: from here on what comes is shared."""
        if self.seen < 0:
            self.first = self.seen = self.head = seq
            self.status = status

    def add(self, frames: Iterable[tuple[int, bytes]], head: int, status: str) -> None:
        """What the journal has beyond `seen`."""
        for seq, frame in frames:
            self._frames.append((seq, frame))
            self._size += len(frame)
            self.seen = seq
        while self._size > TAIL_BYTES and len(self._frames) > 1:
            seq, frame = self._frames.popleft()
            self._size -= len(frame)
            self.first = seq
        self.head, self.status = head, status

    def forget(self) -> None:
        """Keeps none of the events: who has not taken them yet reads them."""
        self._frames.clear()
        self._size = 0
        self.first = self.seen

    def after(self, seq: int) -> list[tuple[int, bytes]] | None:
        """The events after `seq`; None where they are not kept."""
        if self.seen < 0 or seq < self.first:
            return None
        return [event for event in self._frames if event[0] > seq]

    def ended(self, seq: int) -> bool:
        """Whether the task has ended with the event `seq`."""
        return seq == self.seen == self.head and self.status in ENDS


def frame(event: str, data: bytes, seq: int | None = None) -> bytes:
    """One event of a stream. `data` is JSON; what some reader of lines takes for an end of line is written otherwise."""
    for found, written in _LINE_ENDS:
        if found in data:
            data = data.replace(found, written)
    name = b"" if seq is None else b"id: %d\n" % seq
    return name + b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


# Outside of strings JSON may have line ends, as white space; inside, some that only some readers know, which can be escaped.
_LINE_ENDS = (
    (b"\n", b" "),
    (b"\r", b" "),
    ("\x85".encode(), rb"\u0085"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


def end_frame(status: str) -> bytes:
    """The last event of a task's stream."""
    return frame("end", json.dumps({"status": status, "settled": status in SETTLED}).encode())


def rows_of(rows: Iterable[Any]) -> dict[str, list[Any]]:
    """Rows by their task."""
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(str(row.id), []).append(row)
    return found
