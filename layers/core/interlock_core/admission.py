"""Concurrency keys: whatever frees a slot lets the best blocked task in (protocol.md §4)."""

from __future__ import annotations

from collections.abc import Iterable

from . import hints
from .db import Database, Step, statements
from .ids import new_id

sql = statements("admit")


async def admit(database: Database, project: str, keys: Iterable[str | None]) -> None:
    """Re-fills the ready places of the keys after a holder ended, in a transaction of its own.

    A crash before it loses nothing: holders are counted, never stored, and the sweep admits what was left.
    """
    wanted = sorted({key for key in keys if key is not None})
    if not wanted:
        return
    _, rows = await database.run(*steps(project, wanted))
    if rows:
        ready = [(f"{r.type}@{r.schema_version}", r.pool, r.tasks, 0.0) for r in rows]
        await hints.tell(database, hints.payload(project, ready=ready))


def steps(project: str, keys: list[str]) -> tuple[Step, Step]:
    """The two steps, for a transition that admits in its own transaction."""
    call = new_id()
    return sql.lock(project=project, keys=keys, call=call), sql.admit(project=project, keys=keys, call=call)


async def repair(database: Database) -> int:
    """Admits every key that has room and blocked tasks; returns how many keys there were. Called by the sweep."""
    rows = await database.one(sql.stranded())
    for row in rows:
        await admit(database, row.project, [row.key])
    return len(rows)
