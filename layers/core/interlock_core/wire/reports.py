"""Bodies of a worker's reports (protocol.md §5). Unknown fields are ignored; items of a batch are validated one by one."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .claim import EffectSafety
from .fields import Id, Identifier, Instant, PathName, Seconds, Tolerant

Text = Annotated[str, Field(max_length=1_000_000)]


class Ids(Tolerant):
    """The four fields that every report carries."""

    task_id: Id
    attempt_id: Id
    fence: Annotated[int, Field(ge=1, le=2_147_483_647)]
    lease_token: Annotated[str, Field(min_length=1, max_length=255)]


class Wait(Tolerant):
    """What a suspended task waits for: whatever comes first."""

    name: Identifier
    after_seconds: Seconds | None = None
    until: Instant | None = None
    signal: Identifier | None = None
    children: Annotated[list[Identifier], Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.after_seconds is not None and self.until is not None:
            raise PydanticCustomError("one_time", "has both afterSeconds and until; give one of them")
        if self.after_seconds is None and self.until is None and self.signal is None and self.children is None:
            raise PydanticCustomError("nothing", "names nothing to wait for: give afterSeconds, until, signal or children")
        return self


class Completion(Ids):
    """One outcome. `result`, `error` and texts are read leniently: text never makes a report fail."""

    outcome: Literal["succeeded", "failed", "retryable", "unknown", "suspended", "cancelled"]
    result: Any = None
    error: Any = None
    retry_after_seconds: Annotated[float, Field(allow_inf_nan=False)] | None = None
    step: Identifier | None = None
    wait: Wait | None = None
    orphaned_steps: Any = None

    @model_validator(mode="after")
    def _waits(self) -> Self:
        if (self.outcome == "suspended") != (self.wait is not None):
            raise PydanticCustomError("waits", "goes with `wait`: a suspension says what it waits for, and nothing else does")
        return self


class StepReport(Ids):
    """POST …/steps: what became of one step. Text of an error is read leniently."""

    name: Identifier
    status: Literal["started", "succeeded", "failed"]
    effect_safety: EffectSafety | None = None
    reconciles: bool = False
    output: Any = None
    error: Any = None
    final: bool = False
    tries: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


class Beat(Ids):
    """One attempt of a heartbeat."""

    progress: Any = None
    logs: Any = None


class Heartbeat(Tolerant):
    """POST /v1/attempts/heartbeat without its items."""

    worker_id: PathName
    instance_id: Identifier
    draining: bool | None = None
    slots: Annotated[int, Field(ge=0, le=10_000)] | None = None
    attempts: Annotated[list[Any], Field(max_length=200, default_factory=list)]


class Complete(Tolerant):
    """POST /v1/attempts/complete without its items."""

    completions: Annotated[list[Any], Field(max_length=200)]
    claim: Any = None


class Giveback(Ids):
    """One attempt given back."""

    started: bool = False
    reason: Text | None = None


class Release(Tolerant):
    """POST /v1/attempts/release: attempts, or a claim whose answer never came."""

    attempts: Annotated[list[Any], Field(max_length=200)] | None = None
    worker_id: PathName | None = None
    instance_id: Identifier | None = None
    claim_id: Identifier | None = None
