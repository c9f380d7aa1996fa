"""How an attempt ended: from a return value or an exception to the fields of a report."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from interlock.errors import Cancelled, HandlerSignal, NotJson, NotValid, Retryable, RunError, StepFailed, UnknownOutcome
from interlock.json_text import clean_text, decode, encode
from interlock.port import Stopped
from interlock.suspending import Suspend

if TYPE_CHECKING:
    from interlock.attempt import Attempt
    from interlock.spool import SpoolFile

TEXT_BYTES = 16 * 1024
LONGEST_RETRY = 30 * 86_400.0
RESULT_BYTES = 256 * 1024


@dataclass(slots=True, eq=False)
class Outcome:
    """One report to be sent. `body` holds the lease token: it goes to the service and the spool, and nowhere else."""

    task_id: str
    attempt_id: str
    body: bytes = field(repr=False)
    status: str
    attempt: Attempt | None = field(default=None, repr=False)
    file: SpoolFile | None = field(default=None, repr=False)
    not_before: float = 0.0
    tries: int = 0
    reason: str | None = None  # for the worker's log: why there is a failure although no handler raised

    def fail(self, code: str, text: str) -> Outcome:
        """A failure of the same attempt, in place of this."""
        ids, _, _ = self.body.partition(b',"outcome":"')
        return Outcome(
            self.task_id, self.attempt_id, ids + b',"outcome":"failed"' + write_error(code, text) + b"}", "failed", self.attempt
        )


@dataclass(slots=True)
class Release:
    """The attempt is given back."""

    attempt: Attempt
    reason: str

    def encode(self) -> bytes:
        """The item of a release call; whether the handler had started is told as it is."""
        started = b"true" if self.attempt.started else b"false"
        return self.attempt.ids + b',"started":' + started + b',"reason":' + encode(clean_text(self.reason, 255)) + b"}"


def conclude_return(attempt: Attempt, value: Any, result_bytes: int = RESULT_BYTES) -> Outcome:
    """The outcome of a handler that returned; a result that cannot be stored fails the task with a clear reason.

    Raises nothing: reading the value may run code of the user's, and an attempt without an outcome keeps its slot.
    """
    contract = attempt.handler.contract
    try:
        result = encode(value if contract is None else contract.write_output(value), "the result")
    except (NotJson, NotValid) as error:
        return refuse(attempt, "RESULT_NOT_STORABLE", str(error))
    except BaseException as error:
        text = f"the result cannot be read: {type(error).__name__}: {read_text(error)}"
        return refuse(attempt, "RESULT_NOT_STORABLE", text)
    if len(result) > result_bytes:
        text = f"the result has {len(result)} bytes, more than the limit of {result_bytes}; store it elsewhere and return a reference"
        return refuse(attempt, "RESULT_TOO_LARGE", text)
    return report(attempt, "succeeded", b',"result":' + result + write_orphans(attempt))


def refuse_input(attempt: Attempt, error: NotValid) -> Outcome:
    """The outcome of an attempt whose input the contract refuses: no retry can change it."""
    return refuse(attempt, "INPUT_NOT_VALID", str(error), {"pointer": error.pointer})


def refuse(attempt: Attempt, code: str, text: str, details: Mapping[str, Any] | None = None) -> Outcome:
    """A failure that is not the handler's own; its reason is for the worker's log too."""
    outcome = report(attempt, "failed", write_error(code, text, details))
    outcome.reason = f"{code}: {clean_text(text, TEXT_BYTES)}"
    return outcome


def conclude_error(attempt: Attempt, error: BaseException) -> Outcome | Release:
    """The outcome of a handler that raised. Raises nothing, whatever the exception does when it is looked at."""
    try:
        return judge_error(attempt, error)
    except BaseException:
        text = "the handler failed, and its failure cannot be told"
        return report(attempt, "failed", write_error(type(error).__name__, text))


def judge_error(attempt: Attempt, error: BaseException) -> Outcome | Release:
    """The outcome for an exception. What stopped the handler counts only where it did not say otherwise."""
    if isinstance(error, Suspend):
        return conclude_wait(attempt)
    if isinstance(error, UnknownOutcome):
        return report(attempt, "unknown", describe(error) + write_step(error.step))
    if isinstance(error, Retryable):
        return report(attempt, "retryable", describe(error) + write_delay(error.after))
    stopped = attempt.stop_reason is not None and isinstance(error, (Cancelled, asyncio.CancelledError, Stopped))
    if stopped:
        return conclude_stopped(attempt, error)
    if isinstance(error, Cancelled):
        return report(attempt, "cancelled", describe(error))
    retry = attempt.handler.retry
    if retry is not None and retry.on and isinstance(error, retry.on) and not isinstance(error, (StepFailed, RunError)):
        return report(attempt, "retryable", describe(error))
    return report(attempt, "failed", describe(error) + write_orphans(attempt))


def conclude_wait(attempt: Attempt) -> Outcome:
    """The outcome of a handler that waits. What it waited for steps beside it is taken off its own time."""
    run = attempt.run
    assert run is not None
    assert run.wait is not None
    wait = dict(run.wait)
    if "afterSeconds" in wait and run.lingered:
        wait["afterSeconds"] = max(0.0, wait["afterSeconds"] - run.lingered)
    return report(attempt, "suspended", b',"wait":' + encode(wait))


def write_step(step: str | None) -> bytes:
    """The `step` field of an unknown outcome."""
    return b"" if step is None else b',"step":' + encode(step)


def write_orphans(attempt: Attempt) -> bytes:
    """The `orphanedSteps` field: what is stored of an older program, and was not visited by this one."""
    orphans = attempt.run.orphans() if attempt.run is not None else []
    return b',"orphanedSteps":' + encode(orphans) if orphans else b""


def conclude_stopped(attempt: Attempt, error: BaseException) -> Outcome | Release:
    """The outcome of a handler that stopped because it was asked to."""
    reason = attempt.stop_reason or "cancel"
    said_clean = isinstance(error, Cancelled)
    unsafe = attempt.started and attempt.handler.effect_safety == "non-idempotent"
    if reason == "drain":
        return Release(attempt, "drain")
    if reason == "lease-doubt" and attempt.handler.reconcile is not None:
        return Release(attempt, "lease in doubt")  # the next attempt asks the hook first
    if unsafe and not said_clean:
        text = f"the handler was stopped ({reason}) after it had started; what it did outside is not known"
        return report(attempt, "unknown", write_error("STOPPED_UNSAFE", text))
    if reason == "lease-doubt":
        return Release(attempt, "lease in doubt")
    return report(attempt, "cancelled", describe(error) if said_clean else write_error("CANCELLED", f"stopped: {reason}"))


def report(attempt: Attempt, status: str, fields: bytes) -> Outcome:
    """A report of the attempt with fields already encoded."""
    body = attempt.ids + b',"outcome":"' + status.encode("ascii") + b'"' + fields + b"}"
    return Outcome(attempt.task_id, attempt.id, body, status, attempt)


def describe(error: BaseException) -> bytes:
    """The `error` field for an exception."""
    return b',"error":' + encode_exception(error)


def encode_exception(error: BaseException) -> bytes:
    """An exception as JSON: its own code if it has one, else its class; text that no report fails on."""
    code = getattr(error, "code", None)
    code = code if isinstance(code, str) and code.strip() else type(error).__name__
    text = read_text(error)
    details = getattr(error, "details", None)
    return encode_error(code, text or type(error).__name__, details if isinstance(details, Mapping) else None)


def read_text(error: BaseException) -> str:
    """The text of an exception; a `__str__` of the user's that fails must not take the report with it."""
    try:
        return str(error.message if isinstance(error, HandlerSignal) else error)
    except BaseException as broken:
        return f"(its text cannot be read: {type(broken).__name__})"


def write_error(code: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    """The `error` field."""
    return b',"error":' + encode_error(code, message, details)


def encode_error(code: str, message: str, details: Mapping[str, Any] | None = None) -> bytes:
    """An error as JSON; details that JSON cannot carry, or too many, are left out and said to be."""
    fields: dict[str, Any] = {"code": clean_code(code), "message": clean_text(message, TEXT_BYTES)}
    if details is not None:
        try:
            data = encode(dict(details))
            fields["details"] = decode(data) if len(data) <= 4 * TEXT_BYTES else {"omitted": "the details were too large"}
        except BaseException as error:  # the user's own mapping may raise anything
            fields["details"] = {"omitted": clean_text(read_text(error), 1024)}
    return encode(fields)


def write_delay(after: float | None) -> bytes:
    """The `retryAfterSeconds` field, within what the service takes."""
    if after is None or math.isnan(after):
        return b""
    return b',"retryAfterSeconds":' + encode(min(max(0.0, float(after)), LONGEST_RETRY))


def clean_code(code: str) -> str:
    """A failure code that can be stored."""
    text = "".join("\ufffd" if ord(letter) < 32 or ord(letter) == 127 else letter for letter in code)
    return clean_text(text, 255).strip() or "ERROR"
