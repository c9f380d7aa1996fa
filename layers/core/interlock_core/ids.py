"""UUIDv7 (RFC 9562): 48 bits of milliseconds, a counter that keeps one process's ids in order, and random bits."""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = [0]


def new_id() -> UUID:
    """A new id, greater than any made before by this process."""
    with _lock:
        # milliseconds, then 12 bits that start at a random place of the lower half and count up within one millisecond
        stamp = (time.time_ns() // 1_000_000) << 12 | (int.from_bytes(os.urandom(2), "big") & 0x7FF)
        _last[0] = stamp = max(stamp, _last[0] + 1)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return UUID(int=(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random)
