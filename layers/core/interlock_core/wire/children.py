"""The body with which a running attempt submits a child (protocol.md §7)."""

from __future__ import annotations

from typing import Any

from .fields import Identifier, SchemaVersion, TaskType
from .producer import Once, Options
from .reports import Ids


class ChildSubmit(Options, Once, Ids):
    """POST …/children: a submit with the parent's lease as authority, once per name."""

    name: Identifier
    detached: bool = False
    type: TaskType
    schema_version: SchemaVersion
    input: Any
