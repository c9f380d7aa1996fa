"""Fires schedules, settles lapsed leases and deadlines, moves due work in, keeps the roll-ups.

Delivered twice at once, it does its work once.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from interlock_core import emf, firings, leases
from interlock_core.db import Database
from interlock_core.http import scheduled_handler
from interlock_core.settings import Settings


async def run(database: Database, settings: Settings) -> dict[str, Any]:
    """One pass; returns counts of what it did. An idle service costs it one statement."""
    started = time.monotonic()
    done: dict[str, Any] = {}
    idle = await leases.look(database)
    if idle is None:
        done["schedules"] = await firings.fire_due(database, settings)
        done |= await leases.sweep(database, settings)
    if settings.stack:
        told = idle or await leases.figures(database)
        sys.stdout.write(emf.line(settings.stack, {"SweepSeconds": time.monotonic() - started, **told}) + "\n")
    return {"idle": idle is not None, **done}


handler = scheduled_handler(run)
