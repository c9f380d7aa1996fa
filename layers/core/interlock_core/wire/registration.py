"""The body of a worker's registration (protocol.md §8)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from .fields import Identifier, PositiveSeconds, SchemaVersion, Seconds, TaskType, Tolerant
from .producer import Attempts, Jitter, LeaseSeconds, Multiplier
from .schedules import RegisteredSchedule
from .structs import EffectSafety

Slots = Annotated[int, Field(ge=1, le=10_000)]
Text = Annotated[str, Field(max_length=1_000_000)]


class RegisteredHandler(Tolerant):
    """A handler as a worker program declares it, with its policy."""

    type: TaskType
    schema_version: SchemaVersion
    effect_safety: EffectSafety
    slots: Slots | None = None
    reconciles: bool = False

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
