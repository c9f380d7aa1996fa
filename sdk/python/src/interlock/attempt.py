"""One leased execution of a task, as the worker holds it from the claim to the end of its report."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Literal

from interlock.answers import as_seconds
from interlock.errors import NotValid
from interlock.notes import Notes
from interlock.tasks import read_time

if TYPE_CHECKING:
    from interlock.context import TaskContext
    from interlock.handler import Handler
    from interlock.run import Run

StopReason = Literal["cancel", "timeout", "drain", "lease-doubt", "stale"]


class InputRefused(Exception):
    """A contract refused the input of an attempt; apart from what handlers raise, which may be NotValid too."""

    def __init__(self, reason: NotValid) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Attempt:
    """An attempt and what happened to it here. Its repr shows no token.

    `renewed_at` is the instant (interlock.clock) at which the last good renewal, or the claim, was *sent*: the lease
    cannot have ended before `renewed_at + lease_seconds`. `sent` turns true with the first report: from then on only
    the report's own answer says what became of it.
    """

    __slots__ = (
        "_cancel",
        "_lock",
        "claim",
        "context",
        "deadline",
        "doubted",
        "finished",
        "handler",
        "id",
        "ids",
        "lease_seconds",
        "notes",
        "pid",
        "renewed_at",
        "run",
        "sent",
        "started",
        "stop_reason",
        "stopping",
        "task_id",
    )

    def __init__(self, claim: Mapping[str, Any], handler: Handler, sent_at: float, received_at: float, server_time: str) -> None:
        self.claim = claim
        self.handler = handler
        self.id: str = claim["attemptId"]
        self.task_id: str = claim["taskId"]
        self.lease_seconds = max(1.0, as_seconds(claim.get("leaseSeconds"), 60.0))
        self.renewed_at = sent_at
        self.ids = encode_ids(claim)
        self.notes: Notes | None = None
        self.context: TaskContext | None = None
        self.run: Run | None = None
        self.pid = os.getpid()  # a child that its handler forks holds no lease
        self.started = False
        self.finished = False
        self.sent = False
        self.doubted = False
        self.stop_reason: StopReason | None = None
        self.stopping: threading.Event | None = None
        self.deadline = local_deadline(claim.get("deadlineAt"), server_time, received_at)
        self._cancel: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Attempt(id={self.id!r}, task_id={self.task_id!r}, type={self.handler.type!r})"

    def stop(self, reason: StopReason) -> bool:
        """Ask the handler to stop; True if it had not been asked before. A stale lease overrides every other reason."""
        with self._lock:
            first = self.stop_reason is None
            if not first and reason != "stale":
                return False
            self.stop_reason = reason
            if self.stopping is not None:
                self.stopping.set()
            cancel = self._cancel
        if first and cancel is not None:
            cancel()
        return first

    def on_stop(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` when the handler is to stop; at once if that has been said already."""
        with self._lock:
            self._cancel = cancel
            late = self.stop_reason is not None
        if late:
            cancel()

    def wait_stop(self, seconds: float | None) -> bool:
        """Wait until the handler is to stop; False if the time was over first."""
        with self._lock:
            if self.stop_reason is not None:
                return True
            if self.stopping is None:
                self.stopping = threading.Event()
            event = self.stopping
        return event.wait(seconds)

    def keep_run(self, run: Run) -> Run:
        """The attempt's run: this one, unless another thread of the handler made one first."""
        with self._lock:
            if self.run is None:
                self.run = run
            return self.run

    def read_input(self) -> Any:
        """The input as the handler gets it. Raises InputRefused where its contract refuses it."""
        value, contract = self.claim.get("input"), self.handler.contract
        if contract is None:
            return value
        try:
            return contract.read_input(value)
        except NotValid as error:
            raise InputRefused(error) from None

    def take_notes(self) -> Notes:
        """Where the handler's progress and log lines gather, made when they are first needed."""
        with self._lock:
            if self.notes is None:
                self.notes = Notes()
            return self.notes


def encode_ids(claim: Mapping[str, Any]) -> bytes:
    """The fields that every report carries, as the open beginning of a JSON object."""
    task, attempt, token = (encode_basestring_ascii(str(claim[name])) for name in ("taskId", "attemptId", "leaseToken"))
    return f'{{"taskId":{task},"attemptId":{attempt},"fence":{int(claim["fence"])},"leaseToken":{token}'.encode("ascii")


def local_deadline(deadline_at: Any, server_time: str, received_at: float) -> float | None:
    """The attempt's deadline on our clock, never before the service's own: its time was read before we received it."""
    if deadline_at is None:
        return None
    deadline, told = read_time(deadline_at), read_time(server_time)
    if deadline is None or told is None:
        return None
    return received_at + max(0.0, (deadline - told).total_seconds())
