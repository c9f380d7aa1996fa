"""What a handler is given beside its input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from interlock import clock
from interlock.errors import Cancelled
from interlock.json_text import clean_text
from interlock.notes import LINE_BYTES
from interlock.tasks import read_time

if TYPE_CHECKING:
    from interlock.attempt import Attempt

task_log = logging.getLogger("interlock.task")


class TaskLog:
    """Lines for the task's journal; they also go to the logger `interlock.task`. Keyword arguments become fields."""

    def __init__(self, attempt: Attempt, news: Callable[[], None]) -> None:
        self._attempt = attempt
        self._news = news

    def debug(self, message: str, *args: object, **fields: Any) -> None:
        """Log at level debug; `args` are put into the message with `%`."""
        self._write("debug", message, args, fields)

    def info(self, message: str, *args: object, **fields: Any) -> None:
        """Log at level info."""
        self._write("info", message, args, fields)

    def warning(self, message: str, *args: object, **fields: Any) -> None:
        """Log at level warning."""
        self._write("warning", message, args, fields)

    def error(self, message: str, *args: object, **fields: Any) -> None:
        """Log at level error."""
        self._write("error", message, args, fields)

    def _write(self, level: str, message: str, args: tuple[object, ...], fields: Mapping[str, Any]) -> None:
        try:
            text = str(message) % args if args else str(message)
        except (TypeError, ValueError):  # A format that does not fit its arguments must not fail the task.
            text = f"{message} {args!r}"
        text = clean_text(text, LINE_BYTES)
        self._attempt.take_notes().add_line(level, text, fields)
        task_log.log(logging.getLevelName(level.upper()), "%s: %s", self._attempt.task_id, text)
        self._news()


class TaskContext:
    """One attempt as its handler sees it."""

    def __init__(self, attempt: Attempt, worker_id: str, news: Callable[[], None]) -> None:
        self._attempt = attempt
        self._news = news
        self.worker_id = worker_id
        self.log = TaskLog(attempt, news)

    def __repr__(self) -> str:
        return f"TaskContext(task_id={self.task_id!r}, attempt={self.attempt})"

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._attempt.task_id

    @property
    def attempt_id(self) -> str:
        """The attempt's id."""
        return self._attempt.id

    @property
    def type(self) -> str:
        """The task's type."""
        return self._attempt.handler.type

    @property
    def schema_version(self) -> int:
        """The schema version of the input."""
        return self._attempt.handler.schema_version

    @property
    def input(self) -> Any:
        """The task's input."""
        return self._attempt.claim.get("input")

    @property
    def tags(self) -> Mapping[str, str]:
        """The task's tags."""
        return self._attempt.claim.get("tags") or {}

    @property
    def trace(self) -> Mapping[str, Any] | None:
        """The trace context given with the submission."""
        return self._attempt.claim.get("trace")

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return int(self._attempt.claim.get("attemptNumber") or 1)

    @property
    def max_attempts(self) -> int:
        """How many attempts the task has in all."""
        return int(self._attempt.claim.get("maxAttempts") or 1)

    @property
    def deadline(self) -> datetime | None:
        """When the attempt has to end (UTC, the service's clock), if the task has a timeout."""
        return read_time(self._attempt.claim.get("deadlineAt"))

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, on this machine's clock; None without a timeout."""
        return None if self._attempt.deadline is None else self._attempt.deadline - clock.now()

    @property
    def cancelled(self) -> bool:
        """Whether the handler is to stop: look often, stop soon, and raise `Cancelled` if nothing is half done."""
        return self._attempt.stop_reason is not None

    @property
    def cancel_reason(self) -> str | None:
        """Why it is to stop: `cancel`, `timeout`, `drain`, `lease-doubt` or `stale`."""
        return self._attempt.stop_reason

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the handler is to stop."""
        if self._attempt.stop_reason is not None:
            raise Cancelled(f"stopped: {self._attempt.stop_reason}")

    def wait_for_cancel(self, seconds: float | None = None) -> bool:
        """Block for so many seconds, or until the handler is to stop; whether it is. For sync handlers that wait."""
        return self._attempt.wait_stop(seconds)

    def progress(self, percent: float | None = None, message: str | None = None) -> None:
        """Tell how far the work is (0 to 100). Cheap: the latest one is sent, about once a second."""
        self._attempt.take_notes().set_progress(percent, message)
        self._news()

    def effect_key(self, name: str) -> str:
        """A key for an effect outside, the same in every attempt: for the idempotency keys of other systems."""
        scope = self._attempt.claim.get("effectScope") or self._attempt.task_id
        return f"{scope}/{name}"
