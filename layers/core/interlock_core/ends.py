"""What follows the end of tasks, in transactions of its own: freed keys, hints, waiting parents, children of the
cancelled, the next task of a schedule.

A crash in between loses nothing: holders of keys are counted, parents and children are found by what was left undone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from . import admission, hints, previous
from .db import Database, Row, statements
from .errors import Unavailable
from .states import CANCELLED, QUEUED, SETTLED, WAITING
from .wire.rules import INLINE_BYTES

sql = statements("ends")
resume_sql = statements("resume")
cancel_sql = statements("cancel")

REPAIR_LIMIT = 500

log = logging.getLogger("interlock.ends")


async def follow(database: Database, project: str, rows: Sequence[Any], *, told: bool = False) -> None:
    """Does what the ends of these tasks ask for. A row has `id, status, concurrency_key, parent_id, cascades`
    and `schedule_owner, schedule_name`.

    One that became ready has `type, schema_version, pool, due_at` too. `told`: waiters have been hinted at already.
    """
    left = list(rows)
    while left:
        await admission.admit(database, project, [row.concurrency_key for row in left])
        ready = hints.group(
            (r.type, r.schema_version, r.pool, seconds) for r in left if (seconds := _claimable_in(r)) is not None
        )
        done = [] if told else [row.id for row in left if row.status != QUEUED]
        if ready or done:
            await hints.tell(database, hints.payload(project, ready=ready, done=done))
        children = [row for row in left if row.parent_id is not None and row.status in SETTLED]
        parents = [row.id for row in left if row.status == CANCELLED and row.cascades]
        scheduled = [(r.schedule_owner, r.schedule_name) for r in left if r.status in SETTLED and r.schedule_name is not None]
        left = []
        try:
            if children:
                await tell_parents(database, [(row.id, row.parent_id) for row in children])
            if scheduled:
                await previous.release(database, project, scheduled)
            left = await cancel_children(database, project, parents)
        except Unavailable as error:  # the end itself is stored and must be answered; the sweep does what is left
            log.warning("what follows an end is left to the sweep: %s", error)
        told = False


def _claimable_in(row: Any) -> float | None:
    """Seconds until a task that an attempt left may be claimed, where time alone decides."""
    if row.status == QUEUED and row.concurrency_key is None:
        return hints.until(row.due_at)
    if row.status == WAITING and row.wake_at is not None:
        return hints.until(row.wake_at)
    return None


async def tell_parents(database: Database, children: Sequence[tuple[UUID, UUID]]) -> None:
    """Lets the parents of settled children look whether their waits are over."""
    parents = sorted({parent for _, parent in children})
    _, resumed, _ = await database.run(
        resume_sql.lock(ids=parents), resume_sql.resume(ids=parents, at_once=None, inline_bytes=INLINE_BYTES),
        sql.told(ids=sorted(child for child, _ in children)),
    )  # fmt: skip
    await follow_resumed(database, resumed)


async def follow_resumed(database: Database, rows: Sequence[Row]) -> None:
    """Admits resumed tasks to their keys and hints at the others: they are ready."""
    for project in sorted({row.project for row in rows}):
        mine = [row for row in rows if row.project == project]
        await admission.admit(database, project, [row.concurrency_key for row in mine])
        ready = hints.group((r.type, r.schema_version, r.pool, 0.0) for r in mine if r.concurrency_key is None)
        if ready:
            await hints.tell(database, hints.payload(project, ready=ready))


async def cancel_children(database: Database, project: str, parents: Sequence[UUID]) -> list[Row]:
    """Asks the children of cancelled tasks to cancel; those that ended by it, whose own ends are to be followed."""
    if not parents:
        return []
    ended: list[Row] = []
    while children := [row.id for row in await database.one(sql.open_children(ids=list(parents)))]:
        _, verdicts = await database.run(
            cancel_sql.lock(ids=children), cancel_sql.cancel(project=project, ids=children, reason="its parent was cancelled")
        )
        changed = [verdict for verdict in verdicts if verdict.changed]
        if not changed:
            break
        holders = [(v.worker_id, v.instance_id, v.id, v.attempt_id) for v in changed if v.before == "running"]
        if holders:
            await hints.tell(database, hints.payload(project, cancel=holders))
        ended += [verdict for verdict in changed if verdict.before != "running"]
    await database.one(sql.cascaded(ids=list(parents)))
    return ended


async def repair(database: Database) -> int:
    """Does what a crash left undone between an end and what follows it; how many tasks that concerned. Called by the sweep."""
    untold, cascades = await database.run(sql.untold(limit=REPAIR_LIMIT), sql.cascades(limit=REPAIR_LIMIT))
    if untold:
        await tell_parents(database, [(row.id, row.parent_id) for row in untold])
    for project in sorted({row.project for row in cascades}):
        ended = await cancel_children(database, project, [row.id for row in cascades if row.project == project])
        await follow(database, project, ended)
    return len(untold) + len(cascades)
