"""Bodies of producer calls (protocol.md §4)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from .fields import (
    Identifier,
    Instant,
    Limit,
    Measurable,
    Note,
    PositiveSeconds,
    Priority,
    SchemaVersion,
    Seconds,
    Strict,
    TagKey,
    TagValue,
    TaskType,
)

Attempts = Annotated[int, Field(ge=1, le=10_000)]
Multiplier = Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)]
Jitter = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Measurable]
LeaseSeconds = Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False), Measurable]


class Retry(Strict):
    """How counted attempts are repeated; a field left out is the default's."""

    max_attempts: Attempts = 5
    initial_delay_seconds: Seconds = 1
    multiplier: Multiplier = 2
    max_delay_seconds: Seconds = 300
    jitter: Jitter = 0.2


class Concurrency(Strict):
    """At most `limit` tasks of the project hold `key` at once, across types."""

    key: Identifier
    limit: Limit


class Trace(Strict):
    """W3C trace context, handed to the worker as it is."""

    traceparent: Annotated[str, Field(max_length=255)]
    tracestate: Annotated[str, Field(max_length=512)] | None = None


class Options(BaseModel):
    """What may be said of a task that is to be submitted, whoever submits it: a producer, a parent, a schedule."""

    model_config = ConfigDict(defer_build=True)

    pool: Identifier = "default"
    priority: Priority = 0
    retry: Retry | None = None
    start_deadline_seconds: PositiveSeconds | None = None
    timeout_seconds: PositiveSeconds | None = None
    lease_seconds: LeaseSeconds | None = None
    concurrency: Concurrency | None = None
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=16, default_factory=dict)]
    trace: Trace | None = None


class Once(BaseModel):
    """When it is due."""

    model_config = ConfigDict(defer_build=True)

    run_at: Instant | None = None
    delay_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.run_at is not None and self.delay_seconds is not None:
            raise PydanticCustomError("one_time", "has both runAt and delaySeconds; give one of them")
        return self


class Submit(Options, Once, Strict):
    """POST /v1/tasks."""

    type: TaskType
    schema_version: SchemaVersion
    input: Any
    idempotency_key: Identifier | None = None
    require_worker: Literal["registered", "online"] | None = None


class SubmitBatch(Strict):
    """POST /v1/tasks/batch: all stored or none."""

    tasks: Annotated[list[Submit], Field(min_length=1, max_length=1000), FailFast()]


class Cancel(Strict):
    """POST /v1/tasks/{id}/cancel."""

    reason: Note | None = None


class Resolve(Strict):
    """POST /v1/tasks/{id}/resolve."""

    as_: Annotated[Literal["succeeded", "failed", "requeue", "reconcile"], Field(alias="as")]
    attempt_id: Identifier
    step: Identifier | None = None
    result: Any = None
    note: Note


class Rerun(Strict):
    """POST /v1/tasks/{id}/rerun."""

    from_step: Identifier | None = None
    input: Any = None
    keep_effect_keys: bool = False
    idempotency_key: Identifier | None = None


class Signal(Strict):
    """POST /v1/tasks/{id}/signals."""

    name: Identifier
    payload: Any
    signal_key: Identifier
