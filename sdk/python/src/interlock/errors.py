"""Everything that this package raises, in one tree.

    InterlockError
    ├── ConfigurationError      no URL, no key, a key with characters that no key has, a URL that redirects
    ├── NotJson                 a value that JSON cannot carry; says where it stands (also a ValueError)
    ├── NotValid                a value that a contract refuses; says where it stands (also a ValueError)
    ├── ApiError                the service answered with an error: code, status, retryable, next, request_id, errors
    ├── Unreachable             no usable answer within the time limit (also a ConnectionError)
    ├── TaskError               a task did not end well; carries .task
    │   ├── TaskFailed
    │   ├── TaskCancelled
    │   └── OutcomeUnknown
    ├── StepFailed              a step failed for good: code, message, details, step; the same on every replay
    ├── WaitTimeout             a signal did not come in time (also a TimeoutError)
    ├── ChildFailed             a child did not end well: name, task_id, status, code, message, details
    ├── GatherFailed            at least one of several children did not end well; carries all that came of them
    ├── RunError                the program of a durable run broke a rule, or a limit; code says which
    ├── SpoolError              the spool folder cannot be used
    │   └── SpoolLocked         another process uses it
    └── HandlerSignal           raised by handlers, to say how an attempt ended
        ├── Retryable           try again later
        ├── UnknownOutcome      an effect may have happened, and we cannot tell
        └── Cancelled           stopped, and nothing was left half done

Keys and lease tokens are in no message, attribute or repr of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interlock.tasks import Task

__all__ = [
    "ApiError",
    "Cancelled",
    "ChildFailed",
    "ConfigurationError",
    "GatherFailed",
    "HandlerSignal",
    "InterlockError",
    "NotJson",
    "NotValid",
    "OutcomeUnknown",
    "Retryable",
    "RunError",
    "SpoolError",
    "SpoolLocked",
    "StepFailed",
    "TaskCancelled",
    "TaskError",
    "TaskFailed",
    "UnknownOutcome",
    "Unreachable",
    "WaitTimeout",
]


class InterlockError(Exception):
    """The root of every error of this package."""


class ConfigurationError(InterlockError):
    """The URL, the key or the profile cannot work; the message says what to change."""


class NotJson(InterlockError, ValueError):
    """A value that JSON cannot carry. `pointer` is the JSON Pointer of the offending place."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class NotValid(InterlockError, ValueError):
    """A value that the contract of its task type refuses. `pointer` is the JSON Pointer of the offending place."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(f"{pointer or '/'}: {message}")
        self.pointer = pointer


class ApiError(InterlockError):
    """The service answered with an error.

    `code` is one of the protocol's codes, or `HTTP_<status>` when the answer did not come from the service itself
    (a proxy's page, say). `retryable` is true only where the same request may succeed later. `next` says, in one
    sentence, what can be done now. `errors` lists the offending fields as `{"pointer", "message"}`.
    """

    def __init__(
        self,
        *,
        code: str,
        status: int,
        detail: str = "",
        title: str = "",
        retryable: bool = False,
        next: str = "",
        request_id: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        retry_after: float | None = None,
        problem: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code
        self.status = status
        self.title = title
        self.detail = detail
        self.retryable = retryable
        self.next = next
        self.request_id = request_id
        self.errors = [dict(item) for item in errors]
        self.retry_after = retry_after
        self.problem = dict(problem or {})
        super().__init__(self.describe())

    def describe(self) -> str:
        """The error as one line for people."""
        parts = [f"{self.code} ({self.status})"]
        text = self.detail or self.title
        if text:
            parts.append(f": {text}")
        # A single error's message is the detail itself, as a rule: its place is enough then.
        for item in self.errors[:5]:
            message = str(item.get("message", ""))
            parts.append(f" [{item.get('pointer', '')}]" if message in text else f" [{item.get('pointer', '')}: {message}]")
        if self.next:
            parts.append(f" {self.next}" if text.endswith((".", "!", "?")) and not self.errors else f". {self.next}")
        if self.request_id:
            parts.append(f" (request {self.request_id})")
        return "".join(parts)


class Unreachable(InterlockError, ConnectionError):
    """No usable answer within the time limit. The request may or may not have been carried out; repeating is safe."""


class TaskError(InterlockError):
    """A task ended without a result. `task` is the task as last read."""

    def __init__(self, task: Task) -> None:
        self.task = task
        reason = f": {task.failure}" if task.failure else ""
        super().__init__(f"task {task.id} ({task.type}@{task.schema_version}) is {task.status}{reason}")


class TaskFailed(TaskError):
    """The task failed for good; `task.failure` says why."""


class TaskCancelled(TaskError):
    """The task was cancelled."""


class OutcomeUnknown(TaskError):
    """An effect of the task may or may not have happened; a person (or a reconcile hook) has to settle it."""


class StepFailed(InterlockError):
    """A step failed for good: raised where it is called, and again wherever the run is resumed.

    `code` is the error's own code or the name of its class; `step` is the step's name. On the first run the step's own
    exception is its `__cause__`.
    """

    def __init__(self, step: str, code: str, message: str = "", details: Any = None) -> None:
        super().__init__(f"the step {step!r} failed: {message or code}")
        self.step = step
        self.code = code
        self.message = message
        self.details = details


class WaitTimeout(InterlockError, TimeoutError):
    """The signal `signal` did not come within the wait's time."""

    code = "WAIT_TIMEOUT"

    def __init__(self, signal: str, wait: str) -> None:
        super().__init__(f"the signal {signal!r} did not come in time")
        self.signal = signal
        self.wait = wait


class ChildFailed(InterlockError):
    """A child ended without a result: `status` is `failed` or `cancelled`, `code` that of its failure."""

    def __init__(self, name: str, task_id: str, status: str, code: str, message: str = "", details: Any = None) -> None:
        super().__init__(f"the child {name!r} (task {task_id}) is {status}: {code}: {message}")
        self.name = name
        self.task_id = task_id
        self.status = status
        self.code = code
        self.message = message
        self.details = details


class GatherFailed(InterlockError):
    """Some of the gathered children ended without a result. `results` has, in order, each one's result or its ChildFailed."""

    code = "CHILDREN_FAILED"

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = list(results)
        self.failures = [item for item in results if isinstance(item, ChildFailed)]
        super().__init__("; ".join(str(item) for item in self.failures[:5]) + ("; …" if len(self.failures) > 5 else ""))


class RunError(InterlockError):
    """A durable run cannot go on, since its program broke a rule or a limit; the task fails with `code`.

    `REPEATED_NAME`, `STEP_IN_STEP`, `STEP_KIND_CHANGED`, `NOT_AWAITED`, `WRONG_THREAD`, `WRONG_PROCESS`, `WAIT_NOT_ALLOWED`,
    `SUSPEND_SWALLOWED`, or the code with which the service refused (`LIMIT_EXCEEDED`, `PAYLOAD_TOO_LARGE`, …). Catching it
    does not undo it.
    """

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = dict(details) if details is not None else None


class SpoolError(InterlockError):
    """The spool folder cannot be used."""


class SpoolLocked(SpoolError):
    """Another process holds the spool folder."""


class HandlerSignal(InterlockError):
    """Raised by a handler to say how its attempt ended. `code` and `details` go into the task's failure."""

    default_code = "HANDLER_SIGNAL"

    def __init__(self, message: str = "", *, code: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details = dict(details) if details is not None else None


class Retryable(HandlerSignal):
    """The attempt failed, and another may succeed. `after` is the delay in seconds (absent: the task's backoff)."""

    default_code = "RETRYABLE"

    def __init__(
        self,
        message: str = "",
        *,
        after: float | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, code=code, details=details)
        self.after = after


class UnknownOutcome(HandlerSignal):
    """An effect may have happened and the handler cannot tell: never repeated automatically.

    Raised inside a step, `step` is the step's name.
    """

    default_code = "UNKNOWN_OUTCOME"
    step: str | None = None


class Cancelled(HandlerSignal):
    """The handler stopped because it was asked to, and left nothing half done."""

    default_code = "CANCELLED"
