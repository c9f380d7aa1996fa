"""What the answers about steps, children and signals look like. As `answers`: they describe, they do not cost."""

from __future__ import annotations

from typing import Any, Literal

from .answers import Failure, Shown, Status, Uuid, When
from .structs import EffectSafety


class StepOutline(Shown):
    """A step without its output. A `final` one never changes; a `started` one may have had its effect."""

    name: str
    kind: Literal["step", "wait", "child"]
    status: Literal["started", "succeeded", "failed"]
    final: bool
    effect_safety: EffectSafety | None
    reconciles: bool
    tries: int
    seq: int
    error: Any = None


class StepView(StepOutline):
    """A step; `output` stands where it succeeded."""

    output: Any = None


class StoredStep(StepView):
    """What is stored of a step now; `duplicate` where it was so before."""

    duplicate: bool


class StepPage(Shown):
    """A page of steps in the order of their first events."""

    items: list[StepView]
    next_cursor: str | None


class ChildOutline(Shown):
    """A child as its parent names it."""

    name: str
    task_id: Uuid
    type: str
    schema_version: int
    status: Status
    settled: bool
    detached: bool
    created_at: When
    finished_at: When | None


class ChildView(ChildOutline):
    """A child with its end."""

    result: Any
    failure: Failure | None


class ChildPage(Shown):
    """A page of children in the order of their submits."""

    items: list[ChildView]
    next_cursor: str | None


class Spawned(Shown):
    """The child of a name, new or submitted before."""

    task_id: Uuid
    duplicate: bool


class SignalView(Shown):
    """A signal that no wait has taken."""

    name: str
    signal_key: str
    payload: Any
    at: When


class SignalPage(Shown):
    """A page of signals, oldest first."""

    items: list[SignalView]
    next_cursor: str | None


class Signalled(Shown):
    """A kept signal; `seq` is that of its event in the task's journal."""

    task_id: Uuid
    name: str
    signal_key: str
    seq: int
    task_status: Status
    duplicate: bool
