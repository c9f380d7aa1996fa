"""Bodies of a worker's registration and of the children that its tasks submit (protocol.md §7, §8), apart from `worker`: a claim
need not import them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from .fields import Identifier, Instant, PositiveSeconds, Priority, SchemaVersion, Seconds, TagKey, TagValue, TaskType, Tolerant
from .producer import Attempts, Concurrency, Jitter, LeaseSeconds, Multiplier, Retry, Trace
from .schedules import RegisteredSchedule
from .worker import Handler, Ids, Slots, Text


class ChildSubmit(Ids):
    """POST …/children: a submit with the parent's lease as authority, once per name."""

    name: Identifier
    detached: bool = False
    type: TaskType
    schema_version: SchemaVersion
    input: Any
    pool: Identifier = "default"
    priority: Priority = 0
    run_at: Instant | None = None
    delay_seconds: Seconds | None = None
    retry: Retry | None = None
    start_deadline_seconds: PositiveSeconds | None = None
    timeout_seconds: PositiveSeconds | None = None
    lease_seconds: LeaseSeconds | None = None
    concurrency: Concurrency | None = None
    tags: Annotated[dict[TagKey, TagValue], Field(max_length=16, default_factory=dict)]
    trace: Trace | None = None

    @model_validator(mode="after")
    def _one_time(self) -> Self:
        if self.run_at is not None and self.delay_seconds is not None:
            raise PydanticCustomError("one_time", "has both runAt and delaySeconds; give one of them")
        return self


class RegisteredHandler(Handler):
    """A handler as a worker program declares it, with its policy."""

    class HandlerRetry(Tolerant):
        """The handler's own retry policy; a field left out is the default's."""

        max_attempts: Attempts | None = None
        initial_delay_seconds: Seconds | None = None
        multiplier: Multiplier | None = None
        max_delay_seconds: Seconds | None = None
        jitter: Jitter | None = None

    description: Text | None = None
    input_schema: dict[str, Any] | None = None
    result_schema: dict[str, Any] | None = None
    retry: HandlerRetry | None = None
    timeout_seconds: PositiveSeconds | None = None
    lease_seconds: LeaseSeconds | None = None
    start_deadline_seconds: PositiveSeconds | None = None


class Sdk(Tolerant):
    """Which client speaks."""

    name: Annotated[str, Field(max_length=255)]
    version: Annotated[str, Field(max_length=255)]


class Register(Tolerant):
    """PUT /v1/workers/{workerId}."""

    instance_id: Identifier
    host: Annotated[str, Field(max_length=255)] | None = None
    pool: Identifier = "default"
    slots: Slots = 1
    build: Identifier | None = None
    replace: bool = False
    sdk: Sdk | None = None
    handlers: Annotated[list[RegisteredHandler], Field(max_length=200)]
    schedules: Annotated[list[RegisteredSchedule], Field(max_length=200)] | None = None
