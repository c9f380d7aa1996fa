"""The body of a claim (protocol.md §5)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .structs import Body, EffectSafety, Identifier, PathName, SchemaVersion, Seconds, Slots, TaskType, measured


class Handler(Body, kw_only=True):
    """What a claim serves."""

    type: TaskType
    schema_version: SchemaVersion
    effect_safety: EffectSafety
    slots: Slots | None = None
    reconciles: bool = False


class Claim(Body, kw_only=True):
    """POST /v1/claims, and the `claim` of a completion."""

    worker_id: PathName
    instance_id: Identifier
    claim_id: Identifier
    pool: Identifier = "default"
    slots: Annotated[int, Meta(ge=1, le=100)]
    handlers: Annotated[list[Handler], Meta(min_length=1, max_length=200)]
    wait_seconds: Seconds | None = None

    def __post_init__(self) -> None:
        measured(self.wait_seconds, "waitSeconds")
