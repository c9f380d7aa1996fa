"""The body of a claim (protocol.md §5), apart from reports and registrations: a function imports the models of its own calls."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .fields import Identifier, PathName, SchemaVersion, Seconds, TaskType, Tolerant

EffectSafety = Literal["pure", "idempotent", "non-idempotent"]
Slots = Annotated[int, Field(ge=1, le=10_000)]


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
