"""What the service tells about tasks, as plain dataclasses: every field of protocol.md §3, in snake_case.

Fields that this version does not know are kept in `raw` and otherwise ignored, so that a newer service stays readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

UNSETTLED = frozenset({"queued", "running", "waiting"})
"""Statuses in which a wait goes on; `outcome-unknown` is unsettled too, but waits end with it."""


def read_time(value: Any) -> datetime | None:
    """A time of the protocol (RFC 3339, UTC) as an aware datetime; None for None and for what is none."""
    if not isinstance(value, str):
        return None
    text = value.strip().replace("Z", "+00:00").replace("z", "+00:00")
    head, dot, tail = text.partition(".")
    if dot:  # Python 3.10 takes exactly three or six digits.
        digits = len(tail) - len(tail.lstrip("0123456789"))
        text = f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def write_time(value: datetime | str) -> str:
    """A time for the protocol. A datetime without a zone is refused: it means another instant on each machine."""
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError("a time needs a zone: datetime.now(timezone.utc) has one, datetime.now() has none")
    return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Failure:
    """Why a task failed, was cancelled or is unknown."""

    code: str
    message: str
    details: Any = None
    attempt_id: str | None = None

    def __str__(self) -> str:
        """`CODE: message`, and what the last attempt failed of, where that is the cause."""
        last = Failure.read(self.details.get("last")) if isinstance(self.details, Mapping) else None
        return f"{self.code}: {self.message}" + (f"; the last one of {last}" if last is not None else "")

    @classmethod
    def read(cls, value: Any) -> Failure | None:
        """The failure in an answer; None for null."""
        if not isinstance(value, Mapping):
            return None
        return cls(str(value.get("code", "")), str(value.get("message", "")), value.get("details"), value.get("attemptId"))


@dataclass(frozen=True)
class Progress:
    """The last progress that a handler told."""

    percent: float | None
    message: str | None
    at: datetime | None

    @classmethod
    def read(cls, value: Any) -> Progress | None:
        """The progress in an answer; None for null."""
        if not isinstance(value, Mapping):
            return None
        return cls(value.get("percent"), value.get("message"), read_time(value.get("at")))


@dataclass(frozen=True)
class Attempt:
    """The latest attempt of a task. Times are UTC."""

    id: str
    number: int
    fence: int
    worker_id: str | None = None
    instance_id: str | None = None
    effect_safety: str | None = None
    started_at: datetime | None = None
    lease_expires_at: datetime | None = None
    deadline_at: datetime | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, value: Any) -> Attempt | None:
        """The attempt in an answer; None for null."""
        if not isinstance(value, Mapping):
            return None
        return cls(
            id=str(value.get("id", "")),
            number=value.get("number", 0),
            fence=value.get("fence", 0),
            worker_id=value.get("workerId"),
            instance_id=value.get("instanceId"),
            effect_safety=value.get("effectSafety"),
            started_at=read_time(value.get("startedAt")),
            lease_expires_at=read_time(value.get("leaseExpiresAt")),
            deadline_at=read_time(value.get("deadlineAt")),
            raw=value,
        )


@dataclass(frozen=True)
class Task:
    """One durable piece of work, as last read. `settled` is true once it has its final status."""

    id: str
    type: str
    schema_version: int
    status: str
    settled: bool
    project: str = ""
    pool: str = "default"
    priority: int = 0
    input: Any = field(default=None, repr=False)
    result: Any = field(default=None, repr=False)
    failure: Failure | None = None
    progress: Progress | None = None
    attempt: Attempt | None = None
    attempts: int = 0
    retry: Mapping[str, Any] | None = field(default=None, repr=False)
    lease_seconds: float | None = None
    timeout_seconds: float | None = None
    start_deadline_seconds: float | None = None
    concurrency: Mapping[str, Any] | None = None
    created_at: datetime | None = None
    due_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested: bool = False
    idempotency_key: str | None = None
    deduplicated: bool = False
    duplicate: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, Any] | None = field(default=None, repr=False)
    rerun_of: str | None = None
    parent_id: str | None = None
    schedule_owner: str | None = None
    schedule_name: str | None = None
    effect_scope: str | None = None
    journal_seq: int = 0
    warnings: tuple[Mapping[str, Any], ...] = ()
    waiting: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def succeeded(self) -> bool:
        """Whether there is a result."""
        return self.status == "succeeded"

    @property
    def ended(self) -> bool:
        """Whether a wait ends: settled, or `outcome-unknown`."""
        return self.settled or self.status not in UNSETTLED

    @classmethod
    def read(cls, view: Mapping[str, Any]) -> Task:
        """The task in an answer of the service."""
        return cls(
            id=str(view.get("id", "")),
            type=str(view.get("type", "")),
            schema_version=view.get("schemaVersion", 0),
            status=str(view.get("status", "")),
            settled=bool(view.get("settled", False)),
            project=view.get("project") or "",
            pool=view.get("pool") or "default",
            priority=view.get("priority") or 0,
            input=view.get("input"),
            result=view.get("result"),
            failure=Failure.read(view.get("failure")),
            progress=Progress.read(view.get("progress")),
            attempt=Attempt.read(view.get("attempt")),
            attempts=view.get("attempts") or 0,
            retry=view.get("retry"),
            lease_seconds=view.get("leaseSeconds"),
            timeout_seconds=view.get("timeoutSeconds"),
            start_deadline_seconds=view.get("startDeadlineSeconds"),
            concurrency=view.get("concurrency"),
            created_at=read_time(view.get("createdAt")),
            due_at=read_time(view.get("dueAt")),
            started_at=read_time(view.get("startedAt")),
            finished_at=read_time(view.get("finishedAt")),
            cancel_requested=bool(view.get("cancelRequested", False)),
            idempotency_key=view.get("idempotencyKey"),
            deduplicated=bool(view.get("deduplicated", False)),
            duplicate=bool(view.get("duplicate", False)),
            tags=view.get("tags") or {},
            trace=view.get("trace"),
            rerun_of=view.get("rerunOf"),
            parent_id=view.get("parentId"),
            schedule_owner=view.get("scheduleOwner"),
            schedule_name=view.get("scheduleName"),
            effect_scope=view.get("effectScope"),
            journal_seq=view.get("journalSeq") or 0,
            warnings=tuple(item for item in view.get("warnings") or () if isinstance(item, Mapping)),
            waiting=view.get("waiting"),
            raw=view,
        )


@dataclass(frozen=True)
class JournalEvent:
    """One event of a task's journal; `seq` is gapless from 1."""

    seq: int
    at: datetime | None
    kind: str
    attempt_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> JournalEvent:
        """The event in an answer of the service."""
        return cls(
            seq=value.get("seq", 0),
            at=read_time(value.get("at")),
            kind=str(value.get("kind", "")),
            attempt_id=value.get("attemptId"),
            data=value.get("data") or {},
            raw=value,
        )
