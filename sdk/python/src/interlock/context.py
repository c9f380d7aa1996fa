"""What a handler is given beside its input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from interlock import clock
from interlock.children import Child, gather
from interlock.contract import TaskContract, make_submission
from interlock.errors import Cancelled
from interlock.handler import EffectSafety
from interlock.hands import is_coroutine_function, run_now
from interlock.json_text import clean_text
from interlock.notes import LINE_BYTES
from interlock.run import Run, check_name, current_step
from interlock.steps import Step, run_step
from interlock.tasks import read_time
from interlock.waits import MISSING, read_duration, read_instant, sleep, take_signal

if TYPE_CHECKING:
    from interlock.attempt import Attempt
    from interlock.retry import Retry

OpenRun = Callable[["Attempt", Any], Run]
"""Makes the run of an attempt, for the thread or task that its handler runs in."""

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
    """One attempt as its handler sees it.

    `step`, `sleep`, `sleep_until`, `wait_for_signal`, `child` and `gather` are plain calls in a sync handler, and awaited in
    an async one. What they gave is stored: when the run is resumed, by any worker, the handler is called again from its
    start and each of them gives the same again, without doing anything. Their names are shared by the whole task; one that
    is called again is numbered (`poll`, `poll-2`).
    """

    def __init__(self, attempt: Attempt, worker_id: str, news: Callable[[], None], open_run: OpenRun) -> None:
        self._attempt = attempt
        self._news = news
        self._open_run = open_run
        self.owner: Any = None
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

    def effect_key(self, name: str | None = None) -> str:
        """A key for an effect outside, the same in every attempt: for the idempotency keys of other systems.

        Inside a step, `name` is the step's name unless another is given. Raises ValueError where there is none.
        """
        name = current_step.get() if name is None else name
        if name is None:
            raise ValueError("outside a step an effect key needs a name: ctx.effect_key('charge')")
        scope = self._attempt.claim.get("effectScope") or self._attempt.task_id
        return f"{scope}/{name}"

    # ---- durable runs

    @property
    def run(self) -> Run:
        """What the attempt knows of its durable past; made when it is first asked for."""
        attempt = self._attempt
        if attempt.run is None:
            return attempt.keep_run(self._open_run(attempt, self.owner))
        return attempt.run

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        effect_safety: EffectSafety | None = None,
        retry: Retry | None = None,
        reconcile: Callable[..., Any] | None = None,
        key: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call `fn(*args, **kwargs)` once and for all: what it gives (as JSON has it) is stored, and given again on a replay.

        In an async handler a sync `fn` runs in a thread. `effect_safety` says what a second run of it would do, where that
        is not what the handler declares. `non-idempotent`: that it starts is stored first; after a crash inside, it is not run
        again: `reconcile(*args, **kwargs)` is asked and gives Happened(result), DidNotHappen() or CannotTell(), and without
        an answer the task is `outcome-unknown`, naming the step. `retry` tries it again here, while the lease is held;
        tries are counted over all attempts. `key` tells calls of one name apart that may run at the same time.

        Raises StepFailed for a failure, which is stored as well and raised again on a replay; Retryable (or what the handler's
        `retry.on` names) is no failure of the step for good: it ends the attempt, and the next one tries again.
        """
        run = self.run
        safety = effect_safety or run.attempt.handler.effect_safety
        step = Step(fn, args, kwargs, safety, retry, reconcile)
        check_step(name, step, run.is_async)
        call = run.allot(name, key)
        return run.begin_lasting(call, lambda: run_step(run, call, step))

    def sleep(self, seconds: float | timedelta, *, name: str = "sleep") -> Any:
        """Go on so many seconds later, on whichever worker is free then; no slot is held meanwhile."""
        condition = {"afterSeconds": read_duration(seconds, "a sleep")}
        call = self.run.allot(name)
        return self.run.begin(call, sleep(self.run, call, condition))

    def sleep_until(self, when: datetime | str, *, name: str = "sleep-until") -> Any:
        """Go on at an instant (a datetime with a zone, or RFC 3339), by the service's clock."""
        condition = {"until": read_instant(when)}
        call = self.run.allot(name)
        return self.run.begin(call, sleep(self.run, call, condition))

    def wait_for_signal(self, name: str, *, timeout: float | timedelta | None = None, default: Any = MISSING) -> Any:
        """The payload of the oldest signal `name` that no wait has taken yet: at once if it came before, else when it comes.

        Raises WaitTimeout after `timeout` seconds, or gives `default` if one is passed.
        """
        check_name(name)
        seconds = None if timeout is None else read_duration(timeout, "a timeout")
        call = self.run.allot(f"signal:{name}")
        return self.run.begin(call, take_signal(self.run, call, name, seconds, default))

    def child(
        self,
        type: str | TaskContract[Any, Any],
        *given: Any,
        name: str | None = None,
        detached: bool = False,
        **options: Any,
    ) -> Child:
        """Submit a task of its own: `child(type, schema_version, input, …)` or `child(contract, input, …)`.

        It is submitted once under its `name` (absent: its type) and cancelled with this task, unless it is `detached`. The
        options are those of SubmitOptions without the idempotency key. `gather` or `.result()` wait for it. In an async
        handler it is submitted when it is awaited or gathered. Raises NotJson or NotValid for its input.
        """
        if "idempotency_key" in options:
            raise TypeError("a child has no idempotency key: its name within the run is its key")
        submission = make_submission(type, *given, **options)
        run = self.run
        call = run.allot(submission.type if name is None else name, at_once=True)
        child = Child(run, call, submission, detached)
        if not run.is_async:
            run_now(child.submitted())
        return child

    def gather(self, *children: Child, return_exceptions: bool = False, name: str = "gather") -> Any:
        """The children's results, in order, once all have ended; no slot is held meanwhile.

        Raises GatherFailed with all that came of them if one has no result; with `return_exceptions`, its ChildFailed
        stands in its place.
        """
        if not all(isinstance(child, Child) for child in children):
            raise TypeError("gather takes what ctx.child gave; steps are gathered by asyncio.gather")
        run = self.run
        call = run.allot(name)
        return run.begin(call, gather(run, call, children, return_exceptions))

    def patched(self, name: str) -> bool:
        """Whether to go the new way where a program was changed: False for a run that went past this place before.

        A plain call in every handler. New runs are marked, so that they stay on the new way.
        """
        return self.run.is_patched(check_name(name))


def check_step(name: str, step: Step, is_async: bool) -> None:
    """Raises ValueError or TypeError for a step that cannot be meant."""
    if step.effect_safety not in get_args(EffectSafety):
        raise ValueError(f"the step {name!r}: effect_safety is {', '.join(get_args(EffectSafety))}, got {step.effect_safety!r}")
    if step.unsafe and step.retry is not None:
        raise ValueError(f"the step {name!r} is non-idempotent: a failure of it is final, and `retry` would have no meaning")
    if not callable(step.fn):
        raise TypeError(f"the step {name!r} needs a function and its arguments, not what the function gave ({step.fn!r})")
    if not is_async and any(is_coroutine_function(fn) for fn in (step.fn, step.reconcile) if fn is not None):
        raise TypeError(f"the step {name!r}: a coroutine function needs an async handler")
