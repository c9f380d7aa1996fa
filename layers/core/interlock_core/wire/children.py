"""The body with which a running attempt submits a child (protocol.md §7)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from . import rules
from .fields import Id, Identifier, SchemaVersion, TaskType, Tolerant
from .producer import Once, Options


class ChildSubmit(Options, Once, Tolerant):
    """POST …/children: a submit with the parent's lease as authority, once per name."""

    task_id: Id
    attempt_id: Id
    fence: Annotated[int, Field(ge=1, le=rules.GREATEST_INT)]
    lease_token: Annotated[str, Field(min_length=1, max_length=255)]
    name: Identifier
    detached: bool = False
    type: TaskType
    schema_version: SchemaVersion
    input: Any
