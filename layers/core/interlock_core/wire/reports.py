"""Bodies of a worker's reports (protocol.md §5). Items of a batch are validated one by one."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from . import rules
from .structs import Body, Broken, EffectSafety, Id, Identifier, PathName, Seconds, Text, measured


class Ids(Body, kw_only=True):
    """The four fields that every report carries."""

    task_id: Id
    attempt_id: Id
    fence: Annotated[int, Meta(ge=1, le=rules.GREATEST_INT)]
    lease_token: Annotated[str, Meta(min_length=1, max_length=255)]


class Wait(Body, kw_only=True):
    """What a suspended task waits for: whatever comes first."""

    name: Identifier
    after_seconds: Seconds | None = None
    until: str | None = None
    signal: Identifier | None = None
    children: Annotated[list[Identifier], Meta(min_length=1, max_length=1000)] | None = None

    def __post_init__(self) -> None:
        measured(self.after_seconds, "afterSeconds")
        try:
            if self.until is not None:
                rules.instant(self.until)
        except ValueError as error:
            raise Broken(str(error), "until") from None
        if self.after_seconds is not None and self.until is not None:
            raise Broken("has both afterSeconds and until; give one of them")
        if self.after_seconds is None and self.until is None and self.signal is None and self.children is None:
            raise Broken("names nothing to wait for: give afterSeconds, until, signal or children")

    def said(self) -> dict[str, Any]:
        """The fields that were given, as JSON, the instant in UTC: what is stored, and what a repeat is known by."""
        until = rules.instant(self.until).isoformat().replace("+00:00", "Z") if self.until is not None else None
        given = {
            "name": self.name,
            "afterSeconds": self.after_seconds,
            "until": until,
            "signal": self.signal,
            "children": self.children,
        }
        return {name: value for name, value in given.items() if value is not None}


class Completion(Ids, kw_only=True):
    """One outcome. `result`, `error` and texts are read leniently: text never makes a report fail."""

    outcome: Literal["succeeded", "failed", "retryable", "unknown", "suspended", "cancelled"]
    result: Any = None
    error: Any = None
    retry_after_seconds: float | None = None
    step: Identifier | None = None
    wait: Wait | None = None
    orphaned_steps: Any = None

    def __post_init__(self) -> None:
        if not isfinite(self.retry_after_seconds or 0):
            raise Broken("must be a finite number", "retryAfterSeconds")
        if (self.outcome == "suspended") != (self.wait is not None):
            raise Broken("goes with `wait`: a suspension says what it waits for, and nothing else does")


class StepReport(Ids, kw_only=True):
    """POST …/steps: what became of one step. Text of an error is read leniently."""

    name: Identifier
    status: Literal["started", "succeeded", "failed"]
    effect_safety: EffectSafety | None = None
    reconciles: bool = False
    output: Any = None
    error: Any = None
    final: bool = False
    tries: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class Beat(Ids, kw_only=True):
    """One attempt of a heartbeat."""

    progress: Any = None
    logs: Any = None


class Heartbeat(Body, kw_only=True):
    """POST /v1/attempts/heartbeat without its items."""

    worker_id: PathName
    instance_id: Identifier
    draining: bool | None = None
    slots: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    attempts: Annotated[list[Any], Meta(max_length=200)] = field(default_factory=list)


class Complete(Body, kw_only=True):
    """POST /v1/attempts/complete without its items."""

    completions: Annotated[list[Any], Meta(max_length=200)]
    claim: Any = None


class Giveback(Ids, kw_only=True):
    """One attempt given back."""

    started: bool = False
    reason: Text | None = None


class Release(Body, kw_only=True):
    """POST /v1/attempts/release: attempts, or a claim whose answer never came."""

    attempts: Annotated[list[Any], Meta(max_length=200)] | None = None
    worker_id: PathName | None = None
    instance_id: Identifier | None = None
    claim_id: Identifier | None = None
