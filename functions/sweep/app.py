"""Fires schedules, settles lapsed leases and deadlines, moves due work in, keeps the roll-ups.

Delivered twice at once, it does its work once. With `SWEEP_STAY_SECONDS` a run in whose time a schedule is due stays for it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from interlock_core import emf, firings, leases
from interlock_core.db import Database
from interlock_core.entry import scheduled_handler
from interlock_core.settings import Settings


async def run(database: Database, settings: Settings, pause: firings.Pause = asyncio.sleep) -> dict[str, Any]:
    """One pass; returns counts of what it did. An idle service costs it one statement."""
    started = time.monotonic()
    done: dict[str, Any] = {}
    idle = await leases.look(database)
    if idle is None:
        done["schedules"] = await firings.fire_due(database, settings)
        done |= await leases.sweep(database, settings)
    if settings.stack:
        told = idle[0] if idle is not None else await leases.figures(database)
        sys.stdout.write(emf.line(settings.stack, {"SweepSeconds": time.monotonic() - started, **told}) + "\n")
    left = settings.sweep_stay_seconds - (time.monotonic() - started)
    if left > 0:
        due_in = idle[1] if idle is not None else await firings.ahead(database)
        if due_in is not None and due_in < left:
            done["onTime"] = await firings.stay(database, settings, due_in, left, pause)
    return {"idle": idle is not None, **done}


handler = scheduled_handler(run)
