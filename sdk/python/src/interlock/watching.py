"""The journal of one task as it grows: by stream where there is one, else by reading it again; each event once, in order.

Watch._tell → _follow (a stream, until it breaks) → _read (a look at the task, and what its journal has beyond `after`)
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

from interlock.backoff import Backoff, growing_delay
from interlock.client import Client, EventStream
from interlock.errors import ApiError, Unreachable
from interlock.reading import task_path
from interlock.stream import SILENCE, read_frames
from interlock.tasks import JournalEvent
from interlock.waiting import ASK_STREAM_AGAIN, StreamHost

log = logging.getLogger("interlock")

LONGEST_PAUSE = 2.0
"""Seconds between two looks at a quiet task that no stream tells of."""


class Watch:
    """The events of one task behind `after`: iterate over it, once. It ends when the task is settled or unknown.

    Nothing is missed or told twice, whatever breaks in between: outages are waited out. Where the service itself was
    set back (a restored backup), the journal is told from its beginning. `after` is the last event told: a new watch
    may go on from there. Raises ApiError for a refusal that repeating cannot cure. `close`, which any thread may call,
    ends it early.
    """

    def __init__(self, client: Client, host: StreamHost, task_id: str, after: int = 0) -> None:
        self.after = after
        self._client = client
        self._host = host
        self._task_id = task_id
        self._ended = False
        self._closing = threading.Event()
        self._open: EventStream | None = None
        self._stream_at = 0.0  # when a stream is tried next
        self._backoff = Backoff(first=0.5, longest=30.0)
        self._events = self._tell()

    def __repr__(self) -> str:
        return f"Watch(task_id={self._task_id!r}, after={self.after})"

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> JournalEvent:
        return next(self._events)

    def __enter__(self) -> Watch:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; one that waits in another thread ends there."""
        self._closing.set()
        stream = self._open
        if stream is not None:
            stream.interrupt()
        with contextlib.suppress(ValueError):  # It is running, in another thread.
            self._events.close()  # type: ignore[attr-defined]  # a generator is an iterator that can be closed

    def _tell(self) -> Iterator[JournalEvent]:
        quiet = 0
        while not self._closing.is_set():
            told = self.after
            if time.monotonic() >= self._stream_at:
                yield from self._follow()
            if not (self._ended or self._closing.is_set()):
                pause = growing_delay(quiet, 0.1, LONGEST_PAUSE, 1.5) if quiet else 0.0
                begun = time.monotonic()
                yield from self._read(pause)
                # The look may have been held for the whole pause, or for none of it.
                if not self._ended:
                    self._closing.wait(max(0.0, pause - (time.monotonic() - begun)))
            if self._ended:
                return
            quiet = 0 if self.after > told else quiet + 1

    def _follow(self) -> Iterator[JournalEvent]:
        """The events of a stream until it ends; none where there is no stream."""
        url = self._host.find()
        if url is None:  # There is none, or the service could not be asked: what it answered is remembered.
            self._stream_at = time.monotonic() + self._backoff.next()
            return
        told = self.after
        try:
            headers = {"Last-Event-ID": str(self.after)} if self.after else None
            stream = self._client.open_stream(url, f"{task_path(self._task_id)}/stream", {}, SILENCE, headers)
            self._open = stream
            try:
                if self._closing.is_set():
                    return
                yield from self._hear(stream)
            finally:
                self._open = None
                stream.close()
        except ApiError as error:
            # No such stream, or no such task: the look that follows knows. A refused key is refused there too.
            log.debug("no stream of task %s: %s", self._task_id, error)
            if not error.retryable:
                self._stream_at = time.monotonic() + ASK_STREAM_AGAIN
                return
        except Unreachable as error:
            if not self._closing.is_set():
                log.info("the stream of task %s is opened again: %s", self._task_id, error)
        if self.after > told:
            self._backoff.reset()
        self._stream_at = time.monotonic() + self._backoff.next()

    def _hear(self, stream: EventStream) -> Iterator[JournalEvent]:
        for frame in read_frames(stream.lines()):
            if frame.event == "end":
                self._ended = True
                return
            if frame.event == "revoked":
                return
            if frame.event == "reset":
                self.after = 0
            seq = frame.data.get("seq")
            if not isinstance(seq, int) or seq <= self.after:
                continue
            if seq > self.after + 1:
                yield from self._read_journal()
            if seq > self.after:
                self.after = seq
                yield JournalEvent.read(frame.data)

    def _read(self, held: float) -> Iterator[JournalEvent]:
        """What the journal has beyond `after`, by a look at the task that may be held for so many seconds."""
        try:
            task = self._host.look(self._task_id, held, held + self._client.timeout)
            if task.journal_seq < self.after:
                self.after = 0
            if task.journal_seq > self.after:
                yield from self._read_journal()
            # The journal may be longer than the look knew, never shorter: with all of it told, the end is told too.
            self._ended = task.ended and self.after >= task.journal_seq
        except Unreachable as error:
            log.warning("watching task %s: %s", self._task_id, error)
        except ApiError as error:
            if not error.retryable:
                raise
            log.warning("watching task %s: %s", self._task_id, error)

    def _read_journal(self) -> Iterator[JournalEvent]:
        while True:
            params = {"after": self.after, "limit": 200}
            page = self._client.request("GET", f"{task_path(self._task_id)}/journal", params=params)
            for item in page["items"]:
                event = JournalEvent.read(item)
                self.after = event.seq
                yield event
            if not page["items"] or not page.get("nextCursor"):
                return
