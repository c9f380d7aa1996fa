"""`interlock tasks watch`: a task's journal as it grows, until the task's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from interlock.backoff import growing_delay
from interlock.cli.exits import OF_STATUS, CommandFailed, ExitCode
from interlock.cli.options import command
from interlock.cli.session import READERS, Session
from interlock.cli.show import View, moment, show_end, state_text, type_of
from interlock.cli.tasks import TaskId, show_event
from interlock.cli.values import read_duration
from interlock.client import Client
from interlock.errors import ApiError, Unreachable
from interlock.producer import task_path
from interlock.task import Task

ENDS = frozenset(OF_STATUS)


def add_to(group: typer.Typer) -> None:
    """Add the command to its group."""
    command(group, "watch")(watch)


def watch(
    session: Session,
    task_id: TaskId,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Only events behind this one.")] = 0,
    timeout: Annotated[str | None, typer.Option(metavar="S", help="No longer than this (90, 15m, 2h).")] = None,
) -> int:
    """Watch a task until its end; the exit status tells it. With --json, one event a line, then one line of kind "end"."""
    out = session.out
    follower = Follower(session.client(*READERS), task_id, after, read_duration(timeout, "--timeout"), out.notice)
    if not out.json:
        view = follower.look()
        out.lines(f"{view['id']} {type_of(view)} created {moment(view.get('createdAt'))}")
    with out.status(f"watching {task_id}") as say:
        follower.on_state = lambda view: say(status_words(view))
        for event in follower.events():
            if out.json:
                out.record(event)
            else:
                show_event(session, event, exact=True)
    view = follower.view
    if out.json:
        out.record({"kind": "end", "status": view.get("status"), "settled": view.get("settled"), "task": view})
    else:
        show_end(out, view)
    return OF_STATUS.get(str(view.get("status")), ExitCode.UNEXPECTED)


def status_words(view: View) -> str:
    """The moving line."""
    return " · ".join(word for word in (str(view.get("status")), state_text(view)) if word)


class Follower:
    """The journal of one task, event by event. `view` is the task as last read; `on_state` hears of each reading."""

    def __init__(self, client: Client, task_id: str, after: int, timeout: float | None, notice: Callable[[str], None]) -> None:
        self.view: dict[str, Any] = {}
        self.on_state: Callable[[View], None] = lambda _: None
        self._client = client
        self._path = task_path(task_id)
        self._task_id = task_id
        self._after = after
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._notice = notice
        self._out_of_reach = False

    def look(self) -> dict[str, Any]:
        """The task as it is now. Raises as Client.request."""
        self.view = self._client.request("GET", self._path)
        self.on_state(self.view)
        return self.view

    def events(self) -> Iterator[dict[str, Any]]:
        """Every event behind `after`, until the task has ended and all was told.

        An outage between two readings is told and waited out. Raises CommandFailed when the time is over.
        """
        quiet = 0
        if not self.view:
            self.look()
        while True:
            told = self._after
            yield from self._guarded(self._read_events)
            if self._ended():
                return
            self._check_time()
            quiet = 0 if self._after > told else quiet + 1
            self._pause(growing_delay(quiet, 0.1, 2.0, 1.5))
            self._guarded(self._read_state)

    def _ended(self) -> bool:
        # The view may be older than the journal that was read after it, never the other way round.
        return Task.read(self.view).ended and self._after >= int(self.view.get("journalSeq") or 0)

    def _read_events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self._client.request("GET", f"{self._path}/journal", params={"after": self._after, "limit": 200})
            found += page["items"]
            if page["items"]:
                self._after = int(page["items"][-1]["seq"])
            if not page.get("nextCursor") or len(found) >= 1000:
                return found

    def _read_state(self) -> list[dict[str, Any]]:
        self.look()
        return []

    def _guarded(self, read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What was read; nothing during an outage, which is said once."""
        try:
            found = read()
        except (Unreachable, ApiError) as error:
            if isinstance(error, ApiError) and not error.retryable:
                raise
            if not self._out_of_reach:
                self._notice(f"{error}; still trying")
            self._out_of_reach = True
            return []
        if self._out_of_reach:
            self._notice("the service answers again")
        self._out_of_reach = False
        return found

    def _check_time(self) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise CommandFailed(
                f"the time is over; the task is {self.view.get('status')} and goes on",
                ExitCode.TIMEOUT,
                next=f"interlock tasks watch {self._task_id} --after {self._after} goes on from here.",
            )

    def _pause(self, seconds: float) -> None:
        left = seconds if self._deadline is None else max(0.0, min(seconds, self._deadline - time.monotonic()))
        time.sleep(left)
