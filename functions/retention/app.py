"""Deletes settled tasks that were kept long enough."""

from __future__ import annotations

from typing import Any

from interlock_core import firings, leases
from interlock_core.db import Database
from interlock_core.entry import scheduled_handler
from interlock_core.settings import Settings


async def run(database: Database, settings: Settings) -> dict[str, Any]:
    """One run, bounded in time; returns counts of what it deleted."""
    done = await leases.retain(database, settings)
    return {**done, "firings": await firings.forget(database, settings)}


handler = scheduled_handler(run)
