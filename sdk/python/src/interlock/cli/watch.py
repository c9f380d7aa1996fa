"""`interlock tasks watch`: a task's journal as it grows, until the task's end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli.exits import OF_STATUS, CommandFailed, ExitCode
from interlock.cli.output import Output
from interlock.cli.session import READERS, Session
from interlock.cli.show import View, event_lines, moment, show_end, state_text, type_of
from interlock.cli.tasks import TaskId, show_event
from interlock.cli.values import read_duration
from interlock.errors import InterlockError
from interlock.reading import task_path
from interlock.tasks import JournalEvent, Task

if TYPE_CHECKING:
    from interlock.client import Client


LATER = ("interlock.producer",)


def watch(
    session: Session,
    task_id: TaskId,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Only events behind this one.")] = 0,
    timeout: Annotated[str | None, typer.Option(metavar="S", help="No longer than this (90, 15m, 2h).")] = None,
) -> int:
    """Watch a task live until its end; outages are waited out. The exit status tells the end.

    With --json, one event a line, then one line of kind "end".
    """
    out = session.out
    follower = Follower(session.client(*READERS), task_id, after, read_duration(timeout, "--timeout"), Outages(out))
    view = follower.look()
    if not out.json:
        out.lines(f"{view['id']} {type_of(view)} created {moment(view.get('createdAt'))}")
    try:
        with out.status(f"watching {task_id}") as say:
            say(status_words(view))
            for event in follower.events():
                if out.json:
                    out.record(event.raw)
                else:
                    show_event(session, event.raw, exact=True)
                if event.seq > int(view.get("journalSeq") or 0):
                    say(" · ".join(word for word in (event.kind, event_lines(event.raw)[-1]) if word))
    except KeyboardInterrupt:
        raise CommandFailed("interrupted; the task goes on", ExitCode.INTERRUPTED, next=follower.how_to_go_on()) from None
    view = follower.view
    if out.json:
        out.record({"kind": "end", "status": view.get("status"), "settled": view.get("settled"), "task": view})
    else:
        show_end(out, view)
    return OF_STATUS.get(str(view.get("status")), ExitCode.UNEXPECTED)


def status_words(view: View) -> str:
    """The moving line."""
    return " · ".join(word for word in (str(view.get("status")), state_text(view)) if word)


class Outages(logging.Filter):
    """Tells an outage once, and its end, in place of a warning for each look that failed."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out
        self._away = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Take what the watch warns of; let all else pass."""
        if record.module != "watching" or record.levelno != logging.WARNING:
            return True
        if not self._away:
            self._out.notice(f"{record.getMessage()}; still trying")
        self._away = True
        return False

    def over(self) -> None:
        """Something was heard of the service."""
        if self._away:
            self._out.notice("the service answers again")
        self._away = False

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Listen to the package's log."""
        log = logging.getLogger("interlock")
        log.addFilter(self)
        try:
            yield
        finally:
            log.removeFilter(self)


class Follower:
    """The journal of one task, event by event. `view` is the task as last read."""

    def __init__(self, client: Client, task_id: str, after: int, timeout: float | None, outages: Outages) -> None:
        self.view: dict[str, Any] = {}
        self._client = client
        self._task_id = task_id
        self._after = after
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._outages = outages

    def look(self, timeout: float | None = None) -> dict[str, Any]:
        """The task as it is now. Raises as Client.request."""
        self.view = self._client.request("GET", task_path(self._task_id), timeout=timeout)
        return self.view

    def events(self) -> Iterator[JournalEvent]:
        """Every event behind `after`, until the task has ended and all was told.

        Raises CommandFailed when the time is over.
        """
        from interlock.producer import TaskProducer

        producer = TaskProducer(client=self._client)
        with self._outages.told():
            while True:
                with producer.watch(self._task_id, after=self._after) as watch, self._ending(watch.close):
                    for event in watch:
                        self._outages.over()
                        # Not the watch's: it may have been set back with the service.
                        self._after = event.seq
                        yield event
                self._check_time()
                self._outages.over()
                # Somebody may have queued again what was unknown a moment ago: then it goes on.
                if Task.read(self.look()).ended:
                    return

    @contextlib.contextmanager
    def _ending(self, close: Any) -> Iterator[None]:
        """Call `close` when the time is over."""
        if self._deadline is None:
            yield
            return
        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _check_time(self) -> None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return
        with contextlib.suppress(InterlockError):  # This is for better words, and to see an end of just now.
            if Task.read(self.look(timeout=2)).ended and self._after >= int(self.view.get("journalSeq") or 0):
                return
        words = f"the time is over; the task is {self.view.get('status')} and goes on"
        raise CommandFailed(words, ExitCode.TIMEOUT, next=self.how_to_go_on())

    def how_to_go_on(self) -> str:
        """The command that tells what comes next."""
        return f"interlock tasks watch {self._task_id} --after {self._after} goes on from here."
