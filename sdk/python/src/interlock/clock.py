"""The clock of leases: it never jumps, and it goes on while the machine sleeps, as the service's clock does."""

from __future__ import annotations

import time

_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # Linux: CLOCK_MONOTONIC stands still during suspend, this one does not.


def now() -> float:
    """Seconds since some fixed instant."""
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()
