"""Bodies of worker calls (protocol.md §5, §8). Unknown fields are ignored; items of a batch are validated one by one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .fields import Id, Identifier, PathName, PositiveSeconds, SchemaVersion, Seconds, TaskType, Tolerant
from .producer import Attempts, Jitter, LeaseSeconds, Multiplier

EffectSafety = Literal["pure", "idempotent", "non-idempotent"]
Slots = Annotated[int, Field(ge=1, le=10_000)]
Text = Annotated[str, Field(max_length=1_000_000)]


class Handler(Tolerant):
    """What a claim serves."""

    type: TaskType
    schema_version: SchemaVersion
    effect_safety: EffectSafety
    slots: Slots | None = None
    reconciles: bool = False


class Claim(Tolerant):
    """POST /v1/claims, and the `claim` of a completion."""

    worker_id: PathName
    instance_id: Identifier
    claim_id: Identifier
    pool: Identifier = "default"
    slots: Annotated[int, Field(ge=1, le=100)]
    handlers: Annotated[list[Handler], Field(min_length=1, max_length=200)]
    wait_seconds: Seconds | None = None


class Ids(Tolerant):
    """The four fields that every report carries."""

    task_id: Id
    attempt_id: Id
    fence: Annotated[int, Field(ge=1, le=2_147_483_647)]
    lease_token: Annotated[str, Field(min_length=1, max_length=255)]


class Completion(Ids):
    """One outcome. `result`, `error` and texts are read leniently: text never makes a report fail."""

    outcome: Literal["succeeded", "failed", "retryable", "unknown", "cancelled"]
    result: Any = None
    error: Any = None
    retry_after_seconds: Annotated[float, Field(allow_inf_nan=False)] | None = None


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
