"""What a reconcile hook finds out about an effect of which nobody knows whether it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Happened:
    """The effect happened; `result` is what the step, or the handler, would have returned."""

    result: Any = None


@dataclass(frozen=True)
class DidNotHappen:
    """The effect did not happen: the step, or the handler, is run."""


@dataclass(frozen=True)
class CannotTell:
    """Nobody can say yet: the task is `outcome-unknown`, with `reason` in its failure."""

    reason: str = ""


Finding = Happened | DidNotHappen | CannotTell


def read_finding(value: Any) -> Finding:
    """What a hook returned; the bare classes `DidNotHappen` and `CannotTell` count, anything else cannot tell."""
    if isinstance(value, (Happened, DidNotHappen, CannotTell)):
        return value
    if value is DidNotHappen or value is CannotTell:
        finding: Finding = value()
        return finding
    kind = value.__name__ if isinstance(value, type) else type(value).__name__
    return CannotTell(f"the reconcile hook gave {kind}, which is neither Happened(result) nor DidNotHappen() nor CannotTell()")
