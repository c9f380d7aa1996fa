"""How a worker's starts follow one another: one that dies at once under a supervisor must not hammer the service with registrations.

The note of the last start lies in the spool folder, which one process holds at a time. Who finds one there knows that the process
that wrote it has ended, and did not end as it was told to: that one took its note away.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from interlock.backoff import growing_delay

NAME = "last-start"

SOON = 60.0
"""A start so soon after the one before is another of a row; a longer life ends the row."""

FREE = 5
"""Starts of a row that need not wait: a crash, or a few, must not keep work waiting."""

FIRST, LONGEST = 1.0, 30.0
"""Seconds that the next ones wait."""


@dataclass(frozen=True)
class Start:
    """What this start has to know: the process before it that vanished, how many of a row, and the seconds to wait."""

    before: str | None
    row: int
    delay: float


def note_start(folder: Path, instance_id: str) -> Start:
    """Note this start in the folder. Where that cannot be read or written, it is the first of a row."""
    now = time.time()
    before, row = None, 0
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        told = json.loads((folder / NAME).read_bytes()[:4096])
        before = told["instanceId"] if isinstance(told["instanceId"], str) else None
        if abs(now - told["at"]) < SOON + told["delay"]:
            row = int(told["row"]) + 1
    delay = 0.0
    if row >= FREE:
        delay = growing_delay(row - FREE, FIRST, LONGEST) * random.uniform(0.8, 1)
    text = json.dumps({"instanceId": instance_id, "at": now, "row": row, "delay": delay})
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
    return Start(before, row, delay)


def forget_start(folder: Path) -> None:
    """The worker ended as it was told to: its next start is the first of a row."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)
