"""Exit statuses: one table, which `--help` and the documentation show."""

from __future__ import annotations

from enum import IntEnum

from interlock.errors import ApiError, ConfigurationError, InterlockError, NotJson, SpoolError, Unreachable


class ExitCode(IntEnum):
    """What the command's exit status means; `MEANINGS` says it in words."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    DENIED = 5
    FAILED = 6
    CANCELLED = 7
    OUTCOME_UNKNOWN = 8
    TIMEOUT = 9
    CONFLICT = 10
    ATTENTION = 11
    BROKEN = 12
    SPOOL = 13
    DECLINED = 14
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    TERMINATED = 143


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done; a task that was waited for succeeded",
    ExitCode.UNEXPECTED: "a fault of this program, or its output could not be written",
    ExitCode.USAGE: "wrong arguments, input that is not JSON, no URL or key set",
    ExitCode.UNREACHABLE: "the service cannot be reached, or is not available now",
    ExitCode.REFUSED: "the service refused the call",
    ExitCode.DENIED: "the key is unknown, revoked, expired, or may not do this",
    ExitCode.FAILED: "the task failed",
    ExitCode.CANCELLED: "the task was cancelled",
    ExitCode.OUTCOME_UNKNOWN: "the task's outcome is unknown; it needs `tasks resolve`",
    ExitCode.TIMEOUT: "the time given by --timeout was over; the task goes on",
    ExitCode.CONFLICT: "the state of the task, or an idempotency key, does not allow it (409)",
    ExitCode.ATTENTION: "doctor: something needs attention",
    ExitCode.BROKEN: "doctor: something is broken",
    ExitCode.SPOOL: "the spool folder cannot be read or used",
    ExitCode.DECLINED: "asked whether to do it, somebody said no; nothing was done",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
    ExitCode.OUTPUT_CLOSED: "the reader of the output went away",
    ExitCode.TERMINATED: "ended by SIGTERM (worker run drains instead, and ends with 0)",
}

OF_STATUS: dict[str, ExitCode] = {
    "succeeded": ExitCode.OK,
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.CANCELLED,
    "outcome-unknown": ExitCode.OUTCOME_UNKNOWN,
}
"""The exit status for the end of a task that was waited for or watched."""


class CommandFailed(Exception):
    """A command ends here with a message of its own. `next` says what can be done now."""

    def __init__(self, message: str, code: ExitCode, *, next: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.next = next


def exit_code(error: BaseException) -> ExitCode:
    """The exit status that stands for an error."""
    if isinstance(error, CommandFailed):
        return error.code
    if isinstance(error, ApiError):
        return refusal_code(error)
    if isinstance(error, Unreachable):
        return ExitCode.UNREACHABLE
    if isinstance(error, (ConfigurationError, NotJson)):
        return ExitCode.USAGE
    if isinstance(error, SpoolError):
        return ExitCode.SPOOL
    return ExitCode.REFUSED if isinstance(error, InterlockError) else ExitCode.UNEXPECTED


def refusal_code(error: ApiError) -> ExitCode:
    """The exit status for an answer that is an error."""
    if error.code.startswith("HTTP_"):  # Not the service itself: a proxy, a portal, another server at that URL.
        return ExitCode.UNREACHABLE
    if error.code.startswith("NO_ELIGIBLE"):  # The service is well; it was asked to refuse without a worker.
        return ExitCode.REFUSED
    if error.status in (401, 403):
        return ExitCode.DENIED
    if error.status == 409:
        return ExitCode.CONFLICT
    if error.status == 429 or error.status >= 500:
        return ExitCode.UNREACHABLE
    return ExitCode.REFUSED


def exit_table() -> str:
    """The table for `--help`: plain ASCII, one line each."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
