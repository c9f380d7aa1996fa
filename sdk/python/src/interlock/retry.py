"""The retry policy that a caller or a handler declares; the service computes the delays (protocol.md §6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Retry:
    """How often and how late a task is tried again. Delays are seconds.

    `on` names exceptions that a handler need not translate: raised by it, they count as `Retryable`. It stays here and
    is not sent.
    """

    max_attempts: int = 5
    initial_delay: float = 1.0
    multiplier: float = 2.0
    max_delay: float = 300.0
    jitter: float = 0.2
    on: tuple[type[BaseException], ...] = field(default=())

    def to_wire(self) -> dict[str, Any]:
        """The policy as the protocol names it."""
        return {
            "maxAttempts": self.max_attempts,
            "initialDelaySeconds": self.initial_delay,
            "multiplier": self.multiplier,
            "maxDelaySeconds": self.max_delay,
            "jitter": self.jitter,
        }
