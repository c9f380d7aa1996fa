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
    rides: bool = False  # along with reports
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    sent_at: float = 0.0


@dataclass(slots=True)
class Riding:
    """Whether a claim rides along with reports that are sent anyway.

    Under load the next work is there already. Where tasks come one at a time it finds nothing, and costs the database as much
    as one that does: not worth it while a stream tells at once when there is something, until several come together again.
    """

    hinted: bool = False  # a stream is up
    pays: bool = True

    def may(self, due: bool) -> bool:
        """Whether one may ride along now; one that is `due` would be asked for anyway."""
        return due or self.pays or not self.hinted

    def learn(self, claim: ClaimRequest, found: int) -> None:
        """A claim has brought so many attempts."""
        self.pays = found > 0 if claim.rides else self.pays or found > 1


@dataclass(slots=True)
class Work:
    """What a lane is to carry: outcomes to send, attempts to give back, a new claim."""

    outcomes: list[Outcome] = field(default_factory=list)
    claim: ClaimRequest | None = None
    releases: list[Release] = field(default_factory=list)
