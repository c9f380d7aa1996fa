"""Postgres's own counters, made current: budgets are counted, never timed."""

from __future__ import annotations

from interlock_core.db import Database, Statement

_flush = Statement("flush", "SELECT pg_stat_force_next_flush()", prepare=False)


async def flush_counters(database: Database) -> None:
    """Publishes what the connection that `database` used last has counted so far."""
    await database.one(_flush())
