"""What the ledger hands to a lane: what to send, what to give back, what to claim."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from interlock.outcome import Outcome, Release


@dataclass(slots=True)
class ClaimRequest:
    """A claim on its way. Repeated under the same id until it is answered, or given back."""

    slots: int
    handlers: list[dict[str, Any]]
    keys: list[tuple[str, int]]
    wakes: int
    begun: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    sent_at: float = 0.0


@dataclass(slots=True)
class Work:
    """What a lane is to carry: outcomes to send, attempts to give back, a new claim."""

    outcomes: list[Outcome] = field(default_factory=list)
    claim: ClaimRequest | None = None
    releases: list[Release] = field(default_factory=list)
