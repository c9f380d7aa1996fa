"""What an operator sets: pauses, limits, the rate of submits; and the trail of who did what (protocol.md §10)."""

from __future__ import annotations

from typing import Any

import msgspec

from . import admission, hints
from .db import Database, Row, statements
from .errors import LimitExceeded, RateLimited
from .ids import new_id
from .keys import Key
from .wire.times import when

sql = statements("controls")


async def pause_type(database: Database, key: Key, task_type: str, version: int) -> dict[str, Any]:
    """Nobody claims the type from now on; running attempts go on. Again → duplicate."""
    name = f"{task_type}@{version}"
    rows = await database.one(sql.pause_type(**_who(key), type=task_type, schema_version=version, name=name))
    return {"type": task_type, "schemaVersion": version, "paused": True, "duplicate": not rows[0].changed}


async def resume_type(database: Database, key: Key, task_type: str, version: int) -> dict[str, Any]:
    """The type is claimed again, and its waiting work hinted at. Not paused → duplicate."""
    name = f"{task_type}@{version}"
    rows = await database.one(sql.resume_type(**_who(key), type=task_type, schema_version=version, name=name))
    if rows[0].changed:
        await _hint(database, key.project, lambda g: (g.type, g.schema_version) == (task_type, version))
    return {"type": task_type, "schemaVersion": version, "paused": False, "duplicate": not rows[0].changed}


async def pause_project(database: Database, key: Key, paused: bool) -> dict[str, Any]:
    """Pauses or resumes all claims of the project; submits are stored all the same."""
    rows = await database.one(sql.pause_project(**_who(key), paused=paused))
    if rows[0].changed and not paused:
        await _hint(database, key.project, lambda _: True)
    return {"project": key.project, "paused": paused, "duplicate": not rows[0].changed}


async def _hint(database: Database, project: str, wanted: Any) -> None:
    groups = [g for g in await database.one(sql.ready_groups(project=project)) if wanted(g)]
    if groups:
        ready = [(f"{g.type}@{g.schema_version}", g.pool, 100, 0.0) for g in groups]
        await hints.tell(database, hints.payload(project, ready=ready))


async def set_limit(database: Database, key: Key, name: str, limit: int | None) -> dict[str, Any]:
    """At most `limit` tasks hold the concurrency key, whatever larger limit they brought; None: only their own counts."""
    rows = await database.one(sql.set_limit(**_who(key), key=name, limit=limit))
    await admission.admit(database, key.project, [name])
    return {"key": name, "limit": limit, "duplicate": not rows[0].changed}


async def limits(
    database: Database, project: str, name: str | None, after: str | None, limit: int
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Limits that operators set, by key, with the number of running holders, one more than `limit` if there are more; and the
    rate of submits.
    """
    rows, rates = await database.run(
        sql.limits(project=project, key=name, after=after, limit=limit + 1), sql.rate(project=project)
    )
    rate = {"perSecond": rates[0].submits_per_second, "burst": rates[0].submits_burst} if rates else None
    return [{"key": r.key, "limit": r.most, "held": r.held} for r in rows], rate


async def set_rate(database: Database, key: Key, per_second: float | None, burst: int | None) -> dict[str, Any]:
    """Each producer key of the project may submit `per_second` tasks, `burst` at once; None for no limit."""
    rows = await database.one(sql.set_rate(**_who(key), per_second=per_second, burst=burst))
    return {"perSecond": per_second, "burst": burst, "duplicate": not rows[0].changed}


async def spend(database: Database, key: Key, tasks: int) -> None:
    """Takes new tasks from the key's allowance.

    Raises RateLimited where it is used up, LimitExceeded where the call asks for more than can ever be there.
    """
    if await database.one(sql.spend(project=key.project, key_id=key.id, tasks=tasks)):
        return
    rates = await database.one(sql.rate(project=key.project))
    if not rates or rates[0].submits_burst is None:
        return  # the limit was lifted a moment ago
    if tasks > rates[0].submits_burst:
        raise LimitExceeded(
            f"the call brings {tasks} new tasks; the project lets a key submit {rates[0].submits_burst} at once",
            next=f"Send at most {rates[0].submits_burst} tasks a call.",
        )
    raise RateLimited("the project limits the submits of each key, and this key has used up its allowance")


def _who(key: Key) -> dict[str, Any]:
    return {"project": key.project, "key_id": key.id, "audit_id": new_id()}


async def audit(database: Database, project: str, after: list[Any] | None, limit: int) -> list[Row]:
    """Rows of the trail, newest first, one more than `limit` if there are more."""
    at, row_id = after or (None, None)
    return await database.one(sql.audit(project=project, after_at=at, after_id=row_id, limit=limit + 1))


def audit_view(row: Row) -> dict[str, Any]:
    """One line of the trail."""
    return {
        "id": row.id,
        "at": when(row.at),
        "keyId": row.key_id,
        "action": row.action,
        "target": row.target,
        "detail": msgspec.Raw(row.detail.encode()),
    }
