"""What the service tells of a durable run: its steps, its children, its signals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from interlock.reading import TIME
from interlock.tasks import Failure


@dataclass(frozen=True)
class TaskStep:
    """A stored step (`kind` `step`), a finished wait (`wait`) or a submitted child (`child`), in the order of `seq`.

    `status` is `started`, `succeeded` or `failed`; one that is not `final` runs again, or its hook is asked. Whether there is
    an `output` is told by the status: None is one.
    """

    name: str
    kind: str
    status: str
    final: bool
    seq: int = 0
    effect_safety: str | None = None
    reconciles: bool = False
    tries: int = 0
    output: Any = field(default=None, repr=False)
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class TaskChild:
    """A child of a task, and what became of it."""

    name: str
    task_id: str
    status: str
    settled: bool
    type: str = ""
    schema_version: int = 0
    detached: bool = False
    created_at: datetime | None = field(default=None, metadata=TIME)
    finished_at: datetime | None = field(default=None, metadata=TIME)
    result: Any = field(default=None, repr=False)
    failure: Failure | None = field(default=None, metadata={"read": Failure.read})
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class SentSignal:
    """A signal as the service keeps it. `duplicate`: it had been sent before, and nothing changed."""

    task_id: str
    name: str
    signal_key: str
    seq: int
    task_status: str
    duplicate: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
