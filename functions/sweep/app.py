"""Fires schedules, settles lapsed leases and deadlines, moves due work in, keeps the roll-ups.

Delivered twice at once, it does its work once.
"""

from __future__ import annotations

from typing import Any

from interlock_core import firings, leases
from interlock_core.db import Database
from interlock_core.http import scheduled_handler
from interlock_core.settings import Settings


async def run(database: Database, settings: Settings) -> dict[str, Any]:
    """One pass; returns counts of what it did."""
    fired = await firings.fire_due(database, settings)
    return {"schedules": fired, **await leases.sweep(database, settings)}


handler = scheduled_handler(run)
