"""Schedules that let one task at a time run: whatever ends a task lets the next one of its schedule in (protocol.md §8)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from . import admission, hints
from .db import Database, statements

sql = statements("previous")

_encode = msgspec.json.Encoder().encode


async def release(database: Database, project: str, schedules: Iterable[tuple[str | None, str | None]]) -> int:
    """Lets the oldest waiting task of each (owner, name) in where nothing stands before it; how many that were.

    Called after an end was committed; pairs without a name are of tasks that no schedule made. A crash before it loses nothing:
    who waits is stored, and the sweep releases what was left.
    """
    wanted = sorted({(owner or "", name) for owner, name in schedules if name is not None})
    if not wanted:
        return 0
    given = _encode([{"owner": owner, "name": name} for owner, name in wanted]).decode()
    rows = await database.one(sql.release(project=project, schedules=given))
    await admission.admit(database, project, [r.concurrency_key for r in rows])
    ready = hints.group((r.type, r.schema_version, r.pool, hints.until(r.due_at)) for r in rows if r.concurrency_key is None)
    if ready:
        await hints.tell(database, hints.payload(project, ready=ready))
    return len(rows)


async def repair(database: Database) -> int:
    """Lets in whatever waits for nothing any more; how many tasks. Called by the sweep."""
    rows = await database.one(sql.waiting())
    released = 0
    for project in sorted({r.project for r in rows}):
        released += await release(database, project, [(r.owner, r.name) for r in rows if r.project == project])
    return released
